"""Regard: attention, from kernel regression to the Transformer.

One operation, fast at every size, and every prediction shows its evidence.

>>> import torch, regard
>>> query, key, value = torch.randn(5, 4), torch.randn(7, 4), torch.randn(7, 2)
>>> regard.attend(query, key, value).shape
torch.Size([5, 2])
"""

from typing import TYPE_CHECKING, Any

from regard import masks, scores, weighing
from regard.attend import Look, attend, attend_parts, look, plan
from regard.engines.job import Plan
from regard.parts import NOTHING, Attended, merge

if TYPE_CHECKING:
    from regard.data.bags import as_bags
    from regard.estimators import (
        BagClassifier,
        BagRegressor,
        FlatClassifier,
        FlatRegressor,
        NadarayaWatson,
        NadarayaWatsonClassifier,
        QuadraticRegressor,
        load,
    )

__version__ = "0.1.0"

__all__ = [
    "NOTHING",
    "Attended",
    "BagClassifier",
    "BagRegressor",
    "FlatClassifier",
    "FlatRegressor",
    "Look",
    "NadarayaWatson",
    "NadarayaWatsonClassifier",
    "Plan",
    "QuadraticRegressor",
    "as_bags",
    "attend",
    "attend_parts",
    "load",
    "look",
    "masks",
    "merge",
    "plan",
    "scores",
    "weighing",
]


def __getattr__(name: str) -> Any:
    """Estimators are imported when they are first asked for: scikit-learn takes its time."""
    if name == "as_bags":
        from regard.data.bags import as_bags

        return as_bags
    if name in __all__:
        from regard import estimators

        return getattr(estimators, name)
    raise AttributeError(f"module 'regard' has no attribute {name!r}")
