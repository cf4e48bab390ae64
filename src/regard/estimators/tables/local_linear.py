"""Local linear regression as attention to more values.

At each query, the line that fits the values best, weighted by how well their keys answer the query:

    minimise  Σ weight · ‖value - level - slopeᵀ(key - query)‖²  +  ridge · ‖slope‖²

The level, which is the prediction, needs weighted means only: of the value, of the key, and of their
products. So it is one call of `attend` with more columns in the value, and a small solve a query:

    (Cov(key) + ridge · 1) slope = Cov(key, value)
    level = Mean(value) - slopeᵀ(Mean(key) - query)

The plain average of attention (Nadaraya-Watson) is the same with a slope of 0, which is what a ridge
without bound gives. It leans where the keys lie on one side, or where the function is steep; the line
does not (Fan 1992). Points are given in units of the bandwidth, so that the ridge means the same for
every metric: along a direction in which the keys seen spread by less than √ridge bandwidths, there
is no slope to be had, and little is taken.
"""

import torch
from torch import Tensor

from regard.attend import Engine, attend
from regard.masks import Mask
from regard.scores import Score

RIDGE = 0.01
"""The spread squared, in bandwidths, below which a slope is not believed."""


def local_linear(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    score: Score,
    mask: Mask | None = None,
    ridge: float | Tensor = RIDGE,
    engine: str | Engine | None = None,
    codes: int = 0,
) -> Tensor:
    """The level at each query of the line that fits the values around it: `[q, c]`.

    query `[q, d]` and key `[k, d]` in units of the bandwidth, value `[k, c]`; the score is a kernel of
    bandwidth 1. A query that may see no key gets the mean of all values. The last `codes` columns are categories:
    the score sees them, the line does not.

    >>> import torch, regard
    >>> x = torch.tensor([[0.0], [1.0], [2.0], [3.0]])
    >>> line = local_linear(torch.tensor([[5.0]]), x, 10 * x + 1, score=regard.scores.Gaussian(1.0), ridge=1e-9)
    >>> [round(level, 2) for level in line[0].tolist()]
    [51.0]
    """
    if key.ndim != 2 or query.ndim != 2 or value.ndim != 2:
        shapes = ", ".join(str(list(x.shape)) for x in (query, key, value))
        raise ValueError(f"query, key and value must be [length, size], got {shapes}")
    # Products of what lies far from 0 lose in the covariance the digits that the difference needs.
    size = key.shape[-1] - codes
    centre, level = key[:, :size].detach().mean(dim=0), value.detach().mean(dim=0)
    columns = moments(key[:, :size] - centre, value - level)
    means = attend(query, key, columns, score=score, mask=mask, engine=engine)
    return level + level_at(query[:, :size] - centre, means, value.shape[-1], ridge)


def moments(key: Tensor, value: Tensor) -> Tensor:
    """The columns whose weighted means are needed: value, key, key × key, key × value. `[k, c + d + dd' + dc]`."""
    first, second = upper(key.shape[-1], key.device)
    crossed = (key.unsqueeze(-1) * value.unsqueeze(-2)).flatten(-2)  # [k, d·c]
    return torch.cat([value, key, key[:, first] * key[:, second], crossed], dim=-1)


def level_at(query: Tensor, means: Tensor, targets: int, ridge: float | Tensor) -> Tensor:
    """The line's level at the query, from the weighted means of the `moments`. `[q, c]`"""
    size = query.shape[-1]
    first, second = upper(size, query.device)
    value, key, square, crossed = torch.split(means, [targets, size, len(first), size * targets], dim=-1)
    product = square.new_zeros(len(query), size, size)
    product[:, first, second] = square
    product[:, second, first] = square
    covariance = product - key.unsqueeze(-1) * key.unsqueeze(-2)  # [q, d, d]
    shared = crossed.reshape(-1, size, targets) - key.unsqueeze(-1) * value.unsqueeze(-2)  # [q, d, c]
    slope = torch.linalg.solve(covariance + ridge * torch.eye(size, dtype=query.dtype, device=query.device), shared)
    rise: Tensor = (query - key).unsqueeze(-2) @ slope  # [q, 1, c]
    return value + rise.squeeze(-2)


def upper(size: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Rows and columns of a symmetric matrix's upper half: the other half is the same."""
    first, second = torch.triu_indices(size, size, device=device)
    return first, second
