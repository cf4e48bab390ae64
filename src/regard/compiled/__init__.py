"""Loops compiled by Numba: the compiler with its cache on disk, threads, and the math they share.

`threads` and `dropout_hash` do without Numba, whose import takes half a second: modules of loops import it, and are
themselves imported when first called.
"""

import warnings
from collections.abc import Callable
from typing import Any


def compiled(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """As `njit`, cached on disk for the next process. Where no folder can be written, it warns and compiles again."""
    from numba import njit

    def compile_function(function: Callable[..., Any]) -> Any:
        try:
            return njit(cache=True, **options)(function)
        except RuntimeError as error:  # neither beside the source nor in the user's own folder
            warnings.warn(
                f"compiled loops cannot be cached on disk, every process will compile them again: {error};"
                " set NUMBA_CACHE_DIR to a folder that can be written",
                RuntimeWarning,
                stacklevel=2,
            )
            return njit(**options)(function)

    return compile_function
