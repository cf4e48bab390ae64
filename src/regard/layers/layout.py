"""Weights laid out in memory for steps of a few rows.

A linear map of many rows takes as long whichever way its weights lie. Of one row, or sixteen, it takes about half
the time where they lie input by input, because what is added up then lies side by side. Steps of a
decoder are of few rows.
"""

import contextlib
from collections.abc import Iterator

import torch
from torch import nn


@contextlib.contextmanager
def quick_steps(model: nn.Module) -> Iterator[None]:
    """For the time, the weights of all linear maps lie input by input; values, shapes and names stay the same.

    For writing with a cache, under `torch.inference_mode()`. It takes the memory of the weights once more, and as
    long as copying them does. Afterwards the weights are the very ones that were there before: what is
    done to them meanwhile is lost.

    >>> import torch
    >>> model = torch.nn.Linear(8, 4)
    >>> with quick_steps(model), torch.inference_mode():
    ...     model.weight.stride(), model(torch.ones(1, 8)).shape
    ((1, 4), torch.Size([1, 4]))
    >>> model.weight.stride()
    (8, 1)
    """
    before = {module.weight: module.weight.data for module in model.modules() if isinstance(module, nn.Linear)}
    try:
        with torch.inference_mode(False), torch.no_grad():
            for weight, data in before.items():
                weight.data = data.T.contiguous().T
        yield
    finally:
        for weight, data in before.items():
            weight.data = data
