"""What the command line does with pairs of sentences: a `Translator` that learns from them, and translates."""

import json
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from regard.data.sentence_pairs import read_pairs
from regard.data.text import read_lines
from regard.estimators.pictures import drawn
from regard.estimators.runs import bleu_of, epoch_of, kept_run, written
from regard.estimators.typed_settings import settings_in
from regard.files import check_writable, write_text
from regard.progress import ProgressBar

if TYPE_CHECKING:
    from pandas import DataFrame

__all__ = ["written"]
WHAT = "pairs of sentences"
OPTIONS = ("source", "target", "validation", "set", "resume", "board")
AT_ONCE = 1000
"""Lines that are translated at a time: so many are done before any is shown."""


def learn(path: Path | None, given: dict[str, Any]) -> tuple[Any, dict[str, Any], list[str]]:
    """A model of pairs, nothing more to be written with it, and what there is to say."""
    from regard.estimators import Translator

    translator = Translator(**settings_in(Translator, given))
    sources, targets = pairs_in(path, given["source"], given["target"])
    validation = given["validation"] and pairs_in(None, *given["validation"])
    with kept_run(given["out"], given["resume"]) as run:
        translator.fit(
            sources,
            targets,
            validation=validation or None,
            checkpoint=run,
            resume=given["resume"],
            board=given["board"],
        )
    where = path or f"{given['source']} and {given['target']}"
    told = f"Translator ({translator.model}) on {len(sources)} pairs of {where}, held-out BLEU {bleu(translator)}"
    return translator, {}, [told]


def pairs_in(path: Path | None, source: Path | None, target: Path | str | None) -> tuple[list[str], list[str]]:
    """Sources and targets: of one file with a tab between them, or of two."""
    if path is not None and source is None and target is None:
        return read_pairs(path)
    if path is not None or source is None or target is None:
        raise ValueError(
            "pairs are one file with a tab between source and target, regard fit pairs.tsv --kind translator, or two"
            " files, regard fit --kind translator --source train.de --target train.en"
        )
    sources, targets = read_lines(source), read_lines(target)
    if len(sources) != len(targets):
        raise ValueError(
            f"each line needs its translation: {source} has {len(sources)} lines, {target} has {len(targets)}"
        )
    return sources, targets


def takes(model: Any) -> bool:
    """Whether a model is a `Translator`."""
    return hasattr(model, "translate")


def schema_of(model: Any, config: dict[str, Any], folder: Path) -> None:
    """Sentences have no columns."""


def asked(model: Any, schema: None, path: Path) -> list[str]:
    """Sentences to look at, a line each."""
    return read_lines(path)


NOTHING: Any = None
"""What the translation of an empty line looked at."""


class Alignments(NamedTuple):
    """What the translations of some sentences looked at, at most so many source tokens at each target token."""

    each: list[Any]
    top: int

    def to_frame(self) -> "DataFrame":
        """A row for each sentence, target token and source token; sentences count from 1."""
        import pandas as pd

        frames = {number: found.to_frame(self.top) for number, found in enumerate(self.each, 1) if found is not NOTHING}
        for number, frame in frames.items():
            frame.insert(0, "sentence", number)
        return pd.concat(frames.values(), ignore_index=True)


def evidence(model: Any, sentences: list[str], top: int) -> Alignments:
    """What the translation of each sentence looked at; of an empty one there is nothing."""
    model.encode(sentences)
    return Alignments([model.evidence(sentence) if sentence.strip() else NOTHING for sentence in sentences], top)


def picture(found: Alignments, place: int) -> Any:
    """The heat map of one sentence."""
    if found.each[place] is NOTHING:
        raise ValueError(f"line {place + 1} is empty: there is nothing to draw")
    return drawn(found.each[place].plot)


def called(sentences: list[str], place: int) -> str:
    """A sentence as a message calls it."""
    return f"line {place + 1}"


def predictions(model: Any, *_: Any) -> "DataFrame":
    """There are none."""
    raise ValueError("a Translator translates instead of predicting: regard translate MODEL < in.txt > out.txt")


def translations(model: Any, lines: list[str], beam: int, penalty: float) -> Iterator[str]:
    """Translations in the order of the lines, as they come; what cannot be translated is refused before the first."""
    model.encode(lines)
    with whole_bar(len(lines)) as bar:
        for start in range(0, len(lines), AT_ONCE):
            for line in model.translate(lines[start : start + AT_ONCE], beam=beam, penalty=penalty):
                yield line.replace("\r", " ").replace("\n", " ")  # one for each, whatever it has learned
            if bar is not None:
                bar.update(done=start + AT_ONCE)


def whole_bar(lines: int) -> AbstractContextManager[ProgressBar | None]:
    """A bar over those of each part, where there are several parts, and no lines on the screen between them."""
    if lines <= AT_ONCE or sys.stdout.isatty():
        return nullcontext()
    return ProgressBar("translating all", lines)


def check_alignments(model: Any, folder: Path, path: Path) -> None:
    """Better known before the work than after it: whether there will be alignments, and a place for them."""
    if model.model == "rnn":
        raise ValueError("a model without attention looks at nothing: --alignments needs bahdanau, luong or another")
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder; --alignments names a file")
    if folder.resolve() in path.resolve().parents:
        raise ValueError(f"{path} is in the model's own folder: choose another place for the alignments")
    check_writable(path)


def write_alignments(model: Any, lines: list[str], translated: list[str], path: Path) -> None:
    """What each translation looked at, a line of JSON for each line."""
    pairs = zip(lines, translated, strict=True)
    found = (model.evidence(line, translation).to_json() if line.strip() else {} for line, translation in pairs)
    write_text(path, "".join(json.dumps(one, ensure_ascii=False) + "\n" for one in found))


def facts(model: Any, schema: None) -> dict[str, Any]:
    """What there is to tell of a `Translator`, by name."""
    settings = model.get_params()
    source, target = model.vocabularies_.sizes
    count = sum(parameter.numel() for parameter in model.model_.parameters())
    shared = "one vocabulary for both" if model.vocabularies_.joint else f"{target} for the target"
    told = {"model": f"Translator, {settings['model']}", "tokens": f"{settings['tokens']}, {source}, {shared}"}
    told |= {"parameters": f"{count:,}", "size": settings["size"], "longest": f"{settings['longest']} tokens"}
    left = {name: len(places) for name, places in model.left_out_.items() if places}
    told |= {"left out": ", ".join(f"{number} {name}" for name, number in left.items()) or "no pair"}
    return told | {"epoch": epoch_of(model), "held-out BLEU": bleu(model)}


def bleu(model: Any) -> str:
    """The BLEU by which its state was chosen, and of what it is."""
    return bleu_of(model) + (", of characters" if model.counted_ == "char" else "")
