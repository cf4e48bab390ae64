"""One query per row against its keys by the additive score, fused: one step of a decoder with attention.

    α = softmax_i(wᵀ tanh(q + k_i)) over the row's first keys        mean = Σᵢ αᵢ v_i

q `[rows, h]` and k `[rows, n, h]` are projected already. It equals `attend(q, k, v, score=…, mask=padding(lengths))`
for one query, but stores only α: backward recomputes tanh.

`additive_step` is differentiable by autograd, on the CPU in float32 and float64. `forward` and `backward` are its two
passes, for a recurrence that writes its own backward; `scores` is wᵀ tanh(q + k_i) alone, for rows that share keys,
such as the hypotheses of a beam. These three fall back to torch where the compiled loops do not apply.
"""

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.function import once_differentiable

from regard.compiled.threads import spread
from regard.engines.job import spans
from regard.weighing import softmax

SINGLE_THREAD_LIMIT = 2**20
"""Up to this many evaluations of tanh, one thread does all of them."""


class KeysAndValues(NamedTuple):
    """What the queries of all steps attend to, each row contiguous."""

    key: Tensor  # [rows, n, h]
    weight: Tensor  # [h]  of the score
    value: Tensor  # [rows, n, v]
    counts: Tensor | None = None  # [rows]  number of keys of each row, from the first on; None: all


class StepGradients(NamedTuple):
    """The gradients of one step's outputs, and where those of its inputs are written."""

    mean: Tensor  # [rows, v]
    attention: Tensor  # [rows, n]  of the weights as an output of their own; overwritten
    query: Tensor  # [rows, h or more]  the first h are written
    key: Tensor  # [rows, n, h]  added to


def fusible(*tensors: Tensor) -> bool:
    """Whether the compiled loops apply: on the CPU, all in float32 or all in float64."""
    kinds = {(x.device.type, x.dtype) for x in tensors}
    return kinds in ({("cpu", torch.float32)}, {("cpu", torch.float64)}) and not torch.is_autocast_enabled("cpu")


