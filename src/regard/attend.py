"""The one operation: attention = score → weigh → average.

    f(q) = Σᵢ α(q, kᵢ) vᵢ        α = weigh(score(q, k), mask)

Shapes are `[..., length, size]`; with heads `[batch, heads, length, size]`. Leading dimensions broadcast.
`attend` chooses the engine, `plan` says which one and why, `look` gives the weights. A query that may look
at no key gets a mean of zero, a log weight of -inf, and no NaN, forward or backward. A NaN in the input
gives NaN in the output.

All rules that choose an engine are here: `choose` for `attend`, a line in `attend_parts`, and `_choose_sums` for the
sums of kernel regression (`kernel_means`, `kernel_moments`) that the estimators for tables use.
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol, overload

import torch
from torch import Tensor

from regard.checks import is_number, positive
from regard.engines import Dense, Flash, Gauss, Pairs, Stream, dense, flash
from regard.engines.job import (
    Job,
    Plan,
    broadcast,
    groups_of,
    leading_of,
    reachable_pairs,
    repeat_heads,
    scores_of,
    spans,
)
from regard.engines.kernel_sums import gauss, pairs
from regard.engines.kernel_sums.problem import Means, Moments, Points
from regard.engines.stream import fusible, mask_gradient
from regard.engines.top_weights import top_weights
from regard.kernels import DOT_LIMIT, DOT_REACH, centred, reach
from regard.masks import Mask, causal
from regard.masks.evaluation import check_polarity, has_reach, parts_of
from regard.masks.kinds import of_torch
from regard.parts import Attended
from regard.scores import Dot, Score, is_inner_product, is_squared_distance, scaled_dot, with_scale
from regard.torch_modes import compiling, transforming
from regard.weighing import Weighing, softmax


class Engine(Protocol):
    """A way to compute attention. See `regard.engines`."""

    @property
    def name(self) -> str: ...

    def refuses(self, job: Job) -> str | None: ...

    def algorithm(self, job: Job) -> str: ...

    def attend(self, job: Job) -> Tensor: ...


class _KernelSums(Protocol):
    """A way to compute the sums of kernel regression: a module of `regard.engines`."""

    def algorithm(self, points: Points, tolerance: float, *, moments: bool) -> str: ...

    def means(self, points: Points, tolerance: float) -> Means: ...

    def moments(self, points: Points, tolerance: float) -> Moments: ...


class Look(NamedTuple):
    """The largest weights of each query, in descending order. If it may see fewer keys: index -1, weight 0.

    index    `[..., q, top]` which keys
    weight   `[..., q, top]` their weights, normalised over all keys that the query may see

    >>> import torch, regard
    >>> key = torch.tensor([[1.0], [3.0], [2.0]])
    >>> found = regard.look(torch.tensor([[1.0]]), key, mask=torch.tensor([True, False, True]), top=3)
    >>> found.index.tolist(), [round(weight, 2) for weight in found.weight[0].tolist()]
    ([[2, 0, -1]], [0.73, 0.27, 0.0])
    """

    index: Tensor  # type: ignore[assignment]  # [..., q, top]  which keys
    weight: Tensor  # [..., q, top]  their weights, normalised over all keys the query may see


ENGINES: dict[str, Engine] = {engine.name: engine for engine in (Dense(), Flash(), Stream(), Pairs(), Gauss())}
_KERNEL_SUMS: dict[str, _KernelSums] = {"dense": dense, "pairs": pairs, "gauss": gauss}
_DENSE_LIMIT, _DENSE_DROPOUT_LIMIT = 2**20, 2**14
"""Largest number of floats, in the matrix and in its score while it is computed, that counts as small; with dropout."""
PAIRS_FROM, GAUSS_FROM, PAIRS_VALUES = 2**28, 2**33, 8
"""For tensors: number of pairs from which `pairs` and `gauss` are faster, and up to how many columns of values."""
DENSE_SUMS_LIMIT = 2**20
"""For sums: number of pairs that NumPy computes before compiled loops would be loaded."""
_GAUSS_TOLERANCE = 1e-9
"""For sums: least tolerance that `gauss` is tried for."""
_SPARSE_FROM, _SPARSE_FRACTION = 2**20, 0.4
"""Number of pairs from which, and fraction of them in the reach of the mask up to which, the others are left out."""
_LOOK_LIMIT = 2 * 2**30
"""Largest matrix, in bytes, that `look` builds."""
listeners: list[Callable[[Tensor, Tensor, Score, Mask | None, Weighing], None]] = []
"""Called by `attend` with query, key, score, mask and weighing: how `regard.watch` hears it."""


def attend(  # noqa: PLR0913  # the one operation: each argument is a part of its definition
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    score: Score = scaled_dot,
    mask: Mask | None = None,
    weigh: Weighing = softmax,
    dropout: float = 0.0,
    scale: float | None = None,
    engine: str | Engine | None = None,
) -> Tensor:
    """The average of the values, weighted by how well their keys answer each query: `[..., q, v]`.

    query `[..., q, d]`, key `[..., k, e]`, value `[..., k, v]`: leading dimensions broadcast; d = e if
    the score needs it. Groups of query heads may share a head of keys and values, which is not copied: query
    `[batch, heads, q, d]`, key and value `[batch, heads / groups, k, …]` (Ainslie et al. 2023).

    score     one of `regard.scores`, or any callable `(query, key) -> [..., q, k]`
    mask      one of `regard.masks`, a boolean tensor (True = may look), or a bias that is added. A boolean tensor that
              is all False, for more than one query, raises ValueError
    weigh     one of `regard.weighing`
    dropout   the fraction of weights that are dropped; if not 0, also outside of training. The seed is torch's
    scale     the factor of the inner product, for the scores `scaled_dot` (by default 1/√d) and `dot`
    engine    a name, or a configured engine such as `regard.engines.Stream(block=256)`; by default `attend` chooses

    >>> import torch, regard
    >>> query, key, value = torch.randn(2, 8, 5, 16), torch.randn(2, 8, 7, 16), torch.randn(2, 8, 7, 4)
    >>> regard.attend(query, key, value, mask=regard.masks.causal).shape
    torch.Size([2, 8, 5, 4])
    """
    if scale is not None:
        score = with_scale(score, scale)
    if listeners:
        for listener in tuple(listeners):
            listener(query, key, score, mask, weigh)
    if type(score) is Dot and weigh is softmax and engine is None and type(dropout) is float and not dropout:
        mean = None
        if mask is None or mask is causal:
            mean = flash.attend_unchecked(query, key, value, score, mask is causal)
        elif type(mask) is Tensor:
            mean = flash.attend_unchecked(query, key, value, score, False, mask)
        if mean is not None:
            return mean
    job = make_job(query, key, value, score, mask, weigh, dropout)
    check_polarity(mask, job.queries)
    if engine is None:
        return ENGINES[choose(job).engine].attend(job)
    return _engine_for(engine, job).attend(job)


def attend_parts(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    score: Score = scaled_dot,
    mask: Mask | None = None,
    scale: float | None = None,
) -> Attended:
    """Attention to these keys as a part of all keys: mean `[..., q, v]` and log weight `[..., q]`.

    Parts over disjoint keys are joined by `regard.merge`. Both have gradients. `scale` as in `attend`. No query need
    see a key of a part.

    >>> import torch, regard
    >>> parts = regard.attend_parts(torch.randn(3, 4), torch.randn(9, 4), torch.randn(9, 2))
    >>> parts.mean.shape, parts.log_weight.shape
    (torch.Size([3, 2]), torch.Size([3]))
    """
    job = make_job(query, key, value, with_scale(score, scale), mask, softmax, 0.0)
    return (Dense() if fits_dense(job) or transforming() else Stream()).attend_parts(job)


@overload
def look(
    query: Tensor,
    key: Tensor,
    *,
    score: Score = ...,
    mask: Mask | None = ...,
    scale: float | None = ...,
    weigh: Weighing = ...,
    top: None = ...,
) -> Tensor: ...
@overload
def look(
    query: Tensor,
    key: Tensor,
    *,
    score: Score = ...,
    mask: Mask | None = ...,
    scale: float | None = ...,
    weigh: Weighing = ...,
    top: int,
) -> Look: ...
@overload
def look(
    query: Tensor,
    key: Tensor,
    *,
    score: Score = ...,
    mask: Mask | None = ...,
    scale: float | None = ...,
    weigh: Weighing = ...,
    top: int | None,
) -> Tensor | Look: ...
def look(
    query: Tensor,
    key: Tensor,
    *,
    score: Score = scaled_dot,
    mask: Mask | None = None,
    scale: float | None = None,
    weigh: Weighing = softmax,
    top: int | None = None,
) -> Tensor | Look:
    """What attention looks at: all weights `[..., q, k]`, or the `top` largest of each query.

    With `top` the matrix is never built, the weights are normalised over all keys, and have no gradient; the weighing
    must be one that goes by blocks of keys. Without it, a matrix above 2 GiB raises ValueError. Under a sparse weighing
    the keys with a weight are all that the mean depends on: `weigh=regard.weighing.sparsemax`. `scale` as in `attend`.

    >>> import torch, regard
    >>> found = regard.look(torch.tensor([[9.0]]), torch.tensor([[0.0], [1.0], [0.5]]), top=2)
    >>> found.index.tolist(), [round(w, 3) for w in found.weight[0].tolist()]
    ([[1, 2]], [0.989, 0.011])
    """
    job = make_job(query, key, key, with_scale(score, scale), mask, weigh, 0.0)
    check_polarity(mask, job.queries)
    if top is not None:
        if ENGINES["stream"].refuses(job):
            name = getattr(weigh, "__name__", weigh)
            raise ValueError(f"top needs a weighing that goes by blocks of keys, got {name}: ask for all weights")
        return Look(*top_weights(job, positive("top", top)))
    size = job.pairs * query.element_size()
    if size > _LOOK_LIMIT:
        raise ValueError(
            f"the weights {list(job.shape)} would take {size / 2**30:.1f} GiB, above the limit of 2 GiB:"
            " ask for the largest of each query with top=8, or look at fewer queries at a time"
        )
    # As many queries at a time as keep the memory of the score below that of the matrix.
    at_once = max(1, job.queries // job.width)
    return torch.cat([dense.weights(job, rows) for rows in spans(job.queries, at_once)] or [dense.weights(job)], dim=-2)


def plan(  # noqa: PLR0913  # as `attend`
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    score: Score = scaled_dot,
    mask: Mask | None = None,
    weigh: Weighing = softmax,
    dropout: float = 0.0,
    scale: float | None = None,
    engine: str | Engine | None = None,
) -> Plan:
    """What `attend` would run with the same arguments: the engine, why, and its algorithm.

    >>> import torch, regard
    >>> x = torch.randn(1, 8, 512, 64)
    >>> regard.plan(x, x, x).engine
    'flash'
    """
    score = with_scale(score, scale)
    job = make_job(query, key, value, score, mask, weigh, dropout)
    check_polarity(mask, job.queries)
    scores_of(score, query[..., :1, :], repeat_heads(key[..., :1, :], job.groups))  # raises what attend would raise
    if engine is None:
        chosen = choose(job)
        return chosen._replace(algorithm=ENGINES[chosen.engine].algorithm(job))
    requested = _engine_for(engine, job)
    return Plan(requested.name, "it was requested", requested.algorithm(job))


def choose(job: Job) -> Plan:
    """The engine for a job, and the reason."""
    if transforming():
        return Plan("dense", "torch.func transforms the program: only dense supports that")
    if job.weigh is not softmax:
        return _choose_for_weighing(job)
    if compiling():
        return _choose_compiled(job)
    if not job.pairs:
        return Plan("dense", "empty input: no queries or no keys")
    if job.pairs >= PAIRS_FROM and job.query.dtype == torch.float32 and job.value.shape[-1] <= PAIRS_VALUES:
        if job.pairs >= GAUSS_FROM and not ENGINES["gauss"].refuses(job):
            return Plan("gauss", f"{job.pairs:,} pairs of a Gaussian in few dimensions: by Fourier transform")
        if not ENGINES["pairs"].refuses(job):
            return Plan("pairs", f"{job.pairs:,} pairs of a kernel, without gradients: in one fused pass")
    if is_inner_product(job.score) and (job.groups == 1 or not is_squared_distance(job.score)):
        return _choose_inner_product(job)
    if fits_dense(job):
        return Plan("dense", f"the matrix is small: {job.pairs:,} pairs")
    return Plan("stream", f"{job.pairs:,} pairs of a score that is no inner product: by blocks, without the matrix")


def _choose_compiled(job: Job) -> Plan:
    """The engine while torch compiles or exports, when neither values nor, perhaps, lengths are known."""
    distances = is_squared_distance(job.score)
    reaches = any(has_reach(part) for part in parts_of(job.mask) if part is not causal)
    if fusible(job) and (job.dropout or reaches or distances):
        return Plan("stream", "compiled: the fused loops are one operation")
    if is_inner_product(job.score) and not job.dropout and not (distances and job.groups > 1):
        return Plan("flash", "the score is an inner product: it runs on torch's fused kernel")
    return Plan("dense", "compiled: torch fuses the matrix with what is around it")


def _choose_for_weighing(job: Job) -> Plan:
    """The engine for a weighing beside softmax: `stream` for those that go by blocks of keys, unless pairs are few."""
    name = getattr(job.weigh, "__name__", job.weigh)
    if ENGINES["stream"].refuses(job):
        return Plan("dense", f"only dense can weigh by {name}")
    if not job.pairs:
        return Plan("dense", "empty input: no queries or no keys")
    if compiling():
        return Plan("dense", "torch.compile: only dense supports that with a weighing beside softmax")
    if fits_dense(job):
        return Plan("dense", f"the matrix is small: {job.pairs:,} pairs")
    return Plan("stream", f"{job.pairs:,} pairs weighed by {name}: by blocks, without the matrix")


def _choose_inner_product(job: Job) -> Plan:
    """The engine for an inner product under softmax: `flash`, unless `stream` saves memory or precision."""
    on_cpu = job.query.device.type == "cpu"
    if on_cpu and job.dropout and job.pairs <= _DENSE_DROPOUT_LIMIT:
        return Plan("dense", f"the matrix is small: {job.pairs:,} pairs")
    if on_cpu and job.dropout:
        return Plan("stream", "dropout: torch's CPU kernel would build the matrix for it")
    if on_cpu and mask_gradient(job):
        return Plan("stream", "the bias needs a gradient: torch's CPU kernel would build the matrix for it")
    if on_cpu and job.pairs >= _SPARSE_FROM:
        seen = reachable_pairs(job)
        if seen <= job.pairs * _SPARSE_FRACTION:
            return Plan("stream", f"the mask reaches {seen:,} of {job.pairs:,} pairs: the others are left out")
    elements = flash.mask_elements(job)
    if elements > flash.MASK_LIMIT:
        return Plan("stream", f"the mask has {elements:,} elements: it is evaluated by blocks instead of built")
    if is_squared_distance(job.score):
        with torch.no_grad():
            distance = reach(*centred(*job.score.as_distance(job.query, job.key)))
        if distance > (DOT_REACH if on_cpu and job.query.dtype == torch.float32 else DOT_LIMIT):
            return Plan(
                "stream",
                "points are far apart relative to the bandwidth: computing distances from differences keeps precision",
            )
    return Plan("flash", "the score is an inner product: it runs on torch's fused kernel")


def _choose_sums(points: Points, tolerance: float = 1e-6) -> Plan:
    """The engine for the sums of kernel regression, and the reason."""
    if points.pairs <= DENSE_SUMS_LIMIT:
        return Plan("dense", f"only {points.pairs:,} pairs")
    reason = "gauss is not that exact" if tolerance < _GAUSS_TOLERANCE else gauss.unsuitable(points)
    if reason is None:
        return Plan("gauss", f"{points.pairs:,} pairs of a Gaussian in few dimensions: by Fourier transform")
    return Plan("pairs", f"{points.pairs:,} pairs: those that matter, in one fused pass ({reason})")


def plan_sums(points: Points, tolerance: float = 1e-6, *, moments: bool = False) -> Plan:
    """What `kernel_means` or `kernel_moments` would run: the engine, why, and its algorithm."""
    chosen = _choose_sums(points, tolerance)
    return chosen._replace(algorithm=_KERNEL_SUMS[chosen.engine].algorithm(points, tolerance, moments=moments))


def kernel_means(points: Points, tolerance: float = 1e-6) -> Means:
    """Weighted means of the values, `[queries, values]`, and log weights `[queries]`."""
    return _KERNEL_SUMS[_choose_sums(points, tolerance).engine].means(points, tolerance)


def kernel_moments(points: Points, tolerance: float = 1e-6) -> Moments:
    """Weighted means of the values, the offsets and their products, which a local line is fitted from."""
    return _KERNEL_SUMS[_choose_sums(points, tolerance).engine].moments(points, tolerance)


def fits_dense(job: Job) -> bool:
    """Whether the matrix is cheaper than computing without it."""
    return job.pairs * job.width <= _DENSE_LIMIT


def _engine_for(requested: str | Engine, job: Job) -> Engine:
    """The requested engine, if it can do the job."""
    if isinstance(requested, str):
        if requested not in ENGINES:
            raise ValueError(f"engine must be one of {', '.join(ENGINES)}, got {requested!r}")
        engine = ENGINES[requested]
    elif isinstance(requested, type) or not (hasattr(requested, "refuses") and hasattr(requested, "attend")):
        raise TypeError(
            f"engine must be a name or an engine such as regard.engines.Stream(block=256), got {requested!r}"
        )
    else:
        engine = requested
    refusal = engine.refuses(job)
    if refusal:
        able = ", ".join(name for name, other in ENGINES.items() if not other.refuses(job))
        raise ValueError(f"{refusal}; engines that can: {able}")
    return engine


def make_job(
    query: Tensor, key: Tensor, value: Tensor, score: Score, mask: Mask | None, weigh: Weighing, dropout: float
) -> Job:
    """The job, if everything fits together; else an error says what must hold and what was got."""
    query, key, value = _autocast(query, key, value)
    leading = _check_tensors(query, key, value)
    for name, argument in (("score", score), ("mask", mask), ("weigh", weigh)):
        if isinstance(argument, type):
            raise TypeError(f"{name} must be an instance, {argument.__name__}(…), got the class itself")
    if not callable(score):
        raise TypeError(f"score must be callable, (query, key) -> [..., q, k], got {type(score).__name__}")
    if not callable(weigh):
        raise TypeError(f"weigh must be callable, scores -> weights, got {type(weigh).__name__}")
    if not is_number(dropout):
        raise TypeError(f"dropout must be a number between 0 and 1, got {dropout!r}")
    if not 0 <= dropout <= 1:  # also raises for NaN
        raise ValueError(f"dropout must be between 0 and 1, got {dropout}")
    shape = torch.Size([*leading, query.shape[-2], key.shape[-2]])
    mask = None if mask is None else of_torch(mask)
    for part in parts_of(mask):
        if not isinstance(part, Tensor) and not callable(part):
            raise TypeError(f"mask must be callable or a tensor, got {type(part).__name__}")
        if isinstance(part, Tensor) and not broadcasts(part.shape, shape):
            raise ValueError(f"mask must broadcast to the scores' shape {list(shape)}, got {list(part.shape)}")
    job = Job(query, key, value, score, mask, weigh, float(dropout))
    _check_mask_corners(job)
    return job


def _autocast(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Tensors of several dtypes under autocast in its dtype, as torch's own attention takes them; others unchanged."""
    kinds = {(x.device.type, x.dtype) for x in tensors if isinstance(x, Tensor) and x.is_floating_point()}
    devices = {device for device, _ in kinds}
    if len(kinds) < 2 or len(devices) > 1 or not torch.is_autocast_enabled(max(devices)):
        return tensors
    return tuple(x.to(torch.get_autocast_dtype(max(devices))) for x in tensors)


