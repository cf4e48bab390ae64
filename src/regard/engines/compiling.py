"""Numba's compiler, with what it made kept on disk where there is a place for it."""

import warnings
from collections.abc import Callable
from typing import Any

from numba import njit


def compiled(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """As `njit`, and the next process finds the result on disk. Where nothing can be written, it compiles again."""

    def compile_it(function: Callable[..., Any]) -> Any:
        try:
            return njit(cache=True, **options)(function)
        except RuntimeError as error:  # neither beside the source nor in the user's own folder
            warnings.warn(
                f"compiled loops cannot be kept on disk, every process will compile them again: {error};"
                " set NUMBA_CACHE_DIR to a folder that can be written",
                RuntimeWarning,
                stacklevel=2,
            )
            return njit(**options)(function)

    return compile_it
