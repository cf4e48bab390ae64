"""Dropout without a stored mask: whether a weight is dropped is a hash of (seed, head, query, key).

Any block of the mask can be computed alone, in forward and again in backward, on any device, and `dense` and
`stream` drop the same weights for the same seed. The hash is the 32-bit mixer "lowbias32" (C. Wellons,
hash-prospector), with a second word of the row's hash added in its middle. `compiled/math.py` has the
same function for compiled loops.
"""

import torch
from torch import Tensor

WORD = 0xFFFFFFFF
FIRST, SECOND = 0x7FEB352D, 0x846CA68B
OTHER = 0x9E3779B9  # makes the second word of a row's hash unlike the first


def draw_seed() -> int:
    """A seed from torch's generator, so that `torch.manual_seed` decides what is dropped."""
    return int(torch.randint(2**62, ()).item())


def threshold(dropout: float) -> int:
    """A weight is dropped when its hash is below this."""
    return min(round(dropout * 2**32), WORD)


def keep_scale(dropout: float) -> float:
    """The factor of weights that are not dropped, so that the mean stays."""
    return 0.0 if dropout == 1 else 1 / (1 - dropout)


def row_hashes(seed: int, head: Tensor, query: Tensor) -> tuple[Tensor, Tensor]:
    """Two 32-bit words that identify a row of the mask, from the broadcast head and query indices."""
    low, high = seed & WORD, (seed >> 32) & WORD
    return tuple(mix(mix(head + word) + query) for word in (low, high ^ OTHER))  # type: ignore[return-value]


def keep_mask(dropout: float, first: Tensor, second: Tensor, key: Tensor) -> Tensor:
    """True for weights that are not dropped. Row hashes `[..., q, 1]` and key indices `[k]` give `[..., q, k]`."""
    return _scramble(first + key, second) >= threshold(dropout)


def _scramble(word: Tensor, middle: Tensor | int = 0) -> Tensor:
    """A 32-bit word whose high bits are well mixed, in int64 tensors (products wrap, low bits hold)."""
    word = word & WORD
    word = ((word ^ (word >> 16)) * FIRST) & WORD
    word = word ^ middle
    return ((word ^ (word >> 15)) * SECOND) & WORD


def mix(word: Tensor) -> Tensor:
    """The same with its low bits mixed too, fit to be hashed again."""
    word = _scramble(word)
    return word ^ (word >> 16)