def additive_step(
    query: Tensor, key: Tensor, weight: Tensor, value: Tensor, lengths: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The mean `[rows, v]` and the weights `[rows, n]`, both differentiable (once).

    query `[rows, h]`, key `[rows, n, h]`, weight `[h]`, value `[rows, n, v]`; row b has its first `lengths[b]` keys,
    by default all. The mean of a row without keys is 0.

    >>> import torch
    >>> mean, alpha = additive_step(torch.randn(2, 3), torch.randn(2, 5, 3), torch.randn(3), torch.randn(2, 5, 4))
    >>> mean.shape, alpha.shape
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
        raise TypeError(f"the fused step must get float32 or float64 on the CPU, got {query.dtype} on {query.device}")
    counts = key_counts(lengths, rows, keys)
    return _AdditiveStep.apply(query, key, weight, value, counts)  # type: ignore[no-any-return, no-untyped-call]


def key_counts(lengths: Tensor | None, rows: int, keys: int) -> Tensor:
    """The number of keys of each row, `[rows]` in int64; raises ValueError if a row has fewer."""
    if lengths is None:
        return torch.full((rows,), keys)
    if lengths.shape != (rows,) or (rows and not 0 <= int(lengths.min()) <= int(lengths.max()) <= keys):
        raise ValueError(f"lengths must be [{rows}], between 0 and {keys}, got {lengths.tolist()}")
    return lengths.to(torch.long)


class _AdditiveStep(torch.autograd.Function):
    """(mean, weights) of query, key, weight and value."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, weight: Tensor, value: Tensor, counts: Tensor
    ) -> tuple[Tensor, Tensor]:
        query, key, weight, value = (x.contiguous() for x in (query, key, weight, value))
        mean, attention = value.new_empty(len(value), value.shape[2]), key.new_empty(key.shape[:2])
        forward(query, KeysAndValues(key, weight, value, counts), mean, attention)
        ctx.save_for_backward(query, key, weight, value, counts, attention)
        return mean, attention

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, mean_grad: Tensor, attention_grad: Tensor) -> tuple[Tensor | None, ...]:
        query, key, weight, value, counts, attention = ctx.saved_tensors
        mean_grad = mean_grad.contiguous()
        attention_grad = attention_grad.clone(memory_format=torch.contiguous_format)
        gradients = StepGradients(mean_grad, attention_grad, torch.empty_like(query), torch.zeros_like(key))
        weight_grad = backward(query, KeysAndValues(key, weight, value, counts), attention, gradients)
        value_grad = attention.unsqueeze(-1) * mean_grad.unsqueeze(1) if ctx.needs_input_grad[3] else None
        return gradients.query, gradients.key, weight_grad, value_grad, None


def forward(query: Tensor, memory: KeysAndValues, mean: Tensor, attention: Tensor) -> None:
    """Write the mean `[rows, v]` and the weights `[rows, n]` of queries `[rows, h]`."""
    key, weight, value, counts = memory
    if not fusible(query, key, weight, value):
        logits = torch.tanh(query.unsqueeze(1) + key) @ weight
        if counts is not None:
            hidden = torch.arange(key.shape[1], device=key.device) >= counts.unsqueeze(1)
            logits = logits.masked_fill(hidden, -math.inf)
        attention.copy_(softmax(logits))
        mean.copy_(torch.bmm(attention.unsqueeze(1), value).squeeze(1))
        return
    from regard.ops import recurrent_loops

    q, k, w, v, count, means, weights = as_arrays(query, key, weight, value, _counts_of(memory), mean, attention)

    def task(rows: slice) -> None:
        recurrent_loops.additive_forward(q[rows], k[rows], w, v[rows], count[rows], means[rows], weights[rows])

    spread(task, row_slices(len(key), key[:1].numel()))


def backward(query: Tensor, memory: KeysAndValues, attention: Tensor, gradients: StepGradients) -> Tensor:
    """The gradient of the weight `[h]`; those of query and key are written into `gradients`.

    The gradient of the values, attention ⊗ mean's, is one matrix product over all steps: the caller does it.
    """
    key, weight, value, _ = memory
    if not fusible(query, key, weight, value):
        grad = torch.baddbmm(gradients.attention.unsqueeze(1), gradients.mean.unsqueeze(1), value.mT).squeeze(1)
        score_grad = attention * (grad - (attention * grad).sum(dim=1, keepdim=True))
        hidden = torch.tanh(query.unsqueeze(1) + key)
        sum_grad = score_grad.unsqueeze(2) * weight * (1 - hidden.square())
        gradients.query[:, : len(weight)] = sum_grad.sum(dim=1)
        gradients.key.add_(sum_grad)
        return torch.einsum("rk,rkh->h", score_grad, hidden)
    from regard.ops import recurrent_loops

    q, k, w, v, count, weights = as_arrays(query, key, weight, value, _counts_of(memory), attention)
    grads = as_arrays(*gradients)

    def task(rows: slice) -> Tensor:
        weight_grad = torch.zeros_like(weight)
        inputs = q[rows], k[rows], w, v[rows], count[rows], weights[rows]
        recurrent_loops.additive_backward(*inputs, *(grad[rows] for grad in grads), weight_grad.numpy())
        return weight_grad

    return sum(spread(task, row_slices(len(key), key[:1].numel())), torch.zeros_like(weight))


@torch.no_grad()
def scores(query: Tensor, key: Tensor, weight: Tensor, index: Tensor) -> Tensor:
    """The scores `[rows, n]` of queries `[rows, h]`, without gradients.

    key     `[groups, n, h]`
    index   `[rows]`: row r has the keys `key[index[r]]`

    >>> import torch
    >>> scores(torch.randn(3, 7), torch.randn(2, 5, 7), torch.randn(7), torch.tensor([0, 0, 1])).shape
    torch.Size([3, 5])
    """
    if not fusible(query, key, weight):
        return torch.tanh(query.unsqueeze(1) + key[index]) @ weight
    from regard.ops import recurrent_loops

    out = query.new_empty(len(query), key.shape[1])
    q, k, w, indices, into = as_arrays(*(x.contiguous() for x in (query, key, weight, index)), out)
    spread(
        lambda rows: recurrent_loops.additive_scores(q[rows], k, w, indices[rows], into[rows]),
        row_slices(len(query), key[:1].numel()),
    )
    return out


def _counts_of(memory: KeysAndValues) -> Tensor:
    """The number of keys of each row, `[rows]`."""
    return key_counts(None, *memory.key.shape[:2]) if memory.counts is None else memory.counts


def as_arrays(*tensors: Tensor) -> list[NDArray[np.generic]]:
    """Tensors as NumPy arrays over the same memory, for the loops."""
    return [tensor.numpy() for tensor in tensors]


def row_slices(rows: int, size: int) -> list[slice]:
    """The rows, of `size` evaluations of tanh each, divided among threads; one slice if there is little work."""
    threads = torch.get_num_threads() if rows * size > SINGLE_THREAD_LIMIT else 1
    return list(spans(rows, max(1, -(-rows // threads))))
