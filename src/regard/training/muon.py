"""Muon: steps of equal length in all directions of a matrix (Jordan et al. 2024).

    M ← μ M + (1 − μ) G        U Σ Vᵀ = μ M + (1 − μ) G        W ← W − η c √n U Vᵀ

The gradient G of a matrix, and so Adam's step, is large in a few directions and small in most, which then learn
little. U Vᵀ has the same length in all directions; a few matrix products (Newton–Schulz iteration) approximate it
without a decomposition. n is the longer side: the entries of the step have root mean square η c for every shape. With
c = 0.4 that is about Adam's, so that one learning rate η serves both (Liu et al. 2025, equation 4).

It is for weight matrices of layers. Embeddings, gains and biases step by AdamW.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.adamw import adamw

STEP_RMS = 0.4
"""c, the root mean square of the entries of a step, in learning rates."""
QUINTIC = (3.4445, -4.7750, 2.0315)
"""a, b, c of a x + b x³ + c x⁵, which applied five times takes all x from 0.002 to 1 to between 0.68 and 1.21."""


class Muon(Optimizer):
    """Muon for weight matrices, AdamW for all other parameters.

    matrices       weight matrices of layers, with two dimensions
    others         all other parameters, such as embeddings, gains and biases; `Muon.of(model, lr=…)` separates them
    lr             learning rate of both
    weight_decay   decoupled weight decay of parameters with two dimensions or more
    momentum       μ, momentum of the matrices
    betas          decay rates of AdamW's two means

    >>> import torch
    >>> line = torch.nn.Linear(3, 3)
    >>> optimizer = Muon([line.weight], [line.bias], lr=0.1)
    >>> x = torch.randn(50, 3)
    >>> for step in range(100):
    ...     optimizer.zero_grad()
    ...     loss = (line(x) - x.flip(-1) - 1).square().mean()
    ...     loss.backward()
    ...     optimizer.step()
    >>> loss.item() < 0.1
    True
    """

    def __init__(
        self,
        matrices: Iterable[nn.Parameter],
        others: Iterable[nn.Parameter],
        *,
        lr: float,
        weight_decay: float = 0.0,
        momentum: float = 0.95,
        betas: tuple[float, float] = (0.9, 0.99),
    ) -> None:
        rest = list(others)
        # "turned" marks the groups of Muon. The name is part of the format of checkpoints.
        given: list[dict[str, Any]] = [
            {"params": list(matrices), "turned": True, "weight_decay": weight_decay},
            {"params": [p for p in rest if p.ndim > 1], "turned": False, "weight_decay": weight_decay},
            {"params": [p for p in rest if p.ndim < 2], "turned": False, "weight_decay": 0.0},
        ]
        for parameter in given[0]["params"]:
            if parameter.ndim != 2:
                raise ValueError(f"matrices must have two dimensions, got shape {list(parameter.shape)}")
        groups = [group for group in given if group["params"]]
        super().__init__(groups, {"lr": lr, "momentum": momentum, "betas": betas, "eps": 1e-8})

    @classmethod
    def of(cls, model: nn.Module, **settings: Any) -> "Muon":
        """An optimizer of all parameters of a model that require gradients: Muon for `matrices_of(model)`.

        >>> model = torch.nn.TransformerEncoderLayer(8, nhead=2)
        >>> [len(group["params"]) for group in Muon.of(model, lr=0.01).param_groups]
        [3, 1, 8]
        """
        trained, matrices = [p for p in model.parameters() if p.requires_grad], set(matrices_of(model))
        return cls([p for p in trained if p in matrices], [p for p in trained if p not in matrices], **settings)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One step of all parameters that have a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            gradients = [parameter.grad for parameter in parameters]
            if parameters:
                (self._muon_step if group["turned"] else self._adamw_step)(parameters, gradients, group)
        return loss

    def _muon_step(self, matrices: list[Tensor], gradients: list[Tensor], group: dict[str, Any]) -> None:
        """The step of matrices, those of the same shape in one batch."""
        by_shape: dict[torch.Size, list[tuple[Tensor, Tensor]]] = defaultdict(list)
        for matrix, gradient in zip(matrices, gradients, strict=True):
            state = self.state[matrix]
            if not state:
                state["mean"] = torch.zeros_like(matrix)
            state["mean"].lerp_(gradient, 1 - group["momentum"])
            nesterov = squares(gradient.lerp(state["mean"], group["momentum"]))
            by_shape[nesterov.shape[1:]].append((matrix, nesterov))
        for shape, pairs in by_shape.items():
            direction = orthogonal(torch.cat([nesterov for _, nesterov in pairs]))  # [squares of all, rows, columns]
            length = group["lr"] * STEP_RMS * math.sqrt(max(shape))
            parts = torch.split(direction, [len(nesterov) for _, nesterov in pairs])
            for (matrix, _), part in zip(pairs, parts, strict=True):
                matrix.mul_(1 - group["lr"] * group["weight_decay"])
                squares(matrix).sub_(part, alpha=length)

    def _adamw_step(self, parameters: list[Tensor], gradients: list[Tensor], group: dict[str, Any]) -> None:
        """The step of all other parameters, by torch's AdamW."""
        for parameter in parameters:
            if not self.state[parameter]:
                self.state[parameter] |= {
                    "step": torch.zeros((), device=parameter.device),
                    "mean": torch.zeros_like(parameter),
                    "square": torch.zeros_like(parameter),
                }
        means, squared, steps = ([self.state[p][name] for p in parameters] for name in ("mean", "square", "step"))
        (beta1, beta2), rest = group["betas"], {name: group[name] for name in ("lr", "weight_decay", "eps")}
        kind: dict[str, Any] = {"fused": True, "amsgrad": False, "maximize": False}
        adamw(parameters, gradients, means, squared, [], steps, beta1=beta1, beta2=beta2, **kind, **rest)


