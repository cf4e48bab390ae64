"""What the command line does with pairs of sentences: `regard fit translator` and `regard translate`."""

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from regard.data.text import Pairs, decode_utf8, read_lines, read_pairs, split_lines
from regard.estimators.settings import setting, with_settings
from regard.estimators.subject import (
    Fitted,
    RunOptions,
    TrainedSubject,
    count_parameters,
    describe_bleu,
    describe_epoch,
    say,
)
from regard.files import check_writable, write_text
from regard.progress import ProgressBar

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame

    from regard.estimators.translation.estimator import Translator
    from regard.estimators.translation.evidence import Alignment

PART = 1000
"""The number of lines that are translated before any is shown."""


@with_settings
class PairFiles(RunOptions):
    """What a translator learns from: one file of pairs, or two files of lines."""

    file: Path | None = setting("pairs, one a line: source TAB target", default=None, kw_only=False)
    source: Path | None = setting("sentences, one a line, instead of FILE", default=None)
    target: Path | None = setting("their translations, one a line", default=None)
    validation_source: Path | None = setting("validation sentences, one a line", default=None)
    validation_target: Path | None = setting("their translations", default=None)


class Alignments(NamedTuple):
    """The alignments of some sentences, None for an empty one."""

    each: "list[Alignment | None]"
    top: int  # number of source tokens for each target token

    def to_frame(self) -> "DataFrame":
        """A row for each sentence, target token and source token; sentences are numbered from 1."""
        import pandas as pd

        frames = {number: one.to_frame(self.top) for number, one in enumerate(self.each, 1) if one is not None}
        return pd.concat(frames, names=["sentence"]).reset_index(level=0).reset_index(drop=True)


class Translation(TrainedSubject[PairFiles, list[str]]):
    """Train a translator on pairs of sentences, to use it with regard translate."""

    name = "translator"
    inputs = "lines"
    estimators = ("Translator",)
    data = PairFiles

    def fit(self, data: PairFiles, settings: dict[str, Any], out: Path) -> Fitted:
        pairs, validation = _read_training(data), None
        if data.validation_source is not None or data.validation_target is not None:
            options = "--validation-source and --validation-target"
            validation = _read_two(data.validation_source, data.validation_target, options)
        translator = self.train(data, settings, out, *pairs, validation=validation)
        files = data.file or f"{data.source} and {data.target}"
        summary = f"Translator ({translator.model}) on {len(pairs.sources)} pairs of {files}"
        return Fitted(translator, [f"{summary}, held-out BLEU {_bleu(translator)}"])

    def read_inputs(self, model: "Translator", schema: None, path: Path) -> list[str]:
        return read_lines(path)

    def evidence(self, model: "Translator", inputs: list[str], top: int) -> Alignments:
        model.encode(inputs)  # raises before the work if a sentence is too long
        return Alignments([model.evidence(line) if line.strip() else None for line in inputs], top)

    def plot(self, evidence: Alignments, index: int) -> "Axes":
        alignment = evidence.each[index]
        if alignment is None:
            raise ValueError(f"line {index + 1} must not be empty: it has no tokens to draw")
        return alignment.plot()

    def describe(self, model: "Translator", schema: None) -> dict[str, Any]:
        source, target = model.vocabularies_.sizes
        shared = "one vocabulary for both languages" if model.vocabularies_.joint else f"{target} for the target"
        left_out = [f"{len(indices)} {reason}" for reason, indices in model.left_out_.items() if indices]
        return {
            "model": f"Translator, {model.model}",
            "tokens": f"{model.tokens}, {source}, {shared}",
            "parameters": count_parameters(model.model_),
            "size": model.size,
            "longest": f"{model.longest} tokens",
            "left out": ", ".join(left_out) or "no pair",
            "epoch": describe_epoch(model.history_),
            "held-out BLEU": _bleu(model),
        }


