"""Training: one loop for every model that learns by gradients, from a kernel's metric to a translator.

`train` is the loop. `Recipe` has its settings, `Monitor` what is reported, `Checkpoint` where a run is saved and
whether it is resumed. `warm_cosine` and `warm_root` are the usual schedules; `Muon` is an optimizer that needs fewer
steps than AdamW. Started by `torchrun`, the same call trains one model with several processes (`ProcessGroup`).
"""

from regard.training.checkpoint import Checkpoint
from regard.training.distributed import ProcessGroup
from regard.training.loop import History, Monitor, Recipe, copied_state, train, warm_cosine, warm_root
from regard.training.muon import Muon

__all__ = [
    "Checkpoint",
    "History",
    "Monitor",
    "Muon",
    "ProcessGroup",
    "Recipe",
    "copied_state",
    "train",
    "warm_cosine",
    "warm_root",
]