def _check_tensors(query: Tensor, key: Tensor, value: Tensor) -> torch.Size:
    """The broadcast leading dimensions of tensors with fitting shapes, one dtype and one device."""
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{name} must be a torch tensor, got {type(tensor).__name__}")
        if tensor.ndim < 2:
            raise ValueError(f"{name} must be [..., length, size], got shape {list(tensor.shape)}")
        if not tensor.is_floating_point():
            raise TypeError(f"{name} must have a floating point dtype, got {tensor.dtype}")
    if any(x.is_nested for x in (query, key, value)):
        raise TypeError("nested tensors are not supported: pad them, and give their lengths by regard.masks.padding")
    if any(x.layout != torch.strided for x in (query, key, value)):
        raise TypeError("query, key and value must be dense tensors: call to_dense() on sparse ones")
    if not query.dtype == key.dtype == value.dtype:
        raise TypeError(f"query, key and value must have one dtype, got {query.dtype}, {key.dtype} and {value.dtype}")
    if not query.device == key.device == value.device:
        raise ValueError(
            f"query, key and value must be on one device, got {query.device}, {key.device} and {value.device}"
        )
    if key.shape[-2] != value.shape[-2]:
        raise ValueError(f"key and value must have one length, got {key.shape[-2]} keys and {value.shape[-2]} values")
    try:
        return leading_of(query, key, value, groups_of(query, key, value))
    except ValueError:
        got = " and ".join(str(list(x.shape[:-2])) for x in (query, key, value))
        raise ValueError(
            f"leading dimensions of query, key and value must broadcast, got {got}; query heads may share heads of keys"
            " and values in groups of one size: [batch, heads, q, d] and [batch, heads / groups, k, d]"
        ) from None


def _check_mask_corners(job: Job) -> None:
    """A part of the mask must be boolean or a bias of the query's dtype, on its device, with fitting dimensions."""
    expected = torch.Size([*job.leading, min(2, job.queries), min(2, job.keys)])
    for corner in job.mask_corners:
        if corner.dtype != torch.bool and not corner.is_floating_point():
            raise TypeError(f"mask must be boolean (True = may look) or a bias of real numbers, got {corner.dtype}")
        if corner.device != job.query.device:
            raise ValueError(f"mask must be on the query's device, {job.query.device}, got {corner.device}")
        if not broadcasts(corner.shape, expected):
            raise ValueError(
                f"a mask must fit the leading dimensions of the scores, {list(job.leading)},"
                f" got one with {list(corner.shape[:-2])}"
            )


def broadcasts(shape: tuple[int, ...], to: torch.Size) -> bool:
    """Whether a shape broadcasts to another without changing it."""
    try:
        return broadcast(shape, to) == to
    except ValueError:
        return False
