"""Attention by blocks: memory that grows with q + k, for any score, forward and backward.

Forward is the fold of `merge` over blocks of keys, written as the running sums of an online softmax: the largest
score so far, the sum of exp(score - largest), and the values weighted by it. Backward saves the mean, the largest score
and the sum of each query, and recomputes each block of scores (Dao et al. 2022, algorithm 4); x' is the gradient
of the loss with respect to x:

    weight = exp(score - largest) / sum
    score' = weight · (mean' · value - mean' · mean + log_weight')       [q, k], one block at a time

Dropout and masks are recomputed too, from indices (`compiled/dropout_hash.py`, `masks.py`); neither is stored.

Two algorithms share this. Scores that are inner products or squared distances run on the CPU as fused loops over single
heads, spread over threads (`fused.py`). Any other score, and any other device, runs here: the score is called on
blocks of queries and keys under autograd, which also gives the gradients of the score's own parameters, wherever
they are: in a module, a closure or a bias. `torch.utils.checkpoint` around a fold of `merge` gives the same numbers,
but takes 1.5 to 2 times as long for a cheap score, and up to 20 times the memory: it saves the parts it merges.
"""

import contextlib
import functools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeGuard

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node
from torch.utils.checkpoint import get_device_states, set_device_states

from regard.checks import is_count
from regard.compiled import dropout_hash
from regard.engines.heads import attend_compiled
from regard.engines.job import Job, dropout_factor, masked, repeat_heads, scores_of, spans, sum_groups
from regard.masks import Mask
from regard.masks.evaluation import block_of, has_reach, parts_of, tensors_of, touches, visible_keys
from regard.parts import Attended
from regard.scores import Score, is_inner_product, is_squared_distance
from regard.torch_modes import Context, compiling, exporting, once_differentiable
from regard.weighing import BlockWeighing, Sinks, softmax

CACHE = 2**19
"""Numbers of one block, over all leading dimensions: 2 MiB of float32, a core's L2 cache."""
TOLERANCE = 0.01
"""How far from 1 the sum of a query's recomputed weights may be. More means that the score or the mask changed."""
RECOMPUTED = "stream: blocks, recomputed in backward"
FUSED = "stream: fused loops, head by head"
STRIPS = "stream: rows of blocks, recomputed in backward"
FUSED_STRIPS = "stream: rows of blocks, head by head"


@dataclass(frozen=True)
class Stream:
    """Any score, under softmax or a weighing that goes by blocks of keys, in memory q + k.

    block   queries and keys of one block: one number for both, or a pair; default: sized to the cache

    >>> import torch, regard
    >>> x = torch.randn(9, 4)
    >>> regard.attend(x, x, x, engine=Stream(block=4)).shape
    torch.Size([9, 4])
    """

    block: int | tuple[int, int] | None = None
    name = "stream"

    def __post_init__(self) -> None:
        sizes = self.block if isinstance(self.block, tuple) else (self.block, self.block)
        if self.block is not None and not (len(sizes) == 2 and all(map(is_count, sizes))):
            raise ValueError(f"block must be a positive whole number, or two of them, got {self.block!r}")

    def refuses(self, job: Job) -> str | None:
        if job.weigh is softmax or isinstance(job.weigh, Sinks | BlockWeighing):
            return None
        return f"stream weighs by blocks of keys (see BlockWeighing), got {getattr(job.weigh, '__name__', job.weigh)}"

    def algorithm(self, job: Job) -> str:
        """What `attend` runs."""
        if isinstance(job.weigh, BlockWeighing):
            return FUSED_STRIPS if fusible(job) else STRIPS
        return FUSED if fusible(job) else RECOMPUTED

    def attend(self, job: Job) -> Tensor:
        weigh = job.weigh
        if isinstance(weigh, BlockWeighing):
            return self._attend_strips(job, weigh)
        mean, log_weight = self._parts(job)
        if isinstance(weigh, Sinks):  # the sink is one more part, with a value of 0
            mean = mean * weigh.fraction(log_weight).unsqueeze(-1).to(mean.dtype)
        return mean

    def attend_parts(self, job: Job) -> Attended:
        """Means and log weights. Dropout applies to the means only."""
        mean, log_weight = self._parts(job)
        return Attended(mean, log_weight.to(mean.dtype))

    def _parts(self, job: Job) -> Attended:
        """The same, with log weights in float32 at least."""
        if compiling() and fusible(job):
            return attend_compiled(job)
        return attend_seeded(job, dropout_hash.draw_seed() if job.dropout else 0, self.sizes)

    def _attend_strips(self, job: Job, weigh: BlockWeighing) -> Tensor:
        from regard.engines import strips

        seed = dropout_hash.draw_seed() if job.dropout else 0
        if not fusible(job):
            return strips.attend_strips(job, weigh, seed, self.sizes or strips.strip_sizes(job))
        from regard.engines import fused_strips  # imports Numba

        return fused_strips.attend_strips(job, weigh, seed, self.sizes or fused_strips.strip_sizes(job))

    @property
    def sizes(self) -> tuple[int, int] | None:
        """Queries and keys of one block, if they were given."""
        return (self.block, self.block) if isinstance(self.block, int) else self.block


