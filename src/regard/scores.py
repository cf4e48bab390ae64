"""Scores: how well a key answers a query.

A score is a callable `(query [..., q, d], key [..., k, e]) -> [..., q, k]`; one with parameters is an
`nn.Module`. It must treat each pair of query and key alone, because `attend` may call it on blocks.
A function of the user's own is as good as these.

A score that can say more gets a faster engine:

* `as_dot(query, key) -> (query', key', scale)`: it is an inner product, `scale · query' key'ᵀ`, and
  runs on torch's fused kernel. `dot`, `scaled_dot`, `Bilinear` and `Gaussian` are.
* `as_distance(query, key) -> (query', key')`: it is `-½‖query' - key'‖²`, of float64 vectors. `Gaussian` is.
* `width`: how many numbers it holds for each pair while it computes; d where it is not said.

Kernels are given by their logarithm, so that softmax of the score is the kernel over its sum:
Nadaraya-Watson regression is `attend(x, X, y, score=Gaussian(bandwidth))`. They are functions of
u = ‖H⁻¹(query - key)‖, where the bandwidth H is a number, one number a feature, or a matrix.
"""

from collections.abc import Callable
from typing import Protocol, TypeGuard

import torch
from torch import Tensor, nn

Score = Callable[[Tensor, Tensor], Tensor]


class InnerProduct(Protocol):
    """A score that is an inner product, and says of what."""

    def as_dot(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor, float]: ...


class SquaredDistance(Protocol):
    """A score that is -½ times a squared distance, and says of what."""

    def as_distance(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]: ...


def is_inner_product(score: object) -> TypeGuard[InnerProduct]:
    """Whether a score says it is an inner product."""
    return hasattr(score, "as_dot")


def is_squared_distance(score: object) -> TypeGuard[SquaredDistance]:
    """Whether a score says it is a squared distance."""
    return hasattr(score, "as_distance")


class Constant:
    """Every key answers every query alike: attention becomes the plain average."""

    width = 1

    def __call__(self, query: Tensor, key: Tensor) -> Tensor:
        return query.new_zeros(query.shape[:-1]).unsqueeze(-1) + key.new_zeros(key.shape[:-1]).unsqueeze(-2)

    def __repr__(self) -> str:
        return "constant"


class Dot:
    """query · key, or that over √d (Vaswani et al. 2017, equation 1)."""

    width = 1

    def __init__(self, scaled: bool) -> None:
        self.scaled = scaled

    def as_dot(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor, float]:
        size = query.shape[-1]
        if size != key.shape[-1]:
            raise ValueError(f"{self} needs query and key of one size, got {size} and {key.shape[-1]}")
        return query, key, size**-0.5 if self.scaled and size else 1.0

    def __call__(self, query: Tensor, key: Tensor) -> Tensor:
        query, key, scale = self.as_dot(query, key)
        return (query * scale) @ key.mT

    def __repr__(self) -> str:
        return "scaled_dot" if self.scaled else "dot"


constant = Constant()
dot = Dot(scaled=False)
scaled_dot = Dot(scaled=True)


class Bilinear(nn.Module):
    """queryᵀ W key with a learned W: Luong's "general" score (Luong et al. 2015, equation 8).

    >>> import torch
    >>> Bilinear(3, 5)(torch.randn(2, 7, 3), torch.randn(2, 11, 5)).shape
    torch.Size([2, 7, 11])
    """

    width = 1

    def __init__(self, query_size: int, key_size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(query_size, key_size))
        nn.init.xavier_uniform_(self.weight)

    def as_dot(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor, float]:
        check_sizes(self, query, key, *self.weight.shape)
        return query @ self.weight, key, 1.0

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        query, key, _ = self.as_dot(query, key)
        return query @ key.mT

    def extra_repr(self) -> str:
        return f"{self.weight.shape[0]}, {self.weight.shape[1]}"


