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
    from regard.data.bags import as_bags
    from regard.estimators import (
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
        load,
    )
    from regard.layers.watch import watch

__version__ = "0.1.0"

__all__ = [
    "NOTHING",
    "Attended",
    "BagClassifier",
    "BagRegressor",
    "Captioner",
    "FlatClassifier",
    "FlatRegressor",
    "Look",
    "NadarayaWatson",
    "NadarayaWatsonClassifier",
    "Plan",
    "QuadraticRegressor",
    "Translator",
    "Writer",
    "as_bags",
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


LATER = {"layers": "regard.layers", "watch": "regard.layers.watch", "as_bags": "regard.data.bags"}
"""Where names are that are not estimators and not yet imported."""


def __getattr__(name: str) -> Any:
    """What takes its time to import, as scikit-learn does, is imported when it is first asked for."""
    if name not in __all__:
        raise AttributeError(f"module 'regard' has no attribute {name!r}")
    home = importlib.import_module(LATER.get(name, "regard.estimators"))
    return home if name == "layers" else getattr(home, name)
