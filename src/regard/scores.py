"""Scores: how well a key answers a query.

A score is a callable `(query [..., q, d], key [..., k, e]) -> [..., q, k]`; one with parameters is an
`nn.Module`. It must treat each pair of query and key alone, because `attend` may call it on blocks.
Any function of yours will do; parameters in it get gradients, wherever they are. (On the `stream`
engine gradients go to leaves, not to what was computed from them outside the score.)

A score that declares more gets a faster engine:

* `as_dot(query, key) -> (query', key', scale)`: it is an inner product, `scale · query' key'ᵀ`, and
  runs on torch's fused kernel. `dot`, `scaled_dot`, `Bilinear` and `Gaussian` are.
* `as_distance(query, key) -> (query', key')`: it is `-½‖query' - key'‖²`, of float64 vectors. `Gaussian` is.
* `width`: how many numbers it holds for each pair while it computes; default d.

The kernels, such as `Gaussian` and `Tricube`, are in `kernels.py`.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, Protocol, TypeGuard

import torch
from torch import Tensor, nn

from regard.checks import is_number, positive
from regard.kernels import Boxcar, Cosine, Epanechnikov, Gaussian, Laplace, Tricube, Triweight
from regard.torch_modes import compiling

__all__ = [
    "Additive",
    "Bilinear",
    "Boxcar",
    "Cosine",
    "Epanechnikov",
    "Gaussian",
    "Laplace",
    "Tricube",
    "Triweight",
    "constant",
    "dot",
    "scaled_dot",
    "softcap",
]

Score = Callable[[Tensor, Tensor], Tensor]


class InnerProduct(Protocol):
    """A score that is an inner product, and declares of what."""

    def as_dot(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor, float]: ...


class _SquaredDistance(Protocol):
    """A score that is -½ times a squared distance, and declares of what."""

    def as_distance(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]: ...


def is_inner_product(score: object) -> TypeGuard[InnerProduct]:
    """Whether a score declares that it is an inner product."""
    return _declares(type(score), "as_dot")


def is_squared_distance(score: object) -> TypeGuard[_SquaredDistance]:
    """Whether a score declares that it is a squared distance."""
    return _declares(type(score), "as_distance")


def _declares(kind: Any, method: str) -> bool:
    """Whether a class has the method, and no subclass below it overrides the score itself."""
    return (_find_method if compiling() else _cached_find)(kind, method)  # torch's compiler warns of caches


def _find_method(kind: Any, method: str) -> bool:
    names = ("forward", "__call__", "profile") if issubclass(kind, nn.Module) else ("__call__",)
    for ancestor in kind.__mro__:
        if method in vars(ancestor):
            return True
        if any(name in vars(ancestor) for name in names):
            return False
    return False


_cached_find = functools.cache(_find_method)


class Constant:
    """Every key answers every query alike: attention becomes the plain average.

    >>> import torch, regard
    >>> regard.attend(torch.randn(1, 2), torch.randn(3, 2), torch.tensor([[1.0], [2.0], [6.0]]), score=constant).item()
    3.0
    """

    width = 1

    def __call__(self, query: Tensor, key: Tensor) -> Tensor:
        return query.new_zeros(query.shape[:-1]).unsqueeze(-1) + key.new_zeros(key.shape[:-1]).unsqueeze(-2)

    def __repr__(self) -> str:
        return "constant"

    def __reduce__(self) -> Any:
        return "constant" if self is constant else super().__reduce__()  # a copy is the same object


class Dot:
    """query · key, or that over √d (Vaswani et al. 2017, equation 1), or times a factor of one's own, `scale`.

    >>> import torch
    >>> query, key = torch.ones(1, 4), torch.tensor([[1.0, 2.0, 3.0, 4.0]])
    >>> dot(query, key).item(), scaled_dot(query, key).item(), Dot(scale=3.0)(query, key).item()
    (10.0, 5.0, 30.0)
    """

    width = 1

    def __init__(self, scaled: bool = False, *, scale: float | None = None) -> None:
        self.scaled = scaled
        self.scale = scale

    def factor(self, size: int) -> float:
        """What the inner product of vectors of that size is multiplied by."""
        if self.scale is not None:
            return self.scale
        return size**-0.5 if self.scaled and size else 1.0

    def as_dot(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor, float]:
        size = query.shape[-1]
        if size != key.shape[-1]:
            raise ValueError(f"{self} needs query and key of one size, got {size} and {key.shape[-1]}")
        factor = self.factor(size)
        # torch's kernel may take the root of the scale.
        return (query, key, factor) if factor >= 0 else (-query, key, -factor)

    def __call__(self, query: Tensor, key: Tensor) -> Tensor:
        query, key, scale = self.as_dot(query, key)
        return (query * scale) @ key.mT

    def __repr__(self) -> str:
        if self.scale is not None:
            return f"Dot(scale={self.scale})"
        return "scaled_dot" if self.scaled else "dot"

    def __reduce__(self) -> Any:
        return str(self) if self in (dot, scaled_dot) else super().__reduce__()  # a copy is the same object


constant = Constant()
"""The score of average pooling: see `Constant`."""
dot = Dot(scaled=False)
"""query · key: see `Dot`."""
scaled_dot = Dot(scaled=True)
"""query · key / √d, the default score: see `Dot`."""


def with_scale(score: Score, scale: float | None) -> Score:
    """The same inner product times `scale` instead of its own factor; the score itself if that is None."""
    if scale is None:
        return score
    if type(score) is not Dot:
        raise ValueError(
            f"scale replaces the factor of the scores dot and scaled_dot only, got scale={scale!r} with {score!r}:"
            " multiply inside the score instead"
        )
    if not is_number(scale) or not math.isfinite(scale):
        raise ValueError(f"scale must be a finite number, got {scale!r}")
    return Dot(scale=float(scale))


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
        _check_fit(self, self.weight, query, key, *self.weight.shape)
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
        hidden = positive("hidden", hidden)
        if not callable(activation):
            raise TypeError(f"activation must be callable, such as torch.tanh, got {activation!r}")
        self.query_projection = nn.Linear(query_size, hidden, bias=bias)
        self.key_projection = nn.Linear(key_size, hidden, bias=False)
        self.weight = nn.Parameter(torch.empty(hidden))
        nn.init.uniform_(self.weight, -(hidden**-0.5), hidden**-0.5)
        self.activation = activation
        self.width = hidden

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        sizes = self.query_projection.in_features, self.key_projection.in_features
        _check_fit(self, self.weight, query, key, *sizes)
        hidden_query = self.query_projection(query).unsqueeze(-2)  # [..., q, 1, h]
        hidden_key = self.key_projection(key).unsqueeze(-3)  # [..., 1, k, h]
        hidden: Tensor = self.activation(hidden_query + hidden_key)  # [..., q, k, h]
        return hidden @ self.weight


class _Softcap(nn.Module):
    """See `softcap`."""

    def __init__(self, score: Score, cap: float) -> None:
        super().__init__()
        self.score = score
        self.cap = cap
        width = getattr(score, "width", None)
        if width is not None:
            self.width = width

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        return self.cap * torch.tanh(self.score(query, key) / self.cap)

    def extra_repr(self) -> str:
        return f"{self.score}, {self.cap}" if not isinstance(self.score, nn.Module) else f"{self.cap}"


def softcap(score: Score, cap: float) -> _Softcap:
    """cap · tanh(score / cap): the score, kept between -cap and cap (Gemma Team 2024, Gemma 2, section 2).

    >>> import torch
    >>> [round(x, 2) for x in softcap(dot, 50.0)(torch.ones(1, 1), torch.tensor([[1.0], [999.0]]))[0].tolist()]
    [1.0, 50.0]
    """
    if not callable(score):
        raise TypeError(f"score must be callable, (query, key) -> [..., q, k], got {type(score).__name__}")
    if not is_number(cap) or not 0 < cap < math.inf:
        raise ValueError(f"cap must be a positive number, got {cap!r}")
    return _Softcap(score, float(cap))


def _check_fit(score: nn.Module, weight: Tensor, query: Tensor, key: Tensor, query_size: int, key_size: int) -> None:
    """A score with weights of its own takes the sizes it was made for, in their dtype."""
    if query.dtype != weight.dtype and not torch.is_autocast_enabled(query.device.type):
        raise TypeError(
            f"{type(score).__name__} has weights of {weight.dtype}, got a query of {query.dtype}:"
            f" convert it with score.to({query.dtype})"
        )
    if (query.shape[-1], key.shape[-1]) != (query_size, key_size):
        raise ValueError(
            f"{type(score).__name__} was made for query size {query_size} and key size {key_size},"
            f" got {query.shape[-1]} and {key.shape[-1]}"
        )