def row_reach(job: Job) -> Tensor:
    """The first key that each query may see in some head, and one past the last: `[2, q]`, on the CPU."""
    if not has_reach(job.mask) or not job.pairs or job.query.is_meta or compiling():
        return torch.tensor([0, job.keys]).unsqueeze(1).expand(2, job.queries)
    first, stop = visible_keys(job.mask, job.queries, job.keys, len(job.shape), job.query.device)
    return torch.stack([first.reshape(-1, job.queries).amin(0), stop.reshape(-1, job.queries).amax(0)]).cpu()


def columns_in_reach(mask: Mask | None, reach: Tensor, rows: slice, size: int) -> Iterator[slice]:
    """Blocks of at most `size` keys that some of the queries may see."""
    first, stop = reach[:, rows]
    return (block for block in spans(int(stop.max()), size, int(first.min())) if touches(mask, rows, block))


def cache_block(job: Job) -> tuple[int, int]:
    """Queries and keys of a block whose intermediate numbers fit the cache."""
    side = max(1, math.isqrt(CACHE // max(1, job.width * math.prod(job.leading))))
    return side, side


def fusible(job: Job) -> bool:
    """Whether the fused loops support the job: they need a known score, and a mask without a gradient."""
    known = is_inner_product(job.score) or is_squared_distance(job.score)
    return known and job.query.device.type == "cpu" and not mask_gradient(job) and not exporting()


def mask_gradient(job: Job) -> bool:
    """Whether a part of the mask is a bias that needs a gradient."""
    return torch.is_grad_enabled() and any(corner.requires_grad for corner in job.mask_corners)


def attend_seeded(job: Job, seed: int, block: tuple[int, int] | None = None, whole: Attended | None = None) -> Attended:
    """Means, and log weights in float32 at least; dropout, of this seed, applies to the means.

    whole   what attention to all keys gave, if those of the job are a part of them: it is returned, and only backward
            computes, the gradients by this part. (The whole has the sum of the gradients by all parts.)
    """
    if not fusible(job):
        return attend_blocks(job, seed, block or cache_block(job), whole)
    from regard.engines import fused  # imports Numba

    return fused.attend_heads(job, seed, block or fused.BLOCK, whole)


def attend_blocks(job: Job, seed: int, block: tuple[int, int], whole: Attended | None = None) -> Attended:
    """Attention by any score: blocks of all leading dimensions at once. Arguments as in `attend_seeded`."""
    blocks, bias_count, tensors = make_blocks(job, seed, block)
    return Attended(*_Recomputed.apply(blocks, bias_count, whole, *tensors))  # type: ignore[no-untyped-call]


def make_blocks(job: Job, seed: int, block: tuple[int, int]) -> tuple["Blocks", int, list[Tensor]]:
    """The blocks of a job; and query, key, value, the mask's bias tensors and their number, the score's parameters."""
    blocks = Blocks(job.score, job.mask, row_reach(job), job.shape, job.dropout, seed, block, job.groups, job.start)
    biases = [part for part in parts_of(job.mask) if _is_bias(part)]
    parameters = _parameters_of(blocks, job)
    shared = [*job.leading[:-1], job.leading[-1] // job.groups] if job.leading else []
    query = job.query.expand(*job.leading, *job.query.shape[-2:])
    key, value = (x.expand(*shared, *x.shape[-2:]) for x in (job.key, job.value))
    return blocks, len(biases), [query, key, value, *biases, *parameters]


def _is_bias(part: Mask) -> TypeGuard[Tensor]:
    """Whether a part of a mask is a tensor that is added to the scores."""
    return isinstance(part, Tensor) and part.dtype != torch.bool


@dataclass(frozen=True)
class Blocks:
    """What is the same for every block."""

    score: Score
    mask: Mask | None
    reach: Tensor  # [2, q]  as `row_reach` gives it
    shape: torch.Size  # of the scores, [..., q, k]
    dropout: float
    seed: int
    block: tuple[int, int]
    groups: int  # query heads for each head of keys
    start: tuple[int, int]  # as in `Job`

    def rows(self) -> Iterator[slice]:
        return spans(self.shape[-2], self.block[0])

    def columns(self, rows: slice) -> Iterator[slice]:
        """The blocks of keys that some of the queries may see."""
        return columns_in_reach(self.mask, self.reach, rows, self.block[1])

    def pairs(self) -> Iterator[tuple[slice, slice]]:
        return ((rows, columns) for rows in self.rows() for columns in self.columns(rows))

    def scores(self, query: Tensor, key: Tensor, biases: Sequence[Tensor], rows: slice, columns: slice) -> Tensor:
        """Masked scores of a block; `biases` are the blocks of those parts of the mask that are bias tensors."""
        bias = iter(biases)
        parts = [
            next(bias) if _is_bias(part) else block_of(part, rows, columns, len(self.shape), query.device)
            for part in parts_of(self.mask)
        ]
        return masked(scores_of(self.score, query, repeat_heads(key, self.groups)), parts)

    def bias_blocks(self, biases: Iterable[Tensor], rows: slice, columns: slice) -> list[Tensor]:
        return [block_of(bias, rows, columns, len(self.shape), bias.device) for bias in biases]

    def dropout_factor(self, rows: slice, columns: slice, like: Tensor) -> Tensor:
        rows, columns = (
            slice(some.start + first, some.stop + first)
            for some, first in zip((rows, columns), self.start, strict=True)
        )
        return dropout_factor(self.shape, self.dropout, self.seed, rows, columns, like)


class RecomputedContext(Context):
    """What forward saves beside tensors."""

    blocks: Blocks
    bias_count: int
    is_part: bool  # whether there are other keys
    state: dict[str, Tensor]
    random: tuple[Tensor, list[int], list[Tensor]]  # states of the generators that a score may draw from
    autocast: Callable[[], contextlib.AbstractContextManager[object]]


class _Recomputed(torch.autograd.Function):
    """(mean, log_weight) from query, key, value, the mask's bias tensors, and the score's parameters."""

    @staticmethod
    def forward(
        ctx: RecomputedContext, blocks: Blocks, bias_count: int, whole: Attended | None, *tensors: Tensor
    ) -> tuple[Tensor, Tensor]:
        query = tensors[0]
        ctx.random = random_state(query)
        ctx.autocast = autocast_of(query.device.type)
        ctx.blocks, ctx.bias_count, ctx.state = blocks, bias_count, state_of(blocks.score)
        ctx.is_part = whole is not None
        if whole is None:
            mean, largest, total = _sums(blocks, bias_count, tensors)
        else:
            mean, largest, total = whole.mean.detach(), whole.log_weight, torch.ones_like(whole.log_weight)
        ctx.save_for_backward(*tensors, mean, largest, total, *tensors_of(blocks.mask))
        return mean, largest + total.log()

    @staticmethod
    @once_differentiable
    def backward(ctx: RecomputedContext, mean_grad: Tensor, log_weight_grad: Tensor) -> tuple[Tensor | None, ...]:
        blocks = replace(ctx.blocks, score=with_state(ctx.blocks.score, ctx.state))
        needed = ctx.needs_input_grad[3:]
        saved = ctx.saved_tensors  # raises if a mask's tensor was changed since forward; may be read only once
        query, key, value, *rest = saved[: len(needed)]
        mean, largest, total, *_ = saved[len(needed) :]
        biases, parameters = rest[: ctx.bias_count], rest[ctx.bias_count :]
        grads = [torch.zeros_like(x, memory_format=torch.contiguous_format) for x in (query, key, value, *rest)]
        query_grad, key_grad, value_grad, *rest_grads = grads
        offset = (mean_grad * mean).sum(dim=-1, dtype=total.dtype) - log_weight_grad
        largest = largest.masked_fill(largest == -math.inf, math.inf)  # exp(s - inf) = 0
        sums, unused = torch.zeros_like(total), {id(x) for x in parameters if x.requires_grad}
        with replayed(*ctx.random), hooks_off(parameters):
            for rows, columns in blocks.pairs():
                inputs = [query[..., rows, :], key[..., columns, :], *blocks.bias_blocks(biases, rows, columns)]
                needs = [*needed[:2], *needed[3 : 3 + ctx.bias_count]]
                inputs = [x.detach().requires_grad_(need) for x, need in zip(inputs, needs, strict=True)]
                with torch.enable_grad(), ctx.autocast():
                    scores = blocks.scores(inputs[0], inputs[1], inputs[2:], rows, columns)
                weight = (scores.detach().to(total.dtype) - largest[..., rows, None]).exp() / total[..., rows, None]
                sums[..., rows] += weight.sum(dim=-1)
                some_values = repeat_heads(value[..., columns, :], blocks.groups)
                weight_grad, used = mean_grad[..., rows, :] @ some_values.mT, weight
                if blocks.dropout:
                    factor = blocks.dropout_factor(rows, columns, weight)
                    weight_grad, used = weight_grad * factor, weight * factor
                some_grads = used.to(mean_grad.dtype).mT @ mean_grad[..., rows, :]
                value_grad[..., columns, :] += sum_groups(some_grads, blocks.groups)
                score_grad = weight * (weight_grad - offset[..., rows, None])
                targets = [query_grad[..., rows, :], key_grad[..., columns, :]]
                targets += blocks.bias_blocks(rest_grads[: ctx.bias_count], rows, columns)
                targets += rest_grads[ctx.bias_count :]
                unused -= add_gradients(scores, score_grad, [*inputs, *parameters], targets)
        if not ctx.is_part:
            check_unchanged(sums, (largest != math.inf).to(sums.dtype), len(unused))
        return None, None, None, *(grad if need else None for grad, need in zip(grads, needed, strict=True))


def _sums(blocks: Blocks, bias_count: int, tensors: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """The mean, the largest score and the sum of exp(score - largest) of each query."""
    query, key, value, *rest = tensors
    biases = rest[:bias_count]
    wide = torch.promote_types(query.dtype, torch.float32)  # float16 cannot hold a sum over many keys
    mean = query.new_zeros(*blocks.shape[:-1], value.shape[-1])
    largest = query.new_full(blocks.shape[:-1], -math.inf, dtype=wide)
    total = query.new_ones(blocks.shape[:-1], dtype=wide)
    for rows in blocks.rows():
        peak = largest[..., rows].clone()
        sums = torch.zeros_like(peak)
        weighted = torch.zeros_like(mean[..., rows, :], dtype=wide)
        for columns in blocks.columns(rows):
            bias = blocks.bias_blocks(biases, rows, columns)
            scores = blocks.scores(query[..., rows, :], key[..., columns, :], bias, rows, columns)
            scores = scores.expand(*blocks.shape[:-2], *scores.shape[-2:])
            new_peak = torch.maximum(peak, scores.amax(dim=-1))
            shift = new_peak.masked_fill(new_peak == -math.inf, 0.0)
            weight = (scores.to(wide) - shift.unsqueeze(-1)).exp()
            decay = (peak - shift).exp()
            peak = new_peak
            sums = sums * decay + weight.sum(dim=-1)
            if blocks.dropout:
                weight = weight * blocks.dropout_factor(rows, columns, weight)
            some_values = repeat_heads(value[..., columns, :], blocks.groups)
            weighted = weighted * decay.unsqueeze(-1) + weight.to(value.dtype) @ some_values
        sums = sums.masked_fill(sums == 0, 1.0)
        mean[..., rows, :] = weighted / sums.unsqueeze(-1)
        largest[..., rows], total[..., rows] = peak, sums
    return mean, largest, total


def add_gradients(scores: Tensor, score_grad: Tensor, inputs: list[Tensor], targets: list[Tensor]) -> set[int]:
    """Add the gradients of the inputs to the targets; the ids of the inputs that the scores depend on."""
    if not scores.requires_grad:
        return set()
    wanted = [(x, target) for x, target in zip(inputs, targets, strict=True) if x.requires_grad]
    score_grad = score_grad.sum_to_size(scores.shape).to(scores.dtype)
    grads = torch.autograd.grad(scores, [x for x, _ in wanted], score_grad, retain_graph=True, allow_unused=True)
    for (_, target), grad in zip(wanted, grads, strict=True):
        if grad is not None:
            target += grad
    return {id(x) for (x, _), grad in zip(wanted, grads, strict=True) if grad is not None}


def _parameters_of(blocks: Blocks, job: Job) -> list[Tensor]:
    """The leaf tensors with a gradient, other than the job's own, that the scores depend on.

    The score is called for one pair, and the graph of its result is searched. So a parameter may be in a
    module, in a closure or in a mask.
    """
    if not torch.is_grad_enabled() or not job.pairs:
        return []
    one = slice(0, 1)
    biases = [part for part in parts_of(blocks.mask) if _is_bias(part)]
    with torch.enable_grad():
        query, key = job.query.detach()[..., one, :], job.key.detach()[..., one, :]
        probe = blocks.scores(query, key, [x.detach() for x in blocks.bias_blocks(biases, one, one)], one, one)
    if probe.grad_fn is None:
        return [probe] if probe.requires_grad else []
    leaves: dict[int, Tensor] = {}
    visited = set()
    pending: list[tuple[Node | None, int]] = [(probe.grad_fn, 0)]
    while pending:
        node, _ = pending.pop()
        if node is None or node in visited:
            continue
        visited.add(node)
        if hasattr(node, "variable"):
            leaves[id(node.variable)] = node.variable
        pending += node.next_functions
    return list(leaves.values())


def state_of(score: object) -> dict[str, Tensor]:
    """The parameters and buffers of a score."""
    return dict([*score.named_parameters(), *score.named_buffers()]) if isinstance(score, nn.Module) else {}


def with_state(score: Score, state: dict[str, Tensor]) -> Score:
    """The score with its parameters of forward: `torch.func.functional_call` may have replaced them for that call."""
    now = state_of(score)
    if not isinstance(score, nn.Module) or all(now.get(name) is tensor for name, tensor in state.items()):
        return score
    module = score
    return lambda query, key: torch.func.functional_call(module, state, (query, key))


def check_unchanged(sums: Tensor, before: Tensor, unused: int) -> None:
    """Raise if the recomputed weights of a query add up to something else, or depend on other parameters.

    sums     [..., q] of the weights of each query
    before   [..., q] the same in forward
    unused   number of parameters that the scores depended on in forward, and not in backward
    """
    apart = (sums - before).abs() / before.clamp(min=1.0)
    error = float(apart.nan_to_num(0.0).max()) if apart.numel() and not apart.is_meta else 0.0
    if error <= TOLERANCE and not unused:
        return
    reason = (
        f"they no longer depend on {unused} parameters"
        if unused
        else f"the weights of a query add up to a sum that is off by {error:.2g}"
    )
    raise RuntimeError(
        f"the score or mask changed between forward and backward, which calls them again: {reason}. Keep what they hold"
        " unchanged until backward; in a loop, bind the loop variable, lambda query, key, s=s: …; or use engine='dense'"
    )


def autocast_of(device_type: str) -> Callable[[], contextlib.AbstractContextManager[object]]:
    """The current autocast mode of a type of device, to be entered later."""
    if not torch.amp.is_autocast_available(device_type):
        return contextlib.nullcontext
    dtype, enabled = torch.get_autocast_dtype(device_type), torch.is_autocast_enabled(device_type)
    return functools.partial(torch.autocast, device_type, dtype, enabled)


def random_state(like: Tensor) -> tuple[Tensor, list[int], list[Tensor]]:
    """The states of the generators of the CPU and of a tensor's device."""
    return torch.get_rng_state(), *get_device_states(like)


@contextlib.contextmanager
def replayed(state: Tensor, devices: list[int], device_states: list[Tensor]) -> Iterator[None]:
    """Draw the same random numbers again: blocks come in the same order, and a score draws the same for each."""
    with torch.random.fork_rng(devices):
        torch.set_rng_state(state)
        set_device_states(devices, device_states)
        yield


@contextlib.contextmanager
def hooks_off(parameters: Sequence[Tensor]) -> Iterator[None]:
    """Keep hooks of parameters from running for each block: they run once, with the whole gradient.

    torch has no public way to switch them off.
    """
    removed = [(x._backward_hooks, dict(x._backward_hooks)) for x in parameters if x._backward_hooks]
    for hooks, _ in removed:
        hooks.clear()
    try:
        yield
    finally:
        for hooks, before in removed:
            hooks.update(before)
