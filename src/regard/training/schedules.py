"""How the learning rate goes: up at first, while the optimizer knows nothing, then down.

Each is a factor on the optimizer's own rate, step by step.
"""

import math

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR


def warm_cosine(optimizer: Optimizer, steps: int, *, warm: int = 0, least: float = 0.1) -> LambdaLR:
    """A straight line up for `warm` steps, then half a cosine down to `least` of the rate at `steps`, and on there.

    >>> import torch
    >>> optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    >>> schedule = warm_cosine(optimizer, 10, warm=2, least=0.0)
    >>> [round(schedule.lr_lambdas[0](step), 2) for step in (0, 1, 2, 6, 10, 99)]
    [0.5, 1.0, 1.0, 0.5, 0.0, 0.0]
    """
    check_steps(steps, warm)

    def factor(step: int) -> float:
        if step < warm:
            return (step + 1) / warm
        share = min(1.0, (step - warm) / max(1, steps - warm))
        return least + (1 - least) * 0.5 * (1 + math.cos(math.pi * share))

    return LambdaLR(optimizer, factor)


def warm_root(optimizer: Optimizer, *, warm: int) -> LambdaLR:
    """A straight line up for `warm` steps, then as 1/√step (Vaswani et al. 2017, 5.3), with 1 at the top.

    >>> import torch
    >>> optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    >>> schedule = warm_root(optimizer, warm=4)
    >>> [round(schedule.lr_lambdas[0](step), 2) for step in (0, 3, 15)]
    [0.25, 1.0, 0.5]
    """
    check_steps(warm, 0)
    return LambdaLR(optimizer, lambda step: min((step + 1) / warm, math.sqrt(warm / (step + 1))))


def check_steps(steps: int, warm: int) -> None:
    """A schedule has a length."""
    if steps < 1 or not 0 <= warm <= steps:
        raise ValueError(f"a schedule needs steps ≥ 1 and 0 ≤ warm ≤ steps, got steps={steps} and warm={warm}")
