"""A compiled function on torch's own threads.

Between torch's products its threads stay awake for a while, in wait for the next. Threads of ours, as `threads.py` has
them, would have to share the cores with those, and take longer to start than a short loop takes. So a short loop
between products runs on torch's: OpenMP's entry for a parallel region is called as a compiler would call it, in the
library that torch has loaded. That is GNU's on Linux; elsewhere there is none, and `team` says so.
"""

import ctypes
import functools
import os
from pathlib import Path
from typing import Any

import torch

Array = Any


@functools.cache
def gnu() -> Any:
    """`GOMP_parallel` of the library that torch has loaded; None where it has another."""
    for path in sorted(Path(torch.__file__).parent.glob("lib/libgomp*.so*")):
        try:
            region = ctypes.CDLL(str(path), mode=os.RTLD_NOLOAD | os.RTLD_LAZY).GOMP_parallel
        except (OSError, AttributeError):
            continue
        region.argtypes, region.restype = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint], None
        return region
    return None


def team() -> bool:
    """Whether torch's threads can be asked."""
    return gnu() is not None


def run(function: int, numbers: Array) -> None:
    """Call the C function at an address on each of torch's threads, with the address of the int64 numbers."""
    gnu()(function, numbers.ctypes.data, torch.get_num_threads(), 0)
