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
from regard.parts import NOTHING, Attended, merge

if TYPE_CHECKING:
    from regard import layers
    from regard.estimators import NadarayaWatson, NadarayaWatsonClassifier, load
    from regard.layers.watch import watch

__version__ = "0.1.0"

__all__ = [
    "NOTHING",
    "Attended",
    "Look",
    "NadarayaWatson",
    "NadarayaWatsonClassifier",
    "Plan",
    "attend",
    "attend_parts",
    "layers",
    "load",
    "look",
    "masks",
    "merge",
    "plan",
    "scores",
    "watch",
    "weighing",
]


def __getattr__(name: str) -> Any:
    """Layers and estimators are imported when they are first asked for: scikit-learn takes its time."""
    if name in ("layers", "watch"):
        layers = importlib.import_module("regard.layers")
        return layers if name == "layers" else layers.watch
    if name in __all__:
        from regard import estimators

        return getattr(estimators, name)
    raise AttributeError(f"module 'regard' has no attribute {name!r}")
