"""Loops compiled by Numba: the compiler with its cache on disk, threads, and the math they share.

`threads` and `dropout_hash` do without Numba, whose import takes half a second: modules of loops import it, and are
themselves imported when first called.
"""

import functools
import warnings
from collections.abc import Callable
from typing import Any

from regard.compiled.notice import announce_compilation


def compiled(signature: Any = None, **options: Any) -> Callable[[Callable[..., Any]], Any]:
    """As `njit`, cached on disk for the next process. Where no folder can be written, it warns and compiles again.

    With a signature, as `cfunc`: compiled now, and a function that other compiled functions can be passed.
    """
    from numba import cfunc, njit

    announce_compilation()
    compiler = njit if signature is None else functools.partial(cfunc, signature)

    def compile_function(function: Callable[..., Any]) -> Any:
        try:
            return compiler(cache=True, **options)(function)
        except RuntimeError as error:  # neither beside the source nor in the user's own folder
            warnings.warn(
                f"compiled loops cannot be cached on disk, every process will compile them again: {error};"
                " set NUMBA_CACHE_DIR to a folder that can be written",
                RuntimeWarning,
                stacklevel=2,
            )
            return compiler(**options)(function)

    return compile_function
