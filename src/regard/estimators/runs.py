"""A long training from the command line: its run, kept beside the model folder in NAME.run until it is over, and what
there is to say of it then.
"""

import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from regard.saving import CONFIG


def run_of(out: Path) -> Path:
    """Where the run is kept while it lasts."""
    out = out.resolve() if out.name in ("", "..") else out
    return out.with_name(f"{out.name}.run")


def written(out: Path) -> None:
    """The model is in its folder: the run is no longer needed."""
    shutil.rmtree(run_of(out), ignore_errors=True)


def bleu_of(model: Any) -> str:
    """The BLEU by which the model's state was chosen; its validations are -BLEU."""
    return "not known" if model.history_.best is None else f"{-model.history_.best:.1f}"


def epoch_of(model: Any) -> str:
    """Of which epochs the model has its state."""
    history = model.history_
    which = f"the mean of the last {history.averaged}" if history.averaged else history.best_epoch + 1
    return f"{which} of {len(history.validation)}"


@contextmanager
def kept_run(out: Path, resume: bool) -> Iterator[Path]:
    """The run's folder. Who stops it is told what it leaves, and how it goes on."""
    run = run_of(out)
    if resume and not (run / CONFIG).exists():
        if (out / CONFIG).exists():
            raise FileExistsError(
                f"there is no run in {run} to go on with, and {out} holds a model: without --resume another is learned"
                " in its place"
            )
        warnings.warn(f"there is no run in {run} to go on with: it begins anew", stacklevel=3)
    try:
        yield run
    except KeyboardInterrupt:
        if not (run / CONFIG).exists():
            raise KeyboardInterrupt("nothing was learned yet that could be kept") from None
        told = f"the run is kept in {run}; the same command with --resume goes on with it"
        raise KeyboardInterrupt(told) from None
