"""One query a row against its own keys by the additive score, fused: the step of a decoder that attends.

    α = softmax_i(wᵀ tanh(q + k_i)) over the row's first keys        mean = Σᵢ αᵢ v_i

q `[rows, h]` and k `[rows, n, h]` are projected already. It is `attend(q, k, v, score=…, mask=padding(lengths))` of one
query, which keeps nothing but α: backward computes tanh again. On the CPU, in float32 and float64.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from regard.engines.job import spans
from regard.engines.threads import spread

ALONE = 2**21
"""Numbers in the keys below which one thread does it."""


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
        from regard.engines import additive_loops  # imports numba

        query, key, weight, value = (x.detach().contiguous() for x in (query, key, weight, value))
        mean, share = value.new_empty(len(value), value.shape[2]), key.new_empty(key.shape[:2])
        asked, keys, values, seen, means, shares = numpy(query, key, value, counts, mean, share)

        def task(rows: slice) -> None:
            additive_loops.forward(
                asked[rows], keys[rows], weight.numpy(), values[rows], seen[rows], means[rows], shares[rows]
            )

        spread(task, pieces(key))
        ctx.save_for_backward(query, key, weight, value, counts, share)
        return mean, share

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, mean_slope: Tensor, share_slope: Tensor) -> tuple[Tensor | None, ...]:
        from regard.engines import additive_loops  # imports numba

        query, key, weight, value, counts, share = ctx.saved_tensors
        mean_slope, share_slope = mean_slope.contiguous(), share_slope.clone(memory_format=torch.contiguous_format)
        query_slope, key_slope = torch.empty_like(query), torch.zeros_like(key)
        read = numpy(query, key, value, counts, share, mean_slope)
        asked, keys, values, seen, shares, pull = read
        pulls, into, against = numpy(share_slope, query_slope, key_slope)
        work = pieces(key)

        def task(rows: slice) -> Tensor:
            summed = torch.zeros_like(weight)
            additive_loops.backward(
                asked[rows],
                keys[rows],
                weight.numpy(),
                values[rows],
                seen[rows],
                shares[rows],
                pull[rows],
                pulls[rows],
                into[rows],
                against[rows],
                summed.numpy(),
            )
            return summed

        weight_slope = sum(spread(task, work), torch.zeros_like(weight))
        value_slope = share.unsqueeze(-1) * mean_slope.unsqueeze(1) if ctx.needs_input_grad[3] else None
        return query_slope, key_slope, weight_slope, value_slope, None


def numpy(*tensors: Any) -> list[Any]:
    """Tensors as the loops take them."""
    return [tensor.numpy() for tensor in tensors]


def pieces(key: Tensor) -> list[slice]:
    """The rows, shared out between threads where there is much to do."""
    threads = torch.get_num_threads() if key.numel() > ALONE else 1
    return list(spans(len(key), max(1, -(-len(key) // threads))))
