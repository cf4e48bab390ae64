"""One query a row against its keys by the additive score, fused: the step of a decoder that attends.

    α = softmax_i(wᵀ tanh(q + k_i)) over the row's first keys        mean = Σᵢ αᵢ v_i

q `[rows, h]` and k `[rows, n, h]` are projected already. It is `attend(q, k, v, score=…, mask=padding(lengths))` of one
query, which keeps nothing but α: backward computes tanh again.

`additive_step` is that under autograd, on the CPU in float32 and float64. `forward` and `backward` are its two ways,
for a recurrence with a backward of its own; `scores` is wᵀ tanh(q + k_i) alone, for rows that share keys, as the
hypotheses of a beam do. These three leave to torch what the loops cannot do.
"""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from regard.compiled.threads import spread
from regard.engines.job import spans
from regard.weighing import softmax

ALONE = 2**20
"""Numbers tanh is taken of, below which one thread does it."""


class Seen(NamedTuple):
    """What the queries of all steps look at, each row contiguous."""

    key: Tensor  # [rows, n, h]
    weight: Tensor  # [h]
    value: Tensor  # [rows, n, v]
    counts: Tensor | None = None  # [rows]  how many keys each row sees, from the first on; None: all


def fusible(*tensors: Tensor) -> bool:
    """Whether the loops can do it: on the CPU, in float32 or float64, all in one."""
    kinds = {(x.device.type, x.dtype) for x in tensors}
    return kinds in ({("cpu", torch.float32)}, {("cpu", torch.float64)}) and not torch.is_autocast_enabled("cpu")


def additive_step(
    query: Tensor, key: Tensor, weight: Tensor, value: Tensor, lengths: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The mean `[rows, v]` and the weights `[rows, n]`, both with gradients (once).

    query `[rows, h]`, key `[rows, n, h]`, weight `[h]`, value `[rows, n, v]`; row b sees its first `lengths[b]` keys,
    all where not given. One that sees none has a mean of 0.

    >>> import torch
    >>> mean, share = additive_step(torch.randn(2, 3), torch.randn(2, 5, 3), torch.randn(3), torch.randn(2, 5, 4))
    >>> mean.shape, share.shape
    (torch.Size([2, 4]), torch.Size([2, 5]))
    """
    rows, keys, size = key.shape
    shapes = [list(x.shape) for x in (query, weight, value)]
    if shapes != [[rows, size], [size], [rows, keys, value.shape[-1]]]:
        raise ValueError(
            f"keys [rows, n, h] = {list(key.shape)} need a query [{rows}, {size}], a weight [{size}] and values"
            f" [{rows}, {keys}, v], got {shapes[0]}, {shapes[1]} and {shapes[2]}"
        )
    if not fusible(query, key, weight, value):
        raise TypeError(f"the fused step is for float32 or float64 on the CPU, got {query.dtype} on {query.device}")
    counts = counted(lengths, rows, keys)
    return AdditiveStep.apply(query, key, weight, value, counts)  # type: ignore[no-any-return, no-untyped-call]


def counted(lengths: Tensor | None, rows: int, keys: int) -> Tensor:
    """How many keys each row sees, `[rows]` in int64; they are there."""
    if lengths is None:
        return torch.full((rows,), keys)
    if lengths.shape != (rows,) or (rows and not 0 <= int(lengths.min()) <= int(lengths.max()) <= keys):
        raise ValueError(f"lengths must be [{rows}], between 0 and {keys}, got {lengths.tolist()}")
    return lengths.to(torch.long)


class AdditiveStep(torch.autograd.Function):
    """(mean, share) of query, key, weight and value."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, weight: Tensor, value: Tensor, counts: Tensor
    ) -> tuple[Tensor, Tensor]:
        query, key, weight, value = (x.contiguous() for x in (query, key, weight, value))
        mean, share = value.new_empty(len(value), value.shape[2]), key.new_empty(key.shape[:2])
        forward(query, Seen(key, weight, value, counts), mean, share)
        ctx.save_for_backward(query, key, weight, value, counts, share)
        return mean, share

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, mean_slope: Tensor, share_slope: Tensor) -> tuple[Tensor | None, ...]:
        query, *seen, share = ctx.saved_tensors
        mean_slope, share_slope = mean_slope.contiguous(), share_slope.clone(memory_format=torch.contiguous_format)
        query_slope, key_slope = torch.empty_like(query), torch.zeros_like(seen[0])
        weight_slope = backward(query, Seen(*seen), share, Slopes(mean_slope, share_slope, query_slope, key_slope))
        value_slope = share.unsqueeze(-1) * mean_slope.unsqueeze(1) if ctx.needs_input_grad[3] else None
        return query_slope, key_slope, weight_slope, value_slope, None


