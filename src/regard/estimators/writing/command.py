"""What the command line does with a text: a `Writer` that learns from it, goes on with it, and looks back at it."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.data.text import read_text
from regard.estimators.pictures import drawn
from regard.estimators.runs import kept_run, written
from regard.estimators.typed_settings import settings_in

if TYPE_CHECKING:
    from pandas import DataFrame

__all__ = ["written"]
WHAT = "a text"
OPTIONS = ("set", "resume", "board")


def learn(path: Path, given: dict[str, Any]) -> tuple[Any, dict[str, Any], list[str]]:
    """A model of a text, nothing more to be written with it, and what there is to say.

    The run is kept beside the model folder, in NAME.run, until it is over.
    """
    from regard.estimators import Writer

    writer = Writer(**settings_in(Writer, given))
    with kept_run(given["out"], given["resume"]) as run:
        writer.fit(Path(path), checkpoint=run, resume=given["resume"], board=given["board"])
    loss = writer.history_.best
    tokens = writer.tokenizer_.get_vocab_size()
    return writer, {}, [f"Writer on {path}, {tokens} tokens, held-out loss {loss:.3f} a token"]


def takes(model: Any) -> bool:
    """Whether a model is a `Writer`."""
    return hasattr(model, "write") and hasattr(model, "perplexity")


def schema_of(model: Any, config: dict[str, Any], folder: Path) -> None:
    """A text has no columns."""


def asked(model: Any, schema: None, path: Path) -> str:
    """A text to look at."""
    return read_text(path)


def evidence(model: Any, asked: Any, top: int) -> Any:
    """What each prediction looked at."""
    return model.evidence(asked, top=top)


def picture(found: Any, place: int) -> Any:
    """What the last block's heads look at, on average."""
    return drawn(found.plot)


def called(text: str, place: int) -> str:
    """A text as a message calls it."""
    return "the text"


def predictions(model: Any, *_: Any) -> "DataFrame":
    """There are none."""
    raise ValueError("a Writer goes on with a text instead of predicting: regard write MODEL --prompt …")


def facts(model: Any, schema: None) -> dict[str, Any]:
    """What there is to tell of a `Writer`, by name."""
    settings = model.get_params()
    count = sum(parameter.numel() for parameter in model.model_.parameters())
    told = {
        "model": "Writer",
        "tokens": f"{settings['tokens']}, {model.tokenizer_.get_vocab_size()} of them",
        "parameters": f"{count:,}",
    }
    told |= {name: settings[name] for name in ("context", "blocks", "heads", "size")}
    return told | {"held-out loss": f"{model.history_.best:.3f} a token"}
