"""Estimators: scikit-learn's contract, and two verbs more: `evidence` and `save`."""

from pathlib import Path
from typing import Any

import torch

from regard.estimators.bags.estimator import BagClassifier, BagRegressor
from regard.estimators.bags.evidence import BagEvidence
from regard.estimators.bags.quadratic import FlatClassifier, FlatRegressor, QuadraticRegressor
from regard.estimators.captioning.estimator import Captioner
from regard.estimators.captioning.evidence import CaptionEvidence
from regard.estimators.tables.estimator import NadarayaWatson, NadarayaWatsonClassifier
from regard.estimators.tables.evidence import Evidence
from regard.estimators.translation.estimator import Translator
from regard.estimators.translation.evidence import Alignment, TranslationScore
from regard.estimators.writing.estimator import Writer
from regard.estimators.writing.evidence import TextEvidence
from regard.saving import read

__all__ = [
    "Alignment",
    "BagClassifier",
    "BagEvidence",
    "BagRegressor",
    "CaptionEvidence",
    "Captioner",
    "Evidence",
    "FlatClassifier",
    "FlatRegressor",
    "NadarayaWatson",
    "NadarayaWatsonClassifier",
    "QuadraticRegressor",
    "TextEvidence",
    "TranslationScore",
    "Translator",
    "Writer",
    "load",
]

SAVED: dict[str, Any] = {
    kind.__name__: kind
    for kind in (
        BagClassifier,
        BagRegressor,
        Captioner,
        FlatClassifier,
        FlatRegressor,
        NadarayaWatson,
        NadarayaWatsonClassifier,
        QuadraticRegressor,
        Translator,
        Writer,
    )
}


def load(folder: str | Path) -> Any:
    """The model that was saved to a folder.

    >>> import tempfile, regard
    >>> model = regard.NadarayaWatson(bandwidth=0.5).fit([[0.0], [1.0], [2.0]], [0.0, 1.0, 4.0])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     again = load(model.save(folder + "/model"))
    >>> bool((again.predict([[0.7]]) == model.predict([[0.7]])).all())
    True
    """
    return restored(folder, *read(folder))


def steps_of(config: dict[str, Any]) -> Any:
    """How many steps a run has done."""
    run = config["checkpoint"]
    return run.get("steps", "some") if isinstance(run, dict) else "some"


def restored(folder: str | Path, config: dict[str, Any], arrays: dict[str, Any]) -> Any:
    """The model that was read from a folder."""
    if "checkpoint" in config:
        raise ValueError(
            f"{folder} holds no model, but a run, as it stood after {steps_of(config)} steps: go on with it by regard"
            " fit … --resume, with the text, settings and --out that it was begun with, or in Python by"
            " fit(…, checkpoint=…, resume=True)"
        )
    if not isinstance(config.get("estimator"), str) or config["estimator"] not in SAVED:
        raise ValueError(f"{folder} holds a model of unknown kind, {config.get('estimator')!r}")
    try:
        with torch.random.fork_rng(devices=[]):  # a model is made with new weights before it gets its own
            return SAVED[config["estimator"]].from_state(config, arrays)
    except (KeyError, TypeError, AttributeError, RuntimeError) as error:
        raise ValueError(f"{folder} holds a model that is broken, or of another version of regard: {error}") from None