def forward(query: Tensor, seen: Seen, mean: Tensor, share: Tensor) -> None:
    """Write the mean `[rows, v]` and the weights `[rows, n]` of queries `[rows, h]`."""
    key, weight, value, counts = seen
    if not fusible(query, key, weight, value):
        found = torch.tanh(query.unsqueeze(1) + key) @ weight
        if counts is not None:
            found = found.masked_fill(torch.arange(key.shape[1], device=key.device) >= counts.unsqueeze(1), -math.inf)
        share.copy_(softmax(found))
        mean.copy_(torch.bmm(share.unsqueeze(1), value).squeeze(1))
        return
    from regard.ops import additive_loops

    asked, keys, by, values, count, means, shares = numpy(query, key, weight, value, known(seen), mean, share)

    def task(rows: slice) -> None:
        own = asked[rows], keys[rows], by, values[rows], count[rows]
        additive_loops.forward(*own, means[rows], shares[rows])

    spread(task, pieces(len(key), key[:1].numel()))


class Slopes(NamedTuple):
    """What the loss gains with what a step gave, and what it was given."""

    mean: Tensor  # [rows, v]
    share: Tensor  # [rows, n]  of the weights by themselves; it is scratch afterwards
    query: Tensor  # [rows, h or more]  of which the first h are written
    key: Tensor  # [rows, n, h]  added to


def backward(query: Tensor, seen: Seen, share: Tensor, slopes: Slopes) -> Tensor:
    """The slope of the weight `[h]`; those of query and key go into their places.

    That of the values, share ⊗ mean's, is one product of matrices over all steps: it is not done here.
    """
    key, weight, value, _ = seen
    if not fusible(query, key, weight, value):
        pull = torch.baddbmm(slopes.share.unsqueeze(1), slopes.mean.unsqueeze(1), value.mT).squeeze(1)
        pull = share * (pull - (share * pull).sum(dim=1, keepdim=True))
        hidden = torch.tanh(query.unsqueeze(1) + key)
        step = pull.unsqueeze(2) * weight * (1 - hidden.square())
        slopes.query[:, : len(weight)] = step.sum(dim=1)
        slopes.key.add_(step)
        return torch.einsum("rk,rkh->h", pull, hidden)
    from regard.ops import additive_loops

    asked, keys, by, values, count, shares = numpy(query, key, weight, value, known(seen), share)
    pulls = numpy(*slopes)

    def task(rows: slice) -> Tensor:
        summed = torch.zeros_like(weight)
        own = asked[rows], keys[rows], by, values[rows], count[rows], shares[rows]
        additive_loops.backward(*own, *(pull[rows] for pull in pulls), summed.numpy())
        return summed

    return sum(spread(task, pieces(len(key), key[:1].numel())), torch.zeros_like(weight))


@torch.no_grad()
def scores(query: Tensor, key: Tensor, weight: Tensor, which: Tensor) -> Tensor:
    """The scores `[rows, n]` of queries `[rows, h]`, without gradients.

    key     `[some, n, h]`
    which   `[rows]`, whose keys each row has

    >>> import torch
    >>> scores(torch.randn(3, 7), torch.randn(2, 5, 7), torch.randn(7), torch.tensor([0, 0, 1])).shape
    torch.Size([3, 5])
    """
    if not fusible(query, key, weight):
        return torch.tanh(query.unsqueeze(1) + key[which]) @ weight
    from regard.ops import additive_loops

    out = query.new_empty(len(query), key.shape[1])
    asked, keys, by, numbers, into = numpy(*(x.contiguous() for x in (query, key, weight, which)), out)
    spread(
        lambda rows: additive_loops.scores(asked[rows], keys, by, numbers[rows], into[rows]),
        pieces(len(query), key[:1].numel()),
    )
    return out


def known(seen: Seen) -> Tensor:
    """How many keys each row sees."""
    return counted(None, *seen.key.shape[:2]) if seen.counts is None else seen.counts


def numpy(*tensors: Any) -> list[Any]:
    """Tensors as the loops take them."""
    return [tensor.numpy() for tensor in tensors]


def pieces(rows: int, each: int) -> list[slice]:
    """Rows of so much work each, shared out between threads where there is much to do."""
    threads = torch.get_num_threads() if rows * each > ALONE else 1
    return list(spans(rows, max(1, -(-rows // threads))))
