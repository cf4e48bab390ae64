"""Where torch reads the program instead of running it: `torch.compile`, `torch.export`, `torch.func`.

There nothing can be decided by what numbers are, and loops that are not torch's cannot be seen into.
"""

import torch


def compiling() -> bool:
    """Whether the program is read to be compiled or exported."""
    return torch.compiler.is_compiling()


def transforming() -> bool:
    """Whether this runs within `vmap`, `grad`, `jvp` or another transformation of `torch.func`.

    >>> import torch
    >>> seen = []
    >>> _ = torch.func.vmap(lambda x: seen.append(transforming()) or x)(torch.ones(2, 3))
    >>> seen, transforming()
    ([True], False)
    """
    return not torch.compiler.is_compiling() and torch._C._functorch.peek_interpreter_stack() is not None
