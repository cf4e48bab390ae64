"""Regard: attention, from kernel regression to the Transformer.

One operation, fast at every size, and every prediction shows its evidence.

>>> import torch, regard
>>> query, key, value = torch.randn(5, 4), torch.randn(7, 4), torch.randn(7, 2)
>>> regard.attend(query, key, value).shape
torch.Size([5, 2])
"""

import importlib
from typing import TYPE_CHECKING, Any

from regard import masks, scores, weighing
from regard.attend import Look, attend, attend_parts, look, plan
from regard.engines.job import Plan
from regard.estimators import ESTIMATORS
from regard.parts import NOTHING, Attended, merge
from regard.sdpa import sdpa

if TYPE_CHECKING:
    from regard import distributed as distributed
    from regard import layers as layers
    from regard.data.bags import as_bags as as_bags
    from regard.estimators import load as load
    from regard.estimators.bags.estimator import BagClassifier as BagClassifier
    from regard.estimators.bags.estimator import BagRegressor as BagRegressor
    from regard.estimators.bags.quadratic import FlatClassifier as FlatClassifier
    from regard.estimators.bags.quadratic import FlatRegressor as FlatRegressor
    from regard.estimators.bags.quadratic import QuadraticRegressor as QuadraticRegressor
    from regard.estimators.captioning.estimator import Captioner as Captioner
    from regard.estimators.tables.attention import AttentionClassifier as AttentionClassifier
    from regard.estimators.tables.attention import AttentionRegressor as AttentionRegressor
    from regard.estimators.tables.estimator import NadarayaWatson as NadarayaWatson
    from regard.estimators.tables.estimator import NadarayaWatsonClassifier as NadarayaWatsonClassifier
    from regard.estimators.tables.partially_linear import PartiallyLinear as PartiallyLinear
    from regard.estimators.translation.estimator import Translator as Translator
    from regard.estimators.writing.estimator import Writer as Writer
    from regard.layers.watch import watch as watch

__version__ = "0.1.0"

_LATER = {
    "as_bags": "regard.data.bags",
    "distributed": "regard",
    "layers": "regard",
    "load": "regard.estimators",
    "watch": "regard.layers.watch",
    **dict.fromkeys(ESTIMATORS, "regard.estimators"),
}
"""Names that are imported when they are first used, because scikit-learn takes its time, and their modules."""

__all__ = [
    "NOTHING",
    "Attended",
    "Look",
    "Plan",
    "attend",
    "attend_parts",
    "look",
    "masks",
    "merge",
    "plan",
    "scores",
    "sdpa",
    "weighing",
    *_LATER,
]


def __getattr__(name: str) -> Any:
    """Import a name when it is first used."""
    if name not in _LATER:
        raise AttributeError(f"module 'regard' has no attribute {name!r}")
    if _LATER[name] == "regard":
        return importlib.import_module(f"regard.{name}")
    return getattr(importlib.import_module(_LATER[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
