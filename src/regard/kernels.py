"""Kernels as scores: attention that is kernel regression.

A kernel K(u) is a function of the distance u = ‖H⁻¹(query - key)‖, where the bandwidth H is a number, one number
per feature, or a matrix. Its score is log K(u), so that softmax gives the kernel divided by its sum:
Nadaraya-Watson regression is `attend(x, X, y, score=Gaussian(bandwidth))`.

`KERNELS` is the one table of kernels. Each is a class with a `Profile`, which the engines (`engines/kernel_sums`),
the estimators and the tests read: a new kernel is one class in the table, and its name in `regard.scores`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn

from regard.checks import is_number

Arithmetic = Callable[[Any, Any], Any]
"""A function of u and u² that works on NumPy arrays and, compiled by Numba, on numbers of float32 and float64."""
_ONE, _HALF = np.float32(1), np.float32(0.5)
"""Constants of such functions: in float32, which times float64 is float64, they serve both."""


@dataclass(frozen=True)
class Profile:
    """A kernel as a function of the distance u ≥ 0, with K(0) = 1.

    log          log K(u) in torch, differentiable; a compact kernel is asked for u < 1 only
    arithmetic   the same as a function of u and u² for NumPy and for the compiled loops of `pairs`: K(u) of a
                 compact kernel, log K(u) of any other
    log_moment   p -> log ∫ K(u) uᵖ⁻¹ du over u > 0; mass and variance in any dimension follow from it
    compact      whether K(u) = 0 for u ≥ 1
    degree       n if log K(u) is proportional to uⁿ, else 0: scaled coordinates then save a product for each pair
    float32      whether `pairs` may use float32: not if K jumps, because there the last bit decides
    """

    log: Callable[[Tensor], Tensor]
    arithmetic: Arithmetic
    log_moment: Callable[[float], float]
    compact: bool = True
    degree: int = 0
    float32: bool = True

    def log_mass(self, features: int) -> float:
        """The log of the kernel's integral over the whole space of that many features."""
        if features == 0:
            return 0.0
        log_sphere = math.log(2) + 0.5 * features * math.log(math.pi) - math.lgamma(features / 2)
        return log_sphere + self.log_moment(features)

    def deviation(self, features: int) -> float:
        """The standard deviation of the kernel with bandwidth 1 along one axis of that many features."""
        if features == 0:
            return 1.0
        return math.sqrt(math.exp(self.log_moment(features + 2) - self.log_moment(features)) / features)


def _log_beta(a: float, b: float) -> float:
    """log B(a, b), where B(a, b) = ∫ tᵃ⁻¹ (1 - t)ᵇ⁻¹ dt over 0 < t < 1."""
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)


