"""How the fused path of `stream` makes scores of vectors: by inner products, or by squared distances."""

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from regard.engines import fused_loops as loops


class Pairing(Protocol):
    """How a block of scores is computed from vectors, and its slopes are taken back to them.

    Queries are given as `ready` makes them, once for all blocks of keys.
    """

    def ready(self, query: Tensor) -> Tensor: ...

    def scores(self, query: Tensor, key: Tensor, out: Tensor) -> None: ...

    def pull(self, slope: Tensor, query: Tensor, key: Tensor, query_slope: Tensor, key_slope: Tensor) -> None: ...


@dataclass(frozen=True)
class Products:
    """scale · query · key"""

    scale: float

    def ready(self, query: Tensor) -> Tensor:
        return query * self.scale

    def scores(self, query: Tensor, key: Tensor, out: Tensor) -> None:
        torch.mm(query, key.T, out=out)

    def pull(self, slope: Tensor, query: Tensor, key: Tensor, query_slope: Tensor, key_slope: Tensor) -> None:
        query_slope.addmm_(slope, key, alpha=self.scale)
        key_slope.addmm_(slope.T, query)


class Distances:
    """-½‖query - key‖², from the differences of float64 coordinates"""

    def ready(self, query: Tensor) -> Tensor:
        return query

    def scores(self, query: Tensor, key: Tensor, out: Tensor) -> None:
        loops.distances(*two_words(query, out.dtype), *two_words(key, out.dtype), out.numpy())

    def pull(self, slope: Tensor, query: Tensor, key: Tensor, query_slope: Tensor, key_slope: Tensor) -> None:
        # In blocks of the slopes' own precision first, [features, points]: then into the sums.
        pulls = slope.new_zeros(query.T.shape), slope.new_zeros(key.T.shape)
        loops.distances_backward(
            slope.numpy(),
            *two_words(query, slope.dtype),
            *two_words(key, slope.dtype),
            *(pull.numpy() for pull in pulls),
        )
        query_slope.add_(pulls[0].T)
        key_slope.add_(pulls[1].T)


def two_words(points: Tensor, dtype: torch.dtype) -> tuple[Any, Any]:
    """Coordinates [features, points] in a lesser precision, and what they were rounded by."""
    points = points.T.contiguous()
    rounded = points.to(dtype)
    rest = torch.where(rounded.isfinite(), points - rounded, 0.0)  # infinity has none
    return rounded.numpy(), rest.to(dtype).numpy()
