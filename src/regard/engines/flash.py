"""Scores that are inner products, on torch's `scaled_dot_product_attention`: the fastest kernel of every device.

torch's fused kernel, which does not build the whole matrix, needs tensors of four dimensions, one size of query, key
and value that is a multiple of 8, and on the CPU no dropout. This module reshapes and pads the tensors accordingly.
"""

import functools
import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from regard.engines.job import Job, broadcast
from regard.engines.stream import Stream
from regard.kernels import DOT_LIMIT, centred, reach
from regard.masks import as_bias, causal
from regard.masks.evaluation import check_polarity
from regard.scores import Dot, is_inner_product, is_squared_distance
from regard.torch_modes import compiling, transforming
from regard.weighing import softmax

MASK_LIMIT = 2**24
"""Largest mask, in elements, that is built for torch's kernel; larger ones go to `stream`."""
SAFE_KEYS = 16
"""Number of keys from which torch's CPU kernel keeps NaN, if it does: at least as many as a vector of the CPU holds."""
TORCH_KERNEL = "flash: torch's scaled_dot_product_attention"
_DTYPES = (torch.float32, torch.float64)
torch_attention = functional.scaled_dot_product_attention
"""torch's own, whatever stands in its place later."""


@dataclass(frozen=True)
class Flash:
    """Inner products under softmax. Memory q + k, and what the mask takes.

    >>> import torch, regard
    >>> x = torch.randn(9, 4)
    >>> regard.attend(x, x, x, engine=Flash()).shape
    torch.Size([9, 4])
    """

    name = "flash"

    def refuses(self, job: Job) -> str | None:
        if not is_inner_product(job.score):
            return f"flash needs a score that is an inner product (has as_dot), got {job.score!r}"
        if job.weigh is not softmax:
            return f"flash weighs by softmax only, got {getattr(job.weigh, '__name__', job.weigh)}"
        if job.groups > 1 and is_squared_distance(job.score):
            return f"flash has no groups of query heads for distances, got {job.groups} query heads to a head of keys"
        if job.dropout and job.query.device.type == "cpu":
            return f"flash has no dropout on the CPU, got dropout={job.dropout}"
        return None

    def algorithm(self, job: Job) -> str:
        assert is_inner_product(job.score)
        if _too_wide(job):
            return Stream().algorithm(job)
        with torch.no_grad():
            if job.query.device.type != "cpu" or compiling() or bounded(*job.score.as_dot(job.query, job.key)):
                return TORCH_KERNEL
        return f"{TORCH_KERNEL}; then {Stream().algorithm(job)}, if a row is 0 or NaN"

    def attend(self, job: Job) -> Tensor:
        assert is_inner_product(job.score)
        if _too_wide(job):
            return Stream().attend(job)
        query, key, scale = job.score.as_dot(job.query, job.key)
        value = job.value.to(query.dtype)
        size = -(-max(query.shape[-1], value.shape[-1], 1) // 8) * 8
        shared = torch.Size([*job.leading[:-1], job.leading[-1] // job.groups]) if job.groups > 1 else job.leading
        query = _folded(query, job.leading, size)
        key, value = (_folded(x, shared, size) for x in (key, value))
        is_causal = job.mask is causal
        mask = None if is_causal else _whole_bias(job, query.dtype)
        mean = torch_attention(
            query,
            key,
            value,
            attn_mask=mask,
            is_causal=is_causal,
            dropout_p=job.dropout,
            scale=scale,
            enable_gqa=job.groups > 1,
        )
        if _may_be_wrong(mean, job.keys, mask is not None) and not bounded(query, key, scale):
            return Stream().attend(job)
        mean = mean[..., : job.value.shape[-1]].reshape(*job.leading, job.queries, job.value.shape[-1])
        return mean.to(job.value.dtype)


def attend_unchecked(
    query: Tensor, key: Tensor, value: Tensor, score: Dot, is_causal: bool, mask: Tensor | None = None
) -> Tensor | None:
    """The same for tensors that torch's kernel accepts as they are, without a `Job`; None if they need one.

    For one new query and cached keys, the checks of a job take as long as the attention itself.
    """
    if transforming() or not (isinstance(query, Tensor) and isinstance(key, Tensor) and isinstance(value, Tensor)):
        return None
    key_shape, dtype = key.shape, query.dtype
    if query.ndim != 4 or len(key_shape) != 4 or key_shape != value.shape:
        return None
    batch, heads, queries, size = query.shape
    key_batch, key_heads, keys, key_size = key_shape
    if batch != key_batch or size != key_size or size % 8 or not (size and queries and keys and batch and key_heads):
        return None
    if dtype not in _DTYPES or key.dtype != dtype or value.dtype != dtype:
        return None
    on_cpu = query.is_cpu and key.is_cpu and value.is_cpu
    if not on_cpu and not query.device == key.device == value.device:
        return None
    if heads % key_heads or not heads or (mask is not None and not _accepted(mask, query, keys)):
        return None
    if score.scaled and score.scale is None and heads == key_heads:
        mean = torch_attention(query, key, value, mask, 0.0, is_causal)  # torch's defaults: not to pass them is faster
    elif score.factor(size) >= 0:
        grouped = heads != key_heads
        mean = torch_attention(query, key, value, mask, 0.0, is_causal, scale=score.factor(size), enable_gqa=grouped)
    else:
        return None
    if _may_be_wrong(mean, keys, mask is not None):
        check_polarity(mask, queries)  # if no query sees a key, all means are 0
        if not bounded(query, key, score.factor(size)):
            return None
    return mean


def _accepted(mask: Tensor, query: Tensor, keys: int) -> bool:
    """Whether torch's kernel takes a mask `[batch, heads, q, k]` or `[q, k]` as it is; any dimension may be 1."""
    dtype = mask.dtype
    if dtype != torch.bool and (dtype != query.dtype or mask.requires_grad):
        return False
    shape, (batch, heads, queries, _) = mask.shape, query.shape
    if len(shape) == 2:
        shape = torch.Size([1, 1, *shape])
    if len(shape) != 4 or mask.device != query.device or mask.numel() > MASK_LIMIT:
        return False
    return shape[0] in (1, batch) and shape[1] in (1, heads) and shape[2] in (1, queries) and shape[3] in (1, keys)


def _folded(x: Tensor, leading: torch.Size, size: int) -> Tensor:
    """`[..., length, size]` -> `[batch, heads, length, size]`, padded with zeros: what the fused kernel takes."""
    if x.shape[-1] != size:
        x = functional.pad(x, (0, size - x.shape[-1]))
    if x.ndim == 4 and x.shape[:2] == leading:
        return x
    x = x.expand(*leading, *x.shape[-2:])
    # The last leading dimension becomes the heads, all others the batch.
    return x.reshape(math.prod(leading[:-1]), leading[-1] if leading else 1, *x.shape[-2:])


def _whole_bias(job: Job, dtype: torch.dtype) -> Tensor | None:
    """The mask as torch takes it, `[batch, heads, q, k]`; axes that it does not depend on have size 1."""
    parts = job.mask_blocks(slice(0, job.queries), slice(0, job.keys))
    if not parts:
        return None
    if all(part.dtype == torch.bool for part in parts):
        mask = parts[0]
        for part in parts[1:]:
            mask = mask & part
    else:
        mask = sum((as_bias(part).to(dtype) for part in parts[1:]), as_bias(parts[0]).to(dtype))
    if mask.ndim > 2:
        mask = mask.view(*[1] * (len(job.shape) - mask.ndim), *mask.shape)
        if len(job.leading) != 2:
            mask = mask.expand(job.shape)  # folded as query and key are
            mask = mask.reshape(math.prod(job.leading[:-1]), job.leading[-1], job.queries, job.keys)
    return mask


def mask_elements(job: Job) -> int:
    """Number of elements of the mask if it is built: `padding`, for example, has no more than lengths × keys."""
    if job.mask is None or job.mask is causal or not job.pairs:
        return 0
    *leading, rows, columns = broadcast(*(corner.shape for corner in job.mask_corners))
    return math.prod(leading) * (job.queries if rows > 1 else 1) * (job.keys if columns > 1 else 1)


def _too_wide(job: Job) -> bool:
    """Whether distances are so large that even a float64 inner product is not precise enough."""
    if not is_squared_distance(job.score):
        return False
    with torch.no_grad():
        return reach(*centred(*job.score.as_distance(job.query, job.key))) > DOT_LIMIT


def _may_be_wrong(mean: Tensor, keys: int, has_mask: bool) -> bool:
    """Whether the first number of some row is 0 or NaN, so that the row may be wrong; not looked at if it cannot be.

    torch's CPU kernel turns a row of NaN into 0 if it has few keys, and with a mask a masked key into NaN.
    """
    if not mean.is_cpu or compiling() or type(mean) is not Tensor:  # other kinds of tensors may hold no numbers
        return False
    if not has_mask and keys >= SAFE_KEYS and _keeps_nan(mean.dtype):
        return False
    mean = mean.detach() if mean.requires_grad else mean
    return mean.numel() > 0 and not mean.select(-1, 0).abs().min().item() > 0  # NaN is not > 0


@functools.cache
def _keeps_nan(dtype: torch.dtype) -> bool:
    """Whether torch's CPU kernel gives NaN for a query with NaN, and for it alone; some do not (pytorch#141128)."""
    with torch.no_grad():
        query = torch.zeros(1, 1, SAFE_KEYS, 8, dtype=dtype)
        query[0, 0, 0] = math.nan
        value = torch.ones_like(query)
        key = value.clone()
        key[0, 0, -1] = math.nan
        rows = [torch_attention(query, value, value), torch_attention(query, key, value, is_causal=True)]
        expected = [[True] + [False] * (SAFE_KEYS - 1), [True] + [False] * (SAFE_KEYS - 2) + [True]]
        return [row[0, 0, :, 0].isnan().tolist() for row in rows] == expected


def bounded(query: Tensor, key: Tensor, scale: float) -> bool:
    """Whether no score can be NaN or infinite."""
    if not query.numel() or not key.numel():
        return True
    largest = float(query.detach().abs().max()) * float(key.detach().abs().max()) * abs(scale) * query.shape[-1]
    return largest < torch.finfo(query.dtype).max