class Kernel(nn.Module):
    """A score that is log K(u) of the distance u = ‖H⁻¹(query - key)‖, and what all kernels share: the bandwidth H.

    From queries `[..., q, d]` and keys `[..., k, d]` to scores `[..., q, k]`.

    `bandwidth` is a positive number, a vector of them (one per feature), or an invertible matrix; the
    number h, the vector (h, …, h) and the matrix h·I are the same kernel. It is learned if it is an
    `nn.Parameter`, or computed from one: `Gaussian(log_bandwidth.exp())`.

    >>> import torch
    >>> point, key = torch.tensor([[0.0, 0.0]]), torch.tensor([[3.0, 4.0]])
    >>> same = (2.0, torch.tensor([2.0, 2.0]), 2.0 * torch.eye(2))
    >>> [Gaussian(bandwidth).distance(point, key).item() for bandwidth in same]
    [2.5, 2.5, 2.5]
    """

    bandwidth: Tensor
    profile: ClassVar[Profile]

    def __init__(self, bandwidth: float | Tensor = 1.0) -> None:
        super().__init__()
        if not isinstance(bandwidth, Tensor) and not is_number(bandwidth):
            raise TypeError(f"bandwidth must be a number or a tensor, got {type(bandwidth).__name__}")
        if isinstance(bandwidth, Tensor) and (bandwidth.is_complex() or bandwidth.dtype == torch.bool):
            raise TypeError(f"bandwidth must be of real numbers, got {bandwidth.dtype}")
        if isinstance(bandwidth, nn.Parameter) or (isinstance(bandwidth, Tensor) and bandwidth.requires_grad):
            self.bandwidth = bandwidth
        else:
            # A setting, not state: it stays as given, whatever dtype and device the module is moved to.
            self.bandwidth = torch.as_tensor(bandwidth, dtype=torch.float64, device="cpu").clone()
        self._check_bandwidth()

    def _check_bandwidth(self) -> None:
        bandwidth = self.bandwidth.detach()
        if bandwidth.ndim > 2 or (bandwidth.ndim == 2 and bandwidth.shape[0] != bandwidth.shape[1]):
            shape = list(bandwidth.shape)
            raise ValueError(f"bandwidth must be a number, a vector or a square matrix, got shape {shape}")
        if bandwidth.ndim < 2 and not bool((bandwidth > 0).all() & bandwidth.isfinite().all()):
            worst = bandwidth.flatten()[~((bandwidth > 0) & bandwidth.isfinite()).flatten()][0].item()
            raise ValueError(
                f"bandwidth must be positive and finite, got {worst:g}"
                " (to learn one that stays positive, make it the exp of your parameter)"
            )
        if bandwidth.ndim == 2 and not (
            bool(bandwidth.isfinite().all()) and int(torch.linalg.matrix_rank(bandwidth)) == len(bandwidth)
        ):
            raise ValueError(f"a bandwidth matrix must be finite and invertible, got {bandwidth.tolist()}")

    def stretch(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """Query and key in units of the bandwidth, in float64 if the device has it.

        Coordinates are large if the bandwidth is small, and only their small difference counts: rounding them
        to float32 here would lose digits that the input has.
        """
        if self.bandwidth.requires_grad and self.bandwidth.ndim < 2:  # an optimizer step may have made it negative
            self._check_bandwidth()
        size = query.shape[-1]
        if size != key.shape[-1]:
            raise ValueError(f"{type(self).__name__} needs query and key of one size, got {size} and {key.shape[-1]}")
        if self.bandwidth.ndim and self.bandwidth.shape[-1] != size:
            raise ValueError(f"a bandwidth for {self.bandwidth.shape[-1]} features got query and key of size {size}")
        dtype = query.dtype if query.device.type == "mps" else torch.float64
        query, key, bandwidth = query.to(dtype), key.to(dtype), self.bandwidth.to(query.device, dtype)
        if bandwidth.ndim < 2:
            return query / bandwidth, key / bandwidth
        try:
            return torch.linalg.solve(bandwidth, query.mT).mT, torch.linalg.solve(bandwidth, key.mT).mT
        except RuntimeError:
            raise ValueError(f"a bandwidth matrix must be finite and invertible, got {bandwidth.tolist()}") from None

    def distance(self, query: Tensor, key: Tensor) -> Tensor:
        """u, from differences: for many points torch's default is ‖q‖² - 2qk + ‖k‖², which loses half the digits."""
        stretched = self.stretch(query, key)
        return torch.cdist(*stretched, compute_mode="donot_use_mm_for_euclid_dist").to(query.dtype)

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        distance = self.distance(query, key)
        if not self.profile.compact:
            return self.profile.log(distance)
        # log K is not evaluated where it is -inf: its gradient there would be NaN.
        outside = distance >= 1
        return self.profile.log(distance.masked_fill(outside, 0.0)).masked_fill(outside, -torch.inf)

    def extra_repr(self) -> str:
        return f"bandwidth={self.bandwidth.tolist()}"


class Gaussian(Kernel):
    """K(u) = exp(-u²/2), so that `attend` with it is Nadaraya-Watson regression.

    Up to a constant, `attend_parts(…).log_weight` is then the log of a kernel density estimate.

    >>> import torch, regard
    >>> x, y = torch.tensor([[0.0], [1.0]]), torch.tensor([[10.0], [20.0]])
    >>> regard.attend(torch.tensor([[0.5]]), x, y, score=Gaussian(0.3)).tolist()
    [[15.0]]
    """

    profile = Profile(
        log=lambda u: -0.5 * u.square(),
        arithmetic=lambda u, square: -_HALF * square,
        log_moment=lambda p: (0.5 * p - 1) * math.log(2) + math.lgamma(0.5 * p),
        compact=False,
        degree=2,
    )

    def as_distance(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        return self.stretch(query, key)

    def as_dot(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor, float]:
        """-½‖q - k‖² = [q, 1, -½‖q‖²] · [k, -½‖k‖², 1].

        The terms cancel, which costs digits: a score is off by about eps·‖q‖‖k‖. So the vectors are taken relative
        to the keys' centre, and if they are still too long the product is one of float64.
        """
        dtype = query.dtype
        query, key = centred(*self.stretch(query, key))
        if reach(query, key) <= DOT_REACH:
            query, key = query.to(dtype), key.to(dtype)
        query_norm = -0.5 * query.square().sum(dim=-1, keepdim=True)
        key_norm = -0.5 * key.square().sum(dim=-1, keepdim=True)
        return (
            torch.cat([query, torch.ones_like(query_norm), query_norm], dim=-1),
            torch.cat([key, key_norm, torch.ones_like(key_norm)], dim=-1),
            1.0,
        )


class Laplace(Kernel):
    """K(u) = exp(-u).

    >>> import torch
    >>> score = Laplace(2.0)(torch.tensor([[0.0]]), torch.tensor([[0.0], [1.0], [5.0]]))
    >>> score.double().exp().round(decimals=3).tolist()
    [[1.0, 0.607, 0.082]]
    """

    profile = Profile(
        log=lambda u: -u,
        arithmetic=lambda u, square: -u,
        log_moment=lambda p: math.lgamma(p),
        compact=False,
        degree=1,
    )


class Epanechnikov(Kernel):
    """K(u) = 1 - u² for u < 1, else 0.

    >>> import torch
    >>> score = Epanechnikov(2.0)(torch.tensor([[0.0]]), torch.tensor([[0.0], [1.0], [5.0]]))
    >>> score.double().exp().round(decimals=3).tolist()
    [[1.0, 0.75, 0.0]]
    """

    profile = Profile(
        log=lambda u: torch.log1p(-u.square()),
        arithmetic=lambda u, square: _ONE - square,
        log_moment=lambda p: _log_beta(p / 2, 2) - math.log(2),
    )


class Boxcar(Kernel):
    """K(u) = 1 for u < 1, else 0: the plain average of the neighbours.

    >>> import torch
    >>> score = Boxcar(2.0)(torch.tensor([[0.0]]), torch.tensor([[0.0], [1.0], [5.0]]))
    >>> score.double().exp().round(decimals=3).tolist()
    [[1.0, 1.0, 0.0]]
    """

    profile = Profile(
        log=lambda u: 0.0 * u,
        arithmetic=lambda u, square: _ONE + 0 * square,
        log_moment=lambda p: -math.log(p),
        float32=False,
    )


class Tricube(Kernel):
    """K(u) = (1 - u³)³ for u < 1, else 0: the kernel of LOESS.

    >>> import torch
    >>> score = Tricube(2.0)(torch.tensor([[0.0]]), torch.tensor([[0.0], [1.0], [5.0]]))
    >>> score.double().exp().round(decimals=3).tolist()
    [[1.0, 0.67, 0.0]]
    """

    profile = Profile(
        log=lambda u: 3.0 * torch.log1p(-u.pow(3)),
        arithmetic=lambda u, square: (_ONE - square * u) * (_ONE - square * u) * (_ONE - square * u),
        log_moment=lambda p: _log_beta(p / 3, 4) - math.log(3),
    )


class Triweight(Kernel):
    """K(u) = (1 - u²)³ for u < 1, else 0.

    >>> import torch
    >>> score = Triweight(2.0)(torch.tensor([[0.0]]), torch.tensor([[0.0], [1.0], [5.0]]))
    >>> score.double().exp().round(decimals=3).tolist()
    [[1.0, 0.422, 0.0]]
    """

    profile = Profile(
        log=lambda u: 3.0 * torch.log1p(-u.square()),
        arithmetic=lambda u, square: (_ONE - square) * (_ONE - square) * (_ONE - square),
        log_moment=lambda p: _log_beta(p / 2, 4) - math.log(2),
    )


def _cosine_factor(terms: int = 10) -> tuple[float, ...]:
    """The power series, highest power first, of cos(πu/2) / (1 - u²) in u².

    Dividing a series by 1 - u² gives the partial sums of its coefficients. Those of cos(πu/2) add up to 0, so a
    partial sum is minus the rest, which is the form without cancellation.
    """
    taylor = [(-1) ** n * (math.pi / 2) ** (2 * n) / math.factorial(2 * n) for n in range(2 * terms)]
    return tuple(-math.fsum(taylor[n + 1 :]) for n in reversed(range(terms)))


_COSINE_FACTOR = _cosine_factor()
_COSINE_WORDS = tuple((np.float32(c), np.float32(c - float(np.float32(c)))) for c in _COSINE_FACTOR)
"""The same in two float32 words, of which float32 needs the first."""


def cosine(u: Any, square: Any) -> Any:
    """cos(πu/2) with its zero at u = 1 as a factor, so that it stays positive and precise up to there."""
    factor = square - square
    for high, low in _COSINE_WORDS:
        factor = factor * square + high + low
    return (_ONE - square) * factor


def _cosine_moment(p: float) -> float:
    """log ∫ cos(πu/2) uᵖ⁻¹ du over 0 < u < 1, term by term."""
    powers = [p + 2 * n for n in reversed(range(len(_COSINE_FACTOR)))]
    terms = (c * (1 / power - 1 / (power + 2)) for c, power in zip(_COSINE_FACTOR, powers, strict=True))
    return math.log(math.fsum(terms))


class Cosine(Kernel):
    """K(u) = cos(πu/2) for u < 1, else 0.

    >>> import torch
    >>> score = Cosine(2.0)(torch.tensor([[0.0]]), torch.tensor([[0.0], [1.0], [5.0]]))
    >>> score.double().exp().round(decimals=3).tolist()
    [[1.0, 0.707, 0.0]]
    """

    # The sine of what is missing to a right angle keeps its digits at u = 1, where the cosine is 0.
    profile = Profile(log=lambda u: (0.5 * math.pi * (1 - u)).sin().log(), arithmetic=cosine, log_moment=_cosine_moment)


KERNELS: dict[str, type[Kernel]] = {
    kernel.__name__.lower(): kernel for kernel in (Gaussian, Laplace, Epanechnikov, Boxcar, Tricube, Triweight, Cosine)
}
"""All kernels by name. The engines know only these: a subclass may have changed what the score is."""

if TYPE_CHECKING:
    KernelName = str
else:
    KernelName = Literal[tuple(KERNELS)]
    """The names as a type, from which settings of estimators and options of commands take their choices."""


class Mixed(nn.Module):
    """A kernel of numeric columns times one of each categorical column.

        log K(‖H⁻¹(query - key)‖) - Σ (per_step · |code - code'| + per_change · [code ≠ code'])

    The last columns of query and key are integer codes of categories, one column for each entry of `per_step` (what a
    step between codes subtracts) and `per_change` (what any difference subtracts). With `per_step` 0 this is the kernel
    of Aitchison and Aitken (1976) for unordered categories, with `per_change` log 2 that of Wang and van Ryzin (1981)
    for ordered ones.

    >>> import torch
    >>> score = Mixed(Gaussian(1.0), per_step=torch.tensor([0.0]), per_change=torch.tensor([2.0]))
    >>> score(torch.tensor([[0.0, 1.0]]), torch.tensor([[0.0, 1.0], [0.0, 5.0]])).tolist()
    [[-0.0, -2.0]]
    """

    def __init__(self, kernel: Kernel, per_step: Tensor, per_change: Tensor) -> None:
        super().__init__()
        if per_step.ndim != 1 or per_step.shape != per_change.shape:
            raise ValueError(
                "per_step and per_change must be vectors with one entry per column,"
                f" got shapes {list(per_step.shape)} and {list(per_change.shape)}"
            )
        self.kernel, self.per_step, self.per_change = kernel, per_step, per_change

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        columns = len(self.per_change)
        if not min(query.shape[-1], key.shape[-1]) >= columns:
            raise ValueError(
                f"{columns} columns of codes need query and key of at least that size,"
                f" got {query.shape[-1]} and {key.shape[-1]}"
            )
        score: Tensor = self.kernel(*(x[..., : x.shape[-1] - columns] for x in (query, key)))
        per_step, per_change = (x.to(query.device, query.dtype) for x in (self.per_step, self.per_change))
        for column in range(columns):
            query_code, key_code = query[..., column - columns], key[..., column - columns]  # [..., q], [..., k]
            apart = (query_code.unsqueeze(-1) - key_code.unsqueeze(-2)).abs()  # [..., q, k]
            score = score - per_step[column] * apart - per_change[column] * (apart > 0)
        return score

    def extra_repr(self) -> str:
        return f"per_step={self.per_step.tolist()}, per_change={self.per_change.tolist()}"


DOT_LIMIT = 2.0**20
"""Largest `reach` for which a float64 inner product gives squared distances to 1e-9."""
DOT_REACH = 4.0
"""Largest `reach` for which a float32 inner product gives squared distances with at most twice the error that
differences have, in value and in gradient (`tests/engines/test_engines.py`)."""


def centred(query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
    """Query and key relative to the keys' mean. A NaN or infinite key does not reach the others through it."""
    centre = key.detach().nanmean(dim=-2, keepdim=True).nan_to_num(0.0, 0.0, 0.0)
    return query - centre, key - centre


def reach(query: Tensor, key: Tensor) -> float:
    """The largest ‖q‖‖k‖, in bandwidths squared: the rounding error of an inner product is proportional to it."""
    if not query.numel() or not key.numel():
        return 0.0
    return float(query.detach().norm(dim=-1).max() * key.detach().norm(dim=-1).max())
