"""The Numba loop of `hashed_dropout`: dropout of rows and the sum they go into, in one pass."""

from typing import NamedTuple

import numpy as np

from regard.compiled import compiled
from regard.compiled.math import EXACT, Floats, hash_word, mix_word


class Mask(NamedTuple):
    """What the dropout mask is computed from."""

    low: np.uint32  # the two words of the seed
    high: np.uint32
    threshold: np.uint32  # an element is dropped if its hash is below
    scale: np.floating  # factor of the others; 0: all are dropped


@compiled(nogil=True, fastmath=EXACT)
def drop(base: Floats, branch: Floats, out: Floats, adds: bool, start: int, mask: Mask) -> None:
    """out = base (if `adds`) + kept branch · scale, for rows of which the first has the index `start`."""
    zero = out.dtype.type(0)
    low, high, threshold, scale = mask
    for i in range(out.shape[0]):
        row = np.uint32(start + i)
        first, second = mix_word(np.uint32(mix_word(low) + row)), mix_word(np.uint32(mix_word(high) + row))
        old, new, into = base[i], branch[i], out[i]
        if scale == 0:
            for j in range(into.shape[0]):
                into[j] = old[j] if adds else zero
        elif adds:
            for j in range(into.shape[0]):
                into[j] = old[j] + (zero if hash_word(first, second, j) < threshold else new[j] * scale)
        else:
            for j in range(into.shape[0]):
                into[j] = zero if hash_word(first, second, j) < threshold else new[j] * scale
