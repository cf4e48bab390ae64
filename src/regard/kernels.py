"""Kernels as scores: attention that is kernel regression.

Kernels are given by their logarithm, so that softmax of the score is the kernel over its sum:
Nadaraya-Watson regression is `attend(x, X, y, score=Gaussian(bandwidth))`. They are functions of
u = ‖H⁻¹(query - key)‖, where the bandwidth H is a number, one number a feature, or a matrix.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from regard.checks import is_number


class Kernel(nn.Module):
    """What the kernels share: the bandwidth H, and the distance u = ‖H⁻¹(query - key)‖.

    From queries `[..., q, d]` and keys `[..., k, d]` to scores `[..., q, k]`.

    `bandwidth` is a positive number, a vector of them (one a feature), or an invertible matrix; the
    number h, the vector (h, …, h) and the matrix h·I are the same kernel. It is learned when it is an
    `nn.Parameter`, or made from one: `Gaussian(log_bandwidth.exp())`.

    >>> import torch
    >>> point, key = torch.tensor([[0.0, 0.0]]), torch.tensor([[3.0, 4.0]])
    >>> same = (2.0, torch.tensor([2.0, 2.0]), 2.0 * torch.eye(2))
    >>> [Gaussian(bandwidth).distance(point, key).item() for bandwidth in same]
    [2.5, 2.5, 2.5]
    """

    bandwidth: Tensor

    def __init__(self, bandwidth: float | Tensor = 1.0) -> None:
        super().__init__()
        if not isinstance(bandwidth, Tensor) and not is_number(bandwidth):
            raise TypeError(f"bandwidth must be a number or a tensor, got {type(bandwidth).__name__}")
        if isinstance(bandwidth, Tensor) and (bandwidth.is_complex() or bandwidth.dtype == torch.bool):
            raise TypeError(f"bandwidth must be of real numbers, got {bandwidth.dtype}")
        if isinstance(bandwidth, nn.Parameter) or (isinstance(bandwidth, Tensor) and bandwidth.requires_grad):
            self.bandwidth = bandwidth
        else:
            # A setting, not state: kept as it was written, whatever dtype and device the module goes to.
            self.bandwidth = torch.as_tensor(bandwidth, dtype=torch.float64, device="cpu").clone()
        self.check_bandwidth()

    def check_bandwidth(self) -> None:
        bandwidth = self.bandwidth.detach()
        if bandwidth.ndim > 2 or (bandwidth.ndim == 2 and bandwidth.shape[0] != bandwidth.shape[1]):
            shape = list(bandwidth.shape)
            raise ValueError(f"bandwidth must be a number, a vector or a square matrix, got shape {shape}")
        if bandwidth.ndim < 2 and not bool((bandwidth > 0).all() & bandwidth.isfinite().all()):
            worst = bandwidth.flatten()[~((bandwidth > 0) & bandwidth.isfinite()).flatten()][0].item()
            raise ValueError(
                f"bandwidth must be positive and finite, got {worst:g}"
                " (to learn one that cannot leave its range, make it the exp of your parameter)"
            )
        if bandwidth.ndim == 2 and not (
            bool(bandwidth.isfinite().all()) and int(torch.linalg.matrix_rank(bandwidth)) == len(bandwidth)
        ):
            raise ValueError(f"a bandwidth matrix must be finite and invertible, got {bandwidth.tolist()}")

    def stretch(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """Query and key in units of the bandwidth, in float64 where there is one.

        They are large where the bandwidth is small, and what counts is their small difference: rounded to
        float32 here, it would lose the digits that the input has.
        """
        if self.bandwidth.requires_grad and self.bandwidth.ndim < 2:  # learning may lead anywhere
            self.check_bandwidth()
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
        """u, from differences: torch's default for many points cancels, and loses half the digits."""
        stretched = self.stretch(query, key)
        return torch.cdist(*stretched, compute_mode="donot_use_mm_for_euclid_dist").to(query.dtype)

    def extra_repr(self) -> str:
        return f"bandwidth={self.bandwidth.tolist()}"


