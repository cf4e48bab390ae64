"""A job as the fused loops take it, by torch alone; and the loops as an operation that torch can compile.

Everything here can be traced. `torch.compile` puts `regard::attend_heads` into its program in one piece, whatever
the mask, the dropout and the lengths; the loops themselves (`fused.py`) run when the program runs.
"""

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from regard.engines.job import Job, broadcast
from regard.masks import as_bias
from regard.masks.evaluation import is_solid, parts_of, visible_keys
from regard.parts import Attended
from regard.scores import is_inner_product, is_squared_distance

if TYPE_CHECKING:
    from regard.engines.fused import HeadBlocks


class Heads(NamedTuple):
    """The tensors of a job by head of keys; the queries of a group of query heads are the rows of one head."""

    distances: bool  # whether scores are -½ times squared distances, else inner products
    query: Tensor  # [heads, rows, d]
    key: Tensor  # [heads, k, d]
    value: Tensor  # [heads, k, v]
    reach: Tensor  # [2, heads or 1, rows]  the first key that a query may see, and one past the last
    groups: int  # query heads for each head of keys


def heads_of(job: Job) -> Heads:
    """The job by heads; halves in float32.

    Bandwidths, projections and the scale get their gradients by autograd, outside of the loops.
    """
    dtype = torch.promote_types(job.query.dtype, torch.float32)
    if is_squared_distance(job.score):
        query, key = job.score.as_distance(job.query, job.key)
    else:
        assert is_inner_product(job.score)
        query, key, scale = job.score.as_dot(job.query, job.key)
        query, key = query.to(dtype) * scale, key.to(dtype)
    leading, groups = _key_heads(job)
    count, rows = math.prod(leading), groups * job.queries
    query = query.expand(*job.leading, *query.shape[-2:]).reshape(count, rows, query.shape[-1])
    key, value = (x.expand(*leading, *x.shape[-2:]).reshape(count, *x.shape[-2:]) for x in (key, job.value.to(dtype)))
    reach = torch.stack(visible_keys(job.mask, job.queries, job.keys, len(job.shape), job.query.device))
    if math.prod(reach.shape[1:-1]) > 1:
        reach = reach.expand(2, *job.leading, job.queries).reshape(2, count, rows)
    else:
        reach = reach.reshape(2, 1, job.queries).repeat(1, 1, groups)
    return Heads(is_squared_distance(job.score), query, key, value, reach, groups)


def _key_heads(job: Job) -> tuple[torch.Size, int]:
    """The leading dimensions of the keys, and how many neighbouring query heads share each of their heads.

    Keys that are broadcast over the last dimensions are such groups too. Any others are repeated.
    """
    leading = broadcast(job.key.shape[:-2], job.value.shape[:-2])
    leading = torch.Size([*[1] * (len(job.leading) - len(leading)), *leading])
    for index in range(len(leading)):
        if leading[index] != job.leading[index]:
            if math.prod(leading[index + 1 :]) > 1 or job.leading[index] % leading[index]:
                break
            return leading, math.prod(job.leading) // max(1, math.prod(leading))
    return job.leading, 1


def attend_compiled(job: Job) -> Attended:
    """Means and log weights by `regard::attend_heads`; parts of the mask that say more than their reach are built."""
    heads = heads_of(job)
    parts = [
        part for part, mask in zip(job.mask_blocks(*_all(job)), parts_of(job.mask), strict=True) if not is_solid(mask)
    ]
    bias = None
    if parts:
        bias = sum((as_bias(part).to(heads.value.dtype) for part in parts), heads.value.new_zeros(()))
        full = (*job.leading, job.queries, job.keys) if bias.ndim > 2 else (1, job.queries, job.keys)
        bias = bias.expand(full).reshape(-1, job.queries, job.keys)  # [query heads or 1, q, k]
    seed = torch.randint(2**62, ()) if job.dropout else torch.zeros((), dtype=torch.long)
    mean, log_weight, _, _ = attend_heads(
        heads.query, heads.key, heads.value, heads.reach, bias, seed, job.dropout, heads.distances, heads.groups
    )
    mean = mean.view(*job.leading, job.queries, mean.shape[-1])
    log_weight = log_weight.view(*job.leading, job.queries)
    return Attended(mean.to(job.value.dtype), log_weight.to(job.value.dtype))


