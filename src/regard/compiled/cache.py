"""Numba's compiler, with what it made kept on disk where there is a place for it."""

import warnings
from collections.abc import Callable
from typing import Any

from numba import cfunc, njit


def compiled(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """As `njit`, and the next process finds the result on disk. Where nothing can be written, it compiles again."""
    return kept_on_disk(njit, **options)


def compiled_for_c(signature: Any) -> Callable[[Callable[..., Any]], Any]:
    """As `cfunc`, kept in the same way: `.address` is that of a C function."""
    return kept_on_disk(cfunc, sig=signature, nopython=True)


def kept_on_disk(compiler: Any, **options: Any) -> Callable[[Callable[..., Any]], Any]:
    """One of Numba's compilers, with its results on disk where they can be."""

    def compile_it(function: Callable[..., Any]) -> Any:
        try:
            return compiler(cache=True, **options)(function)
        except RuntimeError as error:  # neither beside the source nor in the user's own folder
            warnings.warn(
                f"compiled loops cannot be kept on disk, every process will compile them again: {error};"
                " set NUMBA_CACHE_DIR to a folder that can be written",
                RuntimeWarning,
                stacklevel=2,
            )
            return compiler(**options)(function)

    return compile_it