class Gaussian(Kernel):
    """log exp(-u²/2), so that `attend` with it is Nadaraya-Watson regression.

    Up to a constant, `attend_parts(…).log_weight` is then the log of a kernel density estimate.

    >>> import torch, regard
    >>> x, y = torch.tensor([[0.0], [1.0]]), torch.tensor([[10.0], [20.0]])
    >>> regard.attend(torch.tensor([[0.5]]), x, y, score=Gaussian(0.3)).tolist()
    [[15.0]]
    """

    def as_distance(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        return self.stretch(query, key)

    def as_dot(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor, float]:
        """-½‖q - k‖² = [q, 1, -½‖q‖²] · [k, -½‖k‖², 1].

        What cancels there costs digits: a score is off by about eps·‖q‖‖k‖. So the vectors are taken about
        the keys' centre, and where that does not bring them near enough the product is one of float64.
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

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        return -0.5 * self.distance(query, key).square()


class Laplace(Kernel):
    """log exp(-u).

    >>> import torch
    >>> score = Laplace(2.0)(torch.tensor([[0.0]]), torch.tensor([[0.0], [1.0], [5.0]]))
    >>> score.double().exp().round(decimals=3).tolist()
    [[1.0, 0.607, 0.082]]
    """

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        return -self.distance(query, key)


class Epanechnikov(Kernel):
    """log(1 - u²) for u < 1, else -inf.

    >>> import torch
    >>> score = Epanechnikov(2.0)(torch.tensor([[0.0]]), torch.tensor([[0.0], [1.0], [5.0]]))
    >>> score.double().exp().round(decimals=3).tolist()
    [[1.0, 0.75, 0.0]]
    """

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        return supported(self.distance(query, key), lambda u: torch.log1p(-u.square()))


class Boxcar(Kernel):
    """0 for u < 1, else -inf: the plain average of the neighbours.

    >>> import torch
    >>> score = Boxcar(2.0)(torch.tensor([[0.0]]), torch.tensor([[0.0], [1.0], [5.0]]))
    >>> score.double().exp().round(decimals=3).tolist()
    [[1.0, 1.0, 0.0]]
    """

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        return supported(self.distance(query, key), lambda u: 0.0 * u)


class Tricube(Kernel):
    """3 log(1 - u³) for u < 1, else -inf: the kernel of LOESS.

    >>> import torch
    >>> score = Tricube(2.0)(torch.tensor([[0.0]]), torch.tensor([[0.0], [1.0], [5.0]]))
    >>> score.double().exp().round(decimals=3).tolist()
    [[1.0, 0.67, 0.0]]
    """

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        return supported(self.distance(query, key), lambda u: 3.0 * torch.log1p(-u.pow(3)))


class Mixed(nn.Module):
    """A kernel of numbers times one of each categorical column.

        log K(‖H⁻¹(query - key)‖) - Σ (slope · |code - code'| + jump · [code ≠ code'])

    The last columns of query and key are codes, whole numbers, one column for each entry of `slope` and
    `jump`. A slope of 0 is the kernel of Aitchison and Aitken (1976) for unordered categories, a jump of
    log 2 that of Wang and van Ryzin (1981) for ordered ones.

    >>> import torch
    >>> score = Mixed(Gaussian(1.0), slope=torch.tensor([0.0]), jump=torch.tensor([2.0]))
    >>> score(torch.tensor([[0.0, 1.0]]), torch.tensor([[0.0, 1.0], [0.0, 5.0]])).tolist()
    [[-0.0, -2.0]]
    """

    def __init__(self, kernel: Kernel, slope: Tensor, jump: Tensor) -> None:
        super().__init__()
        if slope.ndim != 1 or slope.shape != jump.shape:
            raise ValueError(
                "slope and jump must be vectors with one entry a column,"
                f" got shapes {list(slope.shape)} and {list(jump.shape)}"
            )
        self.kernel, self.slope, self.jump = kernel, slope, jump

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        columns = len(self.jump)
        if not min(query.shape[-1], key.shape[-1]) >= columns:
            raise ValueError(
                f"{columns} columns of codes need query and key of at least that size,"
                f" got {query.shape[-1]} and {key.shape[-1]}"
            )
        score: Tensor = self.kernel(*(x[..., : x.shape[-1] - columns] for x in (query, key)))
        slope, jump = (x.to(query.device, query.dtype) for x in (self.slope, self.jump))
        for column in range(columns):
            place = column - columns
            apart = (query[..., :, None, place] - key[..., None, :, place]).abs()
            score = score - slope[column] * apart - jump[column] * (apart > 0)
        return score

    def extra_repr(self) -> str:
        return f"slope={self.slope.tolist()}, jump={self.jump.tolist()}"


DOT_LIMIT = 2.0**20
"""How far apart, in bandwidths squared, points may lie for the inner product of float64 to be theirs to 1e-9."""
DOT_REACH = 4.0
"""How far apart, in bandwidths squared, float32 points may lie for their distance to be had from an
inner product with an error below twice that of their difference, in value and in gradient (`tests/test_engines.py`)."""


def centred(query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
    """About the keys' centre. A key that is NaN or infinite does not spread through it to all others."""
    centre = key.detach().nanmean(dim=-2, keepdim=True).nan_to_num(0.0, 0.0, 0.0)
    return query - centre, key - centre


def reach(query: Tensor, key: Tensor) -> float:
    """The largest ‖q‖‖k‖: what the digits lost to cancellation are in proportion to."""
    if not query.numel() or not key.numel():
        return 0.0
    return float(query.detach().norm(dim=-1).max() * key.detach().norm(dim=-1).max())


def supported(distance: Tensor, profile: Callable[[Tensor], Tensor]) -> Tensor:
    """The profile inside the support, -inf outside it, with a finite slope everywhere."""
    outside = distance >= 1
    return profile(distance.masked_fill(outside, 0.0)).masked_fill(outside, -torch.inf)
