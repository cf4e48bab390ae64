"""Estimators: scikit-learn's contract, and two verbs more: `evidence` and `save`."""

from pathlib import Path
from typing import Any

from regard.estimators.evidence import Evidence
from regard.estimators.kernel import NadarayaWatson, NadarayaWatsonClassifier
from regard.saving import read

__all__ = ["Evidence", "NadarayaWatson", "NadarayaWatsonClassifier", "load"]

SAVED: dict[str, Any] = {kind.__name__: kind for kind in (NadarayaWatson, NadarayaWatsonClassifier)}


def load(folder: str | Path) -> Any:
    """The model that was saved to a folder."""
    config, arrays = read(folder)
    if config.get("estimator") not in SAVED:
        raise ValueError(f"{folder} holds a model of unknown kind, {config.get('estimator')!r}")
    return SAVED[config["estimator"]].from_state(config, arrays)