def _all(job: Job) -> tuple[slice, slice]:
    return slice(0, job.queries), slice(0, job.keys)


def _blocks(heads: Heads, bias: Tensor | None, seed: Tensor, dropout: float) -> "HeadBlocks":
    """The blocks of the fused loops, which import Numba."""
    from regard.engines import fused

    count, rows = heads.query.shape[0] * heads.groups, heads.query.shape[1] // heads.groups
    shape = torch.Size([count, rows, heads.key.shape[1]])
    return fused.make_blocks(heads, bias, shape, dropout, int(seed), fused.BLOCK)


@torch.library.custom_op("regard::attend_heads", mutates_args=(), device_types="cpu")
def attend_heads(  # noqa: PLR0913  an operation of torch takes tensors and numbers only
    query: Tensor,
    key: Tensor,
    value: Tensor,
    reach: Tensor,
    bias: Tensor | None,
    seed: Tensor,
    dropout: float,
    distances: bool,
    groups: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Mean `[heads, rows, v]`, log weight, largest score and sum `[heads, rows]`; arguments as in `Heads`.

    bias   [query heads or 1, q, k]  added to the scores
    seed   []  of dropout
    """
    from regard.engines import fused

    heads = Heads(distances, query, key, value, reach, groups)
    sums = fused.forward(_blocks(heads, bias, seed, dropout), query, key, value)
    return sums.mean, sums.largest + sums.total.log(), sums.largest, sums.total


@attend_heads.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, *rest: object) -> tuple[Tensor, ...]:
    rows = query.shape[:2]
    return value.new_empty(*rows, value.shape[2]), *(value.new_empty(rows) for _ in range(3))


@torch.library.custom_op("regard::attend_heads_backward", mutates_args=(), device_types="cpu")
def _attend_heads_backward(  # noqa: PLR0913
    mean_grad: Tensor,
    log_weight_grad: Tensor,
    sums: list[Tensor],
    reach: Tensor,
    bias: Tensor | None,
    seed: Tensor,
    dropout: float,
    distances: bool,
    groups: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of query, key and value; `sums` are the fields of `fused.HeadSums`."""
    from regard.engines import fused

    heads = fused.HeadSums(*sums)
    blocks = _blocks(Heads(distances, heads.query, heads.key, heads.value, reach, groups), bias, seed, dropout)
    query, key, value = fused.backward(blocks, heads, mean_grad, log_weight_grad)
    return query, key, value


@_attend_heads_backward.register_fake
def _(mean_grad: Tensor, log_weight_grad: Tensor, sums: list[Tensor], *rest: object) -> tuple[Tensor, ...]:
    return tuple(torch.empty_like(x, memory_format=torch.contiguous_format) for x in sums[:3])


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    query, key, value, reach, bias, seed, *ctx.numbers = inputs
    mean, _, largest, total = output
    ctx.save_for_backward(query, key, value, mean, largest, total, reach, bias, seed)
    ctx.mark_non_differentiable(largest, total)


def _differentiate(ctx: Any, mean_grad: Tensor, log_weight_grad: Tensor, *unused: object) -> tuple[Tensor | None, ...]:
    *sums, reach, bias, seed = ctx.saved_tensors
    grads = _attend_heads_backward(mean_grad, log_weight_grad, sums, reach, bias, seed, *ctx.numbers)
    return *grads, None, None, None, None, None, None


attend_heads.register_autograd(_differentiate, setup_context=_save)