class Additive(nn.Module):
    """wᵀ activation(W_q query + W_k key + b): Bahdanau's score, an MLP with one hidden layer.

    (Bahdanau et al. 2015, appendix A.1.2.) With `bias=False` it is Luong's "concat",
    wᵀ tanh(W [query; key]), because W [query; key] = W_q query + W_k key.

    >>> import torch
    >>> Additive(3, 5, hidden=4)(torch.randn(2, 7, 3), torch.randn(2, 11, 5)).shape
    torch.Size([2, 7, 11])
    """

    def __init__(
        self,
        query_size: int,
        key_size: int,
        hidden: int,
        *,
        activation: Callable[[Tensor], Tensor] = torch.tanh,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.query_projection = nn.Linear(query_size, hidden, bias=bias)
        self.key_projection = nn.Linear(key_size, hidden, bias=False)
        self.weight = nn.Parameter(torch.empty(hidden))
        nn.init.uniform_(self.weight, -(hidden**-0.5), hidden**-0.5)
        self.activation = activation
        self.width = hidden

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        check_sizes(self, query, key, self.query_projection.in_features, self.key_projection.in_features)
        hidden_query = self.query_projection(query).unsqueeze(-2)  # [..., q, 1, h]
        hidden_key = self.key_projection(key).unsqueeze(-3)  # [..., 1, k, h]
        hidden: Tensor = self.activation(hidden_query + hidden_key)  # [..., q, k, h]
        return hidden @ self.weight


class Kernel(nn.Module):
    """What the kernels share: the bandwidth H, and the distance u = ‖H⁻¹(query - key)‖.

    `bandwidth` is a positive number, a vector of them (one a feature), or an invertible matrix; the
    number h, the vector (h, …, h) and the matrix h·I are the same kernel. It is learned when it is an
    `nn.Parameter`, or made from one: `Gaussian(log_bandwidth.exp())`.
    """

    bandwidth: Tensor

    def __init__(self, bandwidth: float | Tensor = 1.0) -> None:
        super().__init__()
        if isinstance(bandwidth, Tensor) and bandwidth.requires_grad:
            self.bandwidth = bandwidth
        else:
            # Numbers of the user's are float64, so that a float64 input meets the bandwidth as it was written.
            given = bandwidth.detach().clone() if isinstance(bandwidth, Tensor) else bandwidth
            self.register_buffer("bandwidth", torch.as_tensor(given, dtype=torch.float64))
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
        self.check_bandwidth()
        size = query.shape[-1]
        if size != key.shape[-1]:
            raise ValueError(f"{type(self).__name__} needs query and key of one size, got {size} and {key.shape[-1]}")
        if self.bandwidth.ndim and self.bandwidth.shape[-1] != size:
            raise ValueError(f"a bandwidth for {self.bandwidth.shape[-1]} features got query and key of size {size}")
        dtype = query.dtype if query.device.type == "mps" else torch.float64
        query, key, bandwidth = query.to(dtype), key.to(dtype), self.bandwidth.to(dtype)
        if bandwidth.ndim < 2:
            return query / bandwidth, key / bandwidth
        return torch.linalg.solve(bandwidth, query.mT).mT, torch.linalg.solve(bandwidth, key.mT).mT

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
        query, key = self.stretch(query, key)
        # A key that is NaN or infinite must not spread through the centre to all others.
        centre = key.detach().nanmean(dim=-2, keepdim=True).nan_to_num(0.0, 0.0, 0.0)
        query, key = query - centre, key - centre
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
    """log exp(-u)."""

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        return -self.distance(query, key)


class Epanechnikov(Kernel):
    """log(1 - u²) for u < 1, else -inf."""

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        return supported(self.distance(query, key), lambda u: torch.log1p(-u.square()))


class Boxcar(Kernel):
    """0 for u < 1, else -inf: the plain average of the neighbours."""

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        return supported(self.distance(query, key), lambda u: 0.0 * u)


class Tricube(Kernel):
    """3 log(1 - u³) for u < 1, else -inf: the kernel of LOESS."""

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        return supported(self.distance(query, key), lambda u: 3.0 * torch.log1p(-u.pow(3)))


DOT_REACH = 4.0
"""How far apart, in bandwidths squared, float32 points may lie for their distance to be had from an
inner product with an error below twice that of their difference, in value and in gradient (`tests/test_engines.py`)."""


def reach(query: Tensor, key: Tensor) -> float:
    """The largest ‖q‖‖k‖: what the digits lost to cancellation are in proportion to."""
    if not query.numel() or not key.numel():
        return 0.0
    return float(query.detach().norm(dim=-1).max() * key.detach().norm(dim=-1).max())


def supported(distance: Tensor, profile: Callable[[Tensor], Tensor]) -> Tensor:
    """The profile inside the support, -inf outside it, with a finite slope everywhere."""
    outside = distance >= 1
    return profile(distance.masked_fill(outside, 0.0)).masked_fill(outside, -torch.inf)


def check_sizes(score: nn.Module, query: Tensor, key: Tensor, query_size: int, key_size: int) -> None:
    """A score with weights of its own takes the sizes it was made for."""
    if (query.shape[-1], key.shape[-1]) != (query_size, key_size):
        raise ValueError(
            f"{type(score).__name__} was made for query size {query_size} and key size {key_size},"
            f" got {query.shape[-1]} and {key.shape[-1]}"
        )
