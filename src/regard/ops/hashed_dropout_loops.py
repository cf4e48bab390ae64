"""The loop of `residual.py`, in Numba: dropout of rows and the sum they go into, in one pass."""

from typing import Any

import numpy as np

from regard.compiled import compiled
from regard.compiled.math import EXACT, hash_word, mix_word


@compiled(nogil=True, fastmath=EXACT)
def sift(base: Any, branch: Any, out: Any, adds: Any, start: Any, low: Any, high: Any, drop: Any, scale: Any) -> None:  # noqa: PLR0913
    """out = base (where it adds) + kept branch · scale, for rows of which the first has the number `start`.

    low, high     the seed's two words, as `dropout.row_keys` takes them with a lead of 0
    drop, scale   the dropout threshold and what is kept is multiplied by; all is dropped where that is 0
    """
    nothing = out.dtype.type(0)
    for i in range(out.shape[0]):
        number = np.uint32(start + i)
        first, second = mix_word(np.uint32(mix_word(low) + number)), mix_word(np.uint32(mix_word(high) + number))
        here, there, into = base[i], branch[i], out[i]
        if scale == 0:
            for j in range(into.shape[0]):
                into[j] = here[j] if adds else nothing
        elif adds:
            for j in range(into.shape[0]):
                into[j] = here[j] + (nothing if hash_word(first, second, j) < drop else there[j] * scale)
        else:
            for j in range(into.shape[0]):
                into[j] = nothing if hash_word(first, second, j) < drop else there[j] * scale
