"""Attention over a sequence whose parts lie in several processes.

Each process of a torch.distributed group holds a part of the queries, keys and values, in the order of the ranks.
Parts may be of unequal length, also empty. `attend` gives each process attention of its own queries to the keys of
*all* processes: the same numbers as `regard.attend` in one process that holds everything, in the memory of a part.

All processes of the group must call it, with the same score, mask and settings, and all must run backward if one does.
Start them by `torchrun`: on the CPU with gloo, on GPUs with nccl.
"""

from regard.distributed.attention import attend, plan

__all__ = ["attend", "plan"]
