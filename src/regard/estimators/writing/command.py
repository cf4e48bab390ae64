"""What the command line does with a text: `regard fit writer` and `regard write`."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.data.text import read_text
from regard.estimators.settings import setting, with_settings
from regard.estimators.subject import Fitted, RunOptions, TrainedSubject, count_parameters

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from regard.estimators.writing.estimator import Writer
    from regard.estimators.writing.evidence import TextEvidence


@with_settings
class TextFile(RunOptions):
    """What a language model learns from."""

    file: Path = setting("a text, UTF-8", kw_only=False)


class Writing(TrainedSubject[TextFile, list[str]]):
    """Train a language model on a text, to continue it with regard write."""

    name = "writer"
    inputs = "text"
    estimators = ("Writer",)
    data = TextFile

    def fit(self, data: TextFile, settings: dict[str, Any], out: Path) -> Fitted:
        writer = self.train(data, settings, out, data.file)
        tokens = writer.tokenizer_.get_vocab_size()
        return Fitted(writer, [f"Writer on {data.file}, {tokens} tokens, held-out loss {_loss(writer)}"])

    def read_inputs(self, model: "Writer", schema: None, path: Path) -> list[str]:
        return [read_text(path)]

    def plot(self, evidence: "TextEvidence", index: int) -> "Axes":
        """The mean over the heads of the last block."""
        return evidence.plot()

    def label(self, inputs: list[str], index: int) -> str:
        return "the text"

    def describe(self, model: "Writer", schema: None) -> dict[str, Any]:
        return {
            "model": "Writer",
            "tokens": f"{model.tokens}, vocabulary of {model.tokenizer_.get_vocab_size()}",
            "parameters": count_parameters(model.model_),
            "context": model.context,
            "blocks": model.blocks,
            "heads": model.heads,
            "size": model.size,
            "held-out loss": _loss(model),
        }


def _loss(writer: "Writer") -> str:
    """The loss by which the model's weights were chosen."""
    return f"{writer.history_.best:.3f} per token"


def write(
    folder: Annotated[Path, typer.Argument(help="A model folder, made by regard fit writer.")],
    prompt: Annotated[str, typer.Option(help="The text to continue.")],
    length: Annotated[int, typer.Option(help="Number of tokens to add.", min=1)] = 200,
    temperature: Annotated[float, typer.Option(help="0: always the likeliest token. Higher: more random.")] = 1.0,
    top_k: Annotated[int | None, typer.Option(help="Draw from the K likeliest tokens only.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Draw from the fewest tokens with this probability.")] = None,
    seed: Annotated[int, typer.Option(help="One seed, one text.")] = 0,
) -> None:
    """Continue a text, and show it as it is written."""
    model = SUBJECT.open_folder(folder, "write")
    pieces = model.stream(prompt, length, temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)
    typer.echo(prompt, nl=False)
    for piece in pieces:
        typer.echo(piece, nl=False)
        sys.stdout.flush()
    typer.echo()


Writing.verbs = (write,)
SUBJECT = Writing()