def _bleu(model: "Translator") -> str:
    """The BLEU by which the model's weights were chosen, and its unit if that is not words."""
    return describe_bleu(model.history_) + (", of characters" if model.counted_ == "char" else "")


def _read_training(data: PairFiles) -> Pairs:
    """The training pairs: of one file with a tab between source and target, or of two files."""
    two_files = data.source is not None or data.target is not None
    if two_files == (data.file is not None):
        raise ValueError(
            "give one file with a tab between source and target, regard fit translator pairs.tsv, or two files,"
            " regard fit translator --source train.de --target train.en"
        )
    if data.file is not None:
        return read_pairs(data.file)
    return _read_two(data.source, data.target, "--source and --target")


def _read_two(source: Path | None, target: Path | None, options: str) -> Pairs:
    """The pairs of two files, line by line."""
    if source is None or target is None:
        raise ValueError(f"{options} must be given together, got one of them")
    pairs = Pairs(read_lines(source), read_lines(target))
    if len(pairs.sources) != len(pairs.targets):
        raise ValueError(
            f"each line needs its translation: {source} has {len(pairs.sources)} lines, {target} has"
            f" {len(pairs.targets)}"
        )
    return pairs


def translate(
    folder: Annotated[Path, typer.Argument(help="A model folder, made by regard fit translator.")],
    beam: Annotated[int, typer.Option(help="Open hypotheses of each sentence; 1 is fastest.", min=1)] = 5,
    penalty: Annotated[float, typer.Option(help="Larger values favour longer translations.", min=0)] = 1.0,
    alignments: Annotated[
        Path | None, typer.Option(help="Also write the alignment of each translation, a line of JSON each.")
    ] = None,
) -> None:
    """Translate stdin to stdout, line by line."""
    model = SUBJECT.open_folder(folder, "translate")
    if alignments is not None:
        _check_alignments(model, folder, alignments)
    if sys.stdin is None:
        raise ValueError("stdin is closed; give sentences on it, one a line: regard translate MODEL < in.txt")
    lines = split_lines(decode_utf8(sys.stdin.buffer.read(), "stdin"))
    translations = []
    for line in _translate_lines(model, lines, beam, penalty):
        typer.echo(line)
        translations.append(line)
    if alignments is not None:
        _write_alignments(model, lines, translations, alignments)
        say(f"{len(translations)} alignments → {alignments}")


Translation.verbs = (translate,)
SUBJECT = Translation()


def _translate_lines(model: "Translator", lines: Sequence[str], beam: int, penalty: float) -> Iterator[str]:
    """The translation of each line, in parts; raises before the first if a line is too long."""
    model.encode(lines)
    # A bar over all parts; none for a single part, or if translations are shown on the terminal.
    several = len(lines) > PART and not sys.stdout.isatty()
    with ProgressBar("translating all", len(lines)) if several else nullcontext() as bar:
        for start in range(0, len(lines), PART):
            for line in model.translate(lines[start : start + PART], beam=beam, penalty=penalty):
                yield line.replace("\r", " ").replace("\n", " ")  # one line of output for each line of input
            if bar is not None:
                bar.update(done=start + PART)


def _check_alignments(model: "Translator", folder: Path, path: Path) -> None:
    """Raise before the work if there will be no alignments, or if they cannot be written."""
    if model.model == "rnn":
        raise ValueError("--alignments needs a model with attention, got an rnn")
    if path.is_dir():
        raise IsADirectoryError(f"--alignments must name a file, got the folder {path}")
    if folder.resolve() in path.resolve().parents:
        raise ValueError(f"--alignments must be outside the model folder, got {path}")
    check_writable(path)


def _write_alignments(model: "Translator", lines: Sequence[str], translations: Sequence[str], path: Path) -> None:
    """Write the alignment of each translation, a line of JSON for each line."""
    pairs = zip(lines, translations, strict=True)
    rows = (model.evidence(line, translation).to_json() if line.strip() else {} for line, translation in pairs)
    write_text(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
