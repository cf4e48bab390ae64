"""Weighings beside softmax, without the matrix: strips of some queries and all keys that they may see.

For each strip, whose scores are held in blocks of keys (x' is the gradient of the loss with respect to x):

    forward     row = finish(merge(lift(scores) of each block));  mean = Σ weights(scores, row) value
    backward    scores again, and weight' = mean' · value;  offset = Σ part · weight'
                score' = own · weight' - shared · offset            own, shared, part = derivatives(scores, row)

Memory grows with q + k: a strip has as many queries as fit the cache, one at least. Blocks in which no key has a
weight, as many have under a sparse weighing, are neither averaged nor differentiated. Here any score is called under
autograd, as in `stream.py`; `fused_strips.py` has the same for inner products and squared distances on the CPU.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from regard.engines.job import Job, repeat_heads, sum_groups
from regard.engines.stream import (
    CACHE,
    Blocks,
    RecomputedContext,
    add_gradients,
    autocast_of,
    check_unchanged,
    hooks_off,
    make_blocks,
    random_state,
    replayed,
    state_of,
    with_state,
)
from regard.masks.evaluation import tensors_of
from regard.torch_modes import once_differentiable
from regard.weighing import BlockWeighing, Derivatives

COLUMNS = 1024
"""Keys of one block: what is skipped if none of them has a weight."""


def strip_sizes(job: Job) -> tuple[int, int]:
    """Queries and keys of a block, so that a strip, and the score of a block while it is computed, fit the cache."""
    heads = max(1, math.prod(job.leading))
    rows = max(1, min(job.queries, CACHE // max(1, heads * job.keys)))
    return rows, max(1, min(COLUMNS, CACHE // (heads * rows * job.width)))


def row_of(weigh: BlockWeighing, scores: Sequence[Tensor]) -> Tensor:
    """What a weighing must know about the queries of a strip, `[..., q, n]`."""
    states = [weigh.lift(block) for block in scores]
    return weigh.finish(states[0] if len(states) == 1 else weigh.merge(states))


class BlockGradient(NamedTuple):
    """The gradients of one block of a strip."""

    number: int  # of the block
    weight: Tensor  # [..., q, k]
    used: Tensor  # [..., q, k]  the weights that multiplied the values: those after dropout
    score: Tensor  # [..., q, k]  gradient of the scores


def strip_gradients(
    weigh: BlockWeighing,
    row: Tensor,
    scores: Sequence[Tensor],
    weight_grad: Callable[[int, Derivatives], Tensor],
    factor: Callable[[int], Tensor] | None,
) -> Iterator[BlockGradient]:
    """The gradients of the blocks that have one.

    weight_grad   mean' · value of a block, `[..., q, k]`, at least where a derivative is not 0
    factor        the dropout factors of a block
    """
    held, offset = [], row.new_zeros(*row.shape[:-1], 1)
    for number, block in enumerate(scores):
        derivatives = weigh.derivatives(block, row)
        weight, own, shared, part, total = derivatives
        if not any(has_weight(x) for x in (weight, own, shared) if x is not None):
            continue
        grad, used = weight_grad(number, derivatives), weight
        if factor:
            factors = factor(number)
            grad, used = grad * factors, used * factors
        direct = own * grad
        if part is not None:
            summed = (direct if part is own else part * grad).sum(dim=-1, keepdim=True)
            offset += summed if total is None else summed / total
        held.append((number, weight, used, direct, shared))
    for number, weight, used, direct, shared in held:
        yield BlockGradient(
            number, weight, used, direct if shared is None else direct.addcmul_(shared, offset, value=-1)
        )


def has_weight(weight: Tensor) -> bool:
    """Whether some number is not 0. Elsewhere than on the CPU it would take longer to know than to go on."""
    return weight.device.type != "cpu" or bool(weight.any())


def attend_strips(job: Job, weigh: BlockWeighing, seed: int, block: tuple[int, int]) -> Tensor:
    """Means `[..., q, v]` by any score: strips of all leading dimensions at once."""
    blocks, bias_count, tensors = make_blocks(job, seed, block)
    mean: Tensor = _Weighed.apply(blocks, weigh, bias_count, *tensors)  # type: ignore[no-untyped-call]
    return mean


class _WeighedContext(RecomputedContext):
    """What `_Weighed.forward` saves beside tensors."""

    weigh: BlockWeighing


def _strip_scores(
    blocks: Blocks, rows: slice, columns: Sequence[slice], query: Tensor, key: Tensor, biases: Sequence[Tensor]
) -> list[Tensor]:
    """The scores of a strip, block by block, `[..., q, k]` each."""
    found = []
    for some in columns:
        bias = blocks.bias_blocks(biases, rows, some)
        scores = blocks.scores(query[..., rows, :], key[..., some, :], bias, rows, some)
        found.append(scores.expand(*blocks.shape[:-2], *scores.shape[-2:]))
    return found


class _Weighed(torch.autograd.Function):
    """The mean from query, key, value, the mask's bias tensors, and the score's parameters."""

    @staticmethod
    def forward(
        ctx: _WeighedContext, blocks: Blocks, weigh: BlockWeighing, bias_count: int, *tensors: Tensor
    ) -> Tensor:
        query, key, value, *rest = tensors
        biases = rest[:bias_count]
        ctx.random, ctx.autocast = random_state(query), autocast_of(query.device.type)
        wide = torch.promote_types(query.dtype, torch.float32)
        mean = query.new_zeros(*blocks.shape[:-1], value.shape[-1], dtype=wide)
        total = query.new_zeros(blocks.shape[:-1], dtype=wide)  # of the weights, to be compared with those of backward
        found = []
        for rows in blocks.rows():
            columns = list(blocks.columns(rows))
            scores = [x.to(wide) for x in _strip_scores(blocks, rows, columns, query, key, biases)]
            row = row_of(weigh, scores or [total[..., rows, None][..., :0]])
            found.append(row)
            for some, block in zip(columns, scores, strict=True):
                weight = weigh.weights(block, row)
                if not has_weight(weight):
                    continue
                total[..., rows] += weight.abs().sum(dim=-1)
                if blocks.dropout:
                    weight = weight * blocks.dropout_factor(rows, some, weight)
                mean[..., rows, :] += weight.to(value.dtype) @ repeat_heads(value[..., some, :], blocks.groups)
        ctx.blocks, ctx.weigh, ctx.bias_count, ctx.state = blocks, weigh, bias_count, state_of(blocks.score)
        ctx.save_for_backward(*tensors, torch.cat(found, dim=-2), total, *tensors_of(blocks.mask))
        return mean.to(value.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: _WeighedContext, mean_grad: Tensor) -> tuple[Tensor | None, ...]:
        blocks = replace(ctx.blocks, score=with_state(ctx.blocks.score, ctx.state))
        needed = ctx.needs_input_grad[3:]
        saved = ctx.saved_tensors  # raises if a mask's tensor was changed since forward; may be read only once
        tensors, (row, total, *_) = saved[: len(needed)], saved[len(needed) :]
        query, key, value, *rest = tensors
        biases, parameters = rest[: ctx.bias_count], rest[ctx.bias_count :]
        grads = [torch.zeros_like(x, memory_format=torch.contiguous_format) for x in tensors]
        summed, unused = torch.zeros_like(total), {id(x) for x in parameters if x.requires_grad}
        flat = True  # no block has a gradient so far: then nothing is known of the parameters
        needs = [*needed[:2], *needed[3 : 3 + ctx.bias_count]]
        with replayed(*ctx.random), hooks_off(parameters):
            for rows in blocks.rows():
                columns, inputs, scores = list(blocks.columns(rows)), [], []
                for some in columns:
                    block = [query[..., rows, :], key[..., some, :], *blocks.bias_blocks(biases, rows, some)]
                    block = [x.detach().requires_grad_(need) for x, need in zip(block, needs, strict=True)]
                    with torch.enable_grad(), ctx.autocast():
                        scores.append(blocks.scores(block[0], block[1], block[2:], rows, some))
                    inputs.append(block)
                own_grad = mean_grad[..., rows, :]

                def weight_grad(
                    number: int, _: Derivatives, own_grad: Tensor = own_grad, columns: list[slice] = columns
                ) -> Tensor:
                    some = repeat_heads(value[..., columns[number], :], blocks.groups)
                    return (own_grad @ some.mT).to(total.dtype)

                def factor(number: int, rows: slice = rows, columns: list[slice] = columns) -> Tensor:
                    return blocks.dropout_factor(rows, columns[number], total)

                wide = [x.detach().to(total.dtype).expand(*blocks.shape[:-2], *x.shape[-2:]) for x in scores]
                found = strip_gradients(
                    ctx.weigh, row[..., rows, :], wide, weight_grad, factor if blocks.dropout else None
                )
                for number, weight, used, score_grad in found:
                    some, flat = columns[number], False
                    summed[..., rows] += weight.abs().sum(dim=-1)
                    some_grads = used.to(mean_grad.dtype).mT @ own_grad
                    grads[2][..., some, :] += sum_groups(some_grads, blocks.groups)
                    targets = [grads[0][..., rows, :], grads[1][..., some, :]]
                    targets += blocks.bias_blocks(grads[3 : 3 + ctx.bias_count], rows, some)
                    targets += grads[3 + ctx.bias_count :]
                    unused -= add_gradients(scores[number], score_grad, [*inputs[number], *parameters], targets)
        check_unchanged(summed, total, 0 if flat else len(unused))
        return None, None, None, *(grad if need else None for grad, need in zip(grads, needed, strict=True))
