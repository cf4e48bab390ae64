"""Where torch reads the program instead of running it: `torch.compile`, `torch.export`, `torch.func`.

There nothing can be decided by what numbers are, and loops that are not torch's cannot be seen into.
"""

import torch
from torch import Tensor


def compiling() -> bool:
    """Whether the program is read to be compiled or exported."""
    return torch.compiler.is_compiling()


def transformed(*tensors: Tensor) -> bool:
    """Whether some of them stand for others, within `vmap`, `grad`, `jvp` and the like of `torch.func`.

    >>> import torch
    >>> seen = []
    >>> _ = torch.func.vmap(lambda x: seen.append(transformed(x)) or x)(torch.ones(2, 3))
    >>> seen, transformed(torch.ones(3))
    ([True], False)
    """
    return not compiling() and any(map(torch._C._functorch.is_functorch_wrapped_tensor, tensors))