def matrices_of(model: nn.Module) -> list[nn.Parameter]:
    """The weights of a model's linear and recurrent layers, except those shared with an embedding (tied weights).

    >>> import torch
    >>> model = torch.nn.Sequential(torch.nn.Embedding(50, 4), torch.nn.Linear(4, 6), torch.nn.Linear(6, 2))
    >>> [list(matrix.shape) for matrix in matrices_of(model)]
    [[6, 4], [2, 6]]
    """
    modules = list(model.modules())
    embeddings = {module.weight for module in modules if isinstance(module, nn.Embedding)}
    weights = [p for module in modules if isinstance(module, nn.Linear | nn.RNNBase) for p in module.parameters(False)]
    return [weight for weight in dict.fromkeys(weights) if weight.ndim == 2 and weight not in embeddings]


def squares(matrix: Tensor) -> Tensor:
    """A view of a matrix as the square blocks that it consists of, `[squares, n, n]`.

    So the packed matrix of queries, keys and values is three, and most of a Transformer has one shape. If neither side
    is a multiple of the other, the view is `[1, rows, columns]`.

    >>> import torch
    >>> [list(squares(torch.zeros(shape)).shape) for shape in ((6, 2), (2, 6), (2, 3))]
    [[3, 2, 2], [3, 2, 2], [1, 2, 3]]
    """
    rows, columns = matrix.shape
    if rows % columns == 0:
        return torch.unflatten(matrix, 0, (-1, columns))  # [squares, columns, columns]
    if columns % rows == 0:
        return torch.unflatten(matrix, 1, (-1, rows)).transpose(0, 1)  # [squares, rows, rows]
    return matrix.unsqueeze(0)


def orthogonal(matrices: Tensor) -> Tensor:
    """Approximately U Vᵀ of each matrix U Σ Vᵀ in `[count, rows, columns]`.

    All singular values of the result are between 0.68 and 1.21, except those that were tiny before.

    >>> import torch
    >>> values = torch.linalg.svdvals(orthogonal(torch.randn(4, 5, 7)))
    >>> bool(((values > 0.6) & (values < 1.2)).all())
    True
    """
    if matrices.shape[1] > matrices.shape[2]:
        return orthogonal(matrices.mT).mT
    first, third, fifth = QUINTIC
    x: Tensor = matrices / torch.linalg.matrix_norm(matrices, keepdim=True).clamp(min=1e-20)
    for _ in range(5):
        square = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(square, square, square, beta=third, alpha=fifth), x, beta=first)
    return x
