"""Training: one loop for every model that learns by gradients, from a kernel's metric to a translator.

`train` is the loop, `Checkpoint` says where a run is kept and whether it goes on, `warm_cosine` and `warm_root` are
the usual schedules, `Muon` is an optimizer that needs fewer steps than AdamW. Started by `torchrun`, the same call
trains one model with several processes.
"""

from regard.training.checkpoint import Checkpoint
from regard.training.distributed import Team
from regard.training.loop import History, copied_state, train
from regard.training.muon import Muon
from regard.training.schedules import warm_cosine, warm_root

__all__ = ["Checkpoint", "History", "Muon", "Team", "copied_state", "train", "warm_cosine", "warm_root"]
