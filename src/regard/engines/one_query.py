"""One new query for each of several sequences against all that is kept of it: the attention of a step of writing.

    out[row, head] = Σᵢ softmaxᵢ(query · key_i / √size) value_i        over the first `length` of the row's store

It reads each key and value once, and computes next to nothing: all that counts is that they come as fast as memory
gives them. torch's fused attention is made for many queries a head, and with one gets a third of that.
"""

import numpy as np
import torch
from torch import Tensor

from regard.engines import openmp

SIZE = 32
"""What a head's size must be a multiple of."""
WORTH = 2**20
"""Numbers in a store from which it is: Numba's import, once, takes longer than small stores are read in."""


def fits(query: Tensor, store: Tensor) -> bool:
    """Whether the loop does it: float32 on the CPU, and enough of it."""
    plain = all(x.device.type == "cpu" and x.dtype == torch.float32 for x in (query, store))
    return plain and store.shape[-1] % SIZE == 0 and store.numel() >= WORTH and openmp.team()


def attend_one(query: Tensor, store: Tensor, length: int) -> Tensor:
    """The means `[rows, heads, size]`, without gradients.

    query   `[rows, heads, size]`, the heads of a row behind each other in memory
    store   `[rows, 2, kv_heads, room, size]`, contiguous: keys and values, of which the first `length` count. Heads
            are those of `kv_heads` by turns of equal length
    """
    from regard.engines import one_query_loops

    rows, heads, size = query.shape
    _, _, kv_heads, room, _ = store.shape
    if query.stride()[1:] != (size, 1):
        query = query.contiguous()
    out = query.new_empty(rows, heads, size)
    addresses = [tensor.data_ptr() for tensor in (query, store, out)]
    sizes = [rows, heads, query.stride(0), kv_heads, room, length, size]
    openmp.run(one_query_loops.attend_all.address, np.array([*addresses, *sizes, 0], dtype=np.int64))
    return out
