"""Regard: attention, from kernel regression to the Transformer.

One operation, fast at every size, and every prediction shows its evidence.

>>> import torch, regard
>>> query, key, value = torch.randn(5, 4), torch.randn(7, 4), torch.randn(7, 2)
>>> regard.attend(query, key, value).shape
torch.Size([5, 2])
"""

from regard import masks, scores, weighing
from regard.attend import Look, Plan, attend, attend_parts, look, plan
from regard.parts import NOTHING, Attended, merge

__version__ = "0.1.0"

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
    "weighing",
]
