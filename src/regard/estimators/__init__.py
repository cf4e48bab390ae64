"""Estimators: scikit-learn's contract, and two methods more: `evidence` and `save`.

Each folder here is a subject. Its `__init__.py` says which estimators and results it has, and in which of its modules;
they are imported when they are first used.
"""

import importlib
import pkgutil
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from regard.saving import read_folder

SUBJECTS = tuple(module.name for module in pkgutil.iter_modules(__path__) if module.ispkg)
"""The folders of this package."""


def subject_module(name: str, module: str = "") -> ModuleType:
    """The package of a subject, or one of its modules."""
    return importlib.import_module(f"regard.estimators.{name}{module and '.'}{module}")


ESTIMATORS = {public: (name, module) for name in SUBJECTS for public, module in subject_module(name).ESTIMATORS.items()}
"""The subject and the module of each estimator."""
_PUBLIC = {
    **ESTIMATORS,
    **{public: (name, module) for name in SUBJECTS for public, module in subject_module(name).RESULTS.items()},
}

__all__ = [*_PUBLIC, "load"]


def __getattr__(name: str) -> Any:
    """Import an estimator, or what it returns, when it is first used."""
    if name not in _PUBLIC:
        raise AttributeError(f"module 'regard.estimators' has no attribute {name!r}")
    return getattr(subject_module(*_PUBLIC[name]), name)


def load(folder: str | Path) -> Any:
    """The model that was saved to a folder.

    >>> import tempfile, regard
    >>> model = regard.NadarayaWatson(bandwidth=0.5).fit([[0.0], [1.0], [2.0]], [0.0, 1.0, 4.0])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     again = load(model.save(folder + "/model"))
    >>> bool((again.predict([[0.7]]) == model.predict([[0.7]])).all())
    True
    """
    return restore(folder, *read_folder(folder))


def restore(folder: str | Path, config: dict[str, Any], arrays: dict[str, Any]) -> Any:
    """The model whose files were read from a folder."""
    if "checkpoint" in config:
        run = config["checkpoint"]
        step = run.get("steps", "unknown") if isinstance(run, dict) else "unknown"
        raise ValueError(
            f"{folder} is a training checkpoint (step {step}), not a finished model; resume it with the same regard fit"
            " command and --resume, or in Python with fit(…, checkpoint=…, resume=True)"
        )
    name = config.get("estimator")
    if not isinstance(name, str) or name not in ESTIMATORS:
        raise ValueError(f"{folder} holds a model of unknown kind, {name!r}")
    try:
        with torch.random.fork_rng(devices=[]):  # a model gets random weights before its own
            return getattr(subject_module(*ESTIMATORS[name]), name).from_state(config, arrays)
    except (KeyError, TypeError, AttributeError, RuntimeError) as error:
        raise ValueError(f"{folder} holds a broken model, or one of another version of regard: {error}") from None
