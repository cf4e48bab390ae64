"""`attn_implementation="regard"` for the models of Hugging Face's transformers.

    import regard.integrations.transformers
    model = AutoModel.from_pretrained("…", attn_implementation="regard")

Importing this module registers both an attention function and a mask function under the name "regard". (With the
first alone, transformers would leave out all masks.)

A mask of transformers is a function of indices, `mask_function(batch, head, query, key)`, plus padding and offsets.
Here it becomes a mask of `regard.masks`: causal masks, sliding windows and packed texts say their reach, any other
function is called on blocks of indices, and keys that no query may see are left out. `[batch, 1, q, k]` is built only
if a model computes with the mask as with a tensor.
"""

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._pytree import tree_map_only

from regard.attend import Look, attend, look
from regard.checks import positive
from regard.masks import Mask, Reach, both, causal, documents
from regard.masks.kinds import Shifted
from regard.scores import Dot, Score
from regard.scores import softcap as capped
from regard.torch_modes import compiling
from regard.weighing import Weighing, sinks, softmax

try:
    from transformers import AttentionInterface, AttentionMaskInterface, masking_utils
    from transformers.utils import output_capturing
except ImportError as error:
    raise ModuleNotFoundError(
        f"regard.integrations.transformers needs transformers 5 or later: pip install 'transformers>=5' ({error})"
    ) from None

_MaskFunction = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
_ANY = 2**60
"""Any distance: more than all keys."""
_DESCRIBING = ("__get__", "contiguous", "dim", "size")
"""Functions of torch that only ask what kind of tensor it is; `__get__` is that of shape, dtype and device."""


def register(top: int = 8) -> None:
    """Register `attn_implementation="regard"` in transformers. Importing this module does it, with the default.

    top   how many of the largest weights of each query `output_attentions=True` gives

    >>> from transformers import BertConfig, BertModel
    >>> sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 8}
    >>> register(top=3)
    >>> model = BertModel._from_config(BertConfig(**sizes), attn_implementation="regard")
    >>> outputs = model(torch.tensor([[5, 6, 7, 8, 9]]), output_attentions=True)
    >>> len(outputs.attentions), outputs.attentions[0].weight.shape  # a regard.Look for each layer
    (2, torch.Size([1, 2, 5, 3]))
    >>> register()
    """
    AttentionInterface.register("regard", functools.partial(attention, top=positive("top", top)))
    AttentionMaskInterface.register("regard", attention_mask)


def attention(  # noqa: PLR0913  # the signature of transformers
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    position_bias: Tensor | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    top: int = 8,
    **kwargs: object,
) -> tuple[Tensor, Look | None]:
    """The attention function that transformers calls: the mean, `[batch, q, heads, size]`, and a `Look` if asked for.

    key and value have their own number of heads. Of the other arguments that transformers passes, `sliding_window` is
    in the mask already.
    """
    if type(kwargs.get("cache")).__name__ == "PagedAttentionCache":
        raise NotImplementedError("regard has no paged cache: for continuous batching, set attn_implementation='sdpa'")
    keys, mask = _visible(module, query, key, attention_mask, is_causal)
    if keys != slice(0, key.shape[2]):
        key, value = key[:, :, keys], value[:, :, keys]
    if position_bias is not None:
        bias = position_bias[..., keys]
        mask = bias if mask is None else both(mask, bias)
    score: Score = Dot(scaled=True, scale=None if scaling is None else float(scaling))
    if softcap is not None:
        score = capped(score, softcap)
    weigh: Weighing = softmax if s_aux is None else sinks(s_aux)
    mean = attend(query, key, value, score=score, mask=mask, weigh=weigh, dropout=float(dropout))
    found = None
    if _asked(kwargs) and not compiling():
        top = min(top, key.shape[2])
        found = look(query, key, score=score, mask=mask, weigh=weigh, top=top) if top else None
    if found is not None:
        found = Look(torch.where(found.index < 0, found.index, found.index + keys.start), found.weight)
    return mean.transpose(1, 2).contiguous(), found  # [batch, heads, q, size] → [batch, q, heads, size]


def _asked(kwargs: dict[str, object]) -> bool:
    """Whether the caller of the model asked for attentions. Not every model passes that on to its layers."""
    collector = output_capturing._active_collector.get() or {}
    return bool(kwargs.get("output_attentions")) or any("attentions" in name for name in collector)


def _visible(
    module: nn.Module, query: Tensor, key: Tensor, attention_mask: Tensor | None, is_causal: bool | None
) -> tuple[slice, Mask | None]:
    """The keys that some query may see, and the mask between the queries and those keys."""
    queries, every = query.shape[2], slice(0, key.shape[2])
    if isinstance(attention_mask, LazyMask):
        return attention_mask.keys, attention_mask.mask
    if attention_mask is not None:
        return every, attention_mask
    # As transformers does for torch's kernel: no mask means all keys, or a causal mask from the top left corner.
    if not (getattr(module, "is_causal", True) if is_causal is None else is_causal) or queries == 1:
        return every, None
    return slice(0, min(queries, key.shape[2])), causal


def attention_mask(  # noqa: PLR0913  # the signature of transformers
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    mask_function: _MaskFunction = masking_utils.causal_mask_function,
    attention_mask: Tensor | None = None,
    dtype: torch.dtype = torch.float32,
    allow_is_causal_skip: bool = True,
    allow_is_bidirectional_skip: bool = False,
    use_vmap: bool = False,
    device: torch.device | str = "cpu",
    **kwargs: object,
) -> Tensor | None:
    """The mask function that transformers calls: a `LazyMask`, or None if every query sees every key.

    Under torch.compile, and with a cache on a GPU whose length is only known there, it is a tensor `[batch, 1, q, k]`.
    """
    build = functools.partial(
        masking_utils.eager_mask,
        batch_size=batch_size,
        q_length=q_length,
        kv_length=kv_length,
        q_offset=q_offset,
        kv_offset=kv_offset,
        mask_function=mask_function,
        attention_mask=attention_mask,
        dtype=dtype,
        use_vmap=use_vmap,
        device=device,
    )
    device = torch.device(device)
    if compiling() or device.type == "meta" or (isinstance(q_offset, Tensor) and q_offset.device.type != "cpu"):
        made: Tensor | None = build(allow_is_bidirectional_skip=allow_is_bidirectional_skip)
        return made
    positions = _Positions(batch_size, q_length, kv_length, int(q_offset), int(kv_offset), use_vmap)
    keys, mask = positions.mask_of(mask_function, attention_mask, device)
    skips = allow_is_bidirectional_skip or (allow_is_causal_skip and q_length == 1)
    if skips and mask is None and keys == slice(0, kv_length):
        return None
    return LazyMask(keys, mask, build, (batch_size, 1, q_length, kv_length), dtype, device)


class LazyMask(Tensor):
    """A mask as transformers hands it from model to layer: a tensor `[batch, 1, q, k]` that holds no numbers.

    keys   those that some query may see
    mask   between the queries and those keys

    It is built if a model computes with it, and then is what "eager" attention adds to the scores: some models have
    layers that compute attention themselves, and do so whatever `attn_implementation` says.
    """

    keys: slice
    mask: Mask | None
    build: Callable[[], Tensor]

    @staticmethod
    def __new__(
        cls,
        keys: slice,
        mask: Mask | None,
        build: Callable[[], Tensor],
        shape: tuple[int, ...],
        dtype: torch.dtype,
        device: torch.device,
    ) -> "LazyMask":
        made = Tensor._make_wrapper_subclass(cls, shape, dtype=dtype, device=device)
        made.keys, made.mask, made.build = keys, mask, build
        return made

    def __repr__(self) -> str:  # type: ignore[override]
        return f"LazyMask({list(self.shape)}, {self.mask})"

    @classmethod
    def __torch_function__(
        cls, function: Any, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, object] | None = None
    ) -> Any:
        if function.__name__ in _DESCRIBING:
            with torch._C.DisableTorchFunctionSubclass():
                return function(*args, **(kwargs or {}))
        return cls.__torch_dispatch__(function, types, args, kwargs)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, function: Any, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, object] | None = None
    ) -> Any:
        args, kwargs = tree_map_only(LazyMask, lambda mask: mask.build(), (args, kwargs or {}))
        return function(*args, **kwargs)


@dataclass(frozen=True)
class _Positions:
    """The rows, queries and keys that a mask is for. The starts are positions in the text."""

    batch: int
    queries: int
    keys: int
    query_start: int
    key_start: int
    use_vmap: bool  # whether the function must be called with single numbers

    def mask_of(
        self, function: _MaskFunction, padding: Tensor | None, device: torch.device
    ) -> tuple[slice, Mask | None]:
        """The keys that some query may see, and the mask between the queries and those keys."""
        leaves = list(_leaves(function))
        behind, ahead = (min(distances) for distances in zip(*map(_distances, leaves), strict=True))
        by = self.query_start - self.key_start
        first = min(max(0, by - behind), self.keys)
        keys = slice(first, max(first, min(self.keys, self.queries + by + ahead)))
        inside = replace(self, keys=keys.stop - keys.start, key_start=self.key_start + keys.start)
        parts = [inside.part_of(leaf) for leaf in leaves if not _is_known(leaf)]
        if self.queries > 1 and min(behind, ahead) < _ANY:  # a single query sees all keys that are left
            near = causal if (behind, ahead) == (_ANY, 0) else _Band(behind, ahead)
            parts.append(near if by == first else Shifted(near, by - first))
        if padding is not None:
            shown = padding[:, inside.key_start : inside.key_start + inside.keys]
            if shown.shape[1] < inside.keys:
                shown = functional.pad(shown, (0, inside.keys - shown.shape[1]))
            if not shown.all():
                if not shown.any():
                    return slice(first, first), None  # texts of padding only
                parts.append(shown[:, None, None, :])  # [batch, 1, 1, k]
        return keys, functools.reduce(both, parts) if parts else None

    def part_of(self, leaf: _MaskFunction) -> Mask:
        """A function of transformers as a mask of ours."""
        name, held = _name_and_closure(leaf)
        if name == "packed_sequence_mask_function.<locals>.inner_mask" and not self.query_start and not self.key_start:
            return documents(held["packed_sequence_mask"])
        return _Called(leaf, self)


@dataclass(frozen=True)
class _Band:
    """A query sees the keys from `behind` positions before its own to `ahead` positions after it."""

    behind: int
    ahead: int
    solid = True

    def __call__(self, query_index: Tensor, key_index: Tensor) -> Tensor:
        distance = key_index - query_index
        return (distance >= -self.behind) & (distance <= self.ahead)

    def reach(self, query_index: Tensor) -> Reach:
        return query_index - self.behind, query_index + self.ahead + 1


@dataclass(frozen=True)
class _Called:
    """Any other function of transformers, called on a block of neighbouring queries and keys."""

    function: _MaskFunction
    at: _Positions

    def __call__(self, query_index: Tensor, key_index: Tensor) -> Tensor:
        query, key = query_index.flatten() + self.at.query_start, key_index.flatten() + self.at.key_start
        if self.at.use_vmap:
            allowed: Tensor = masking_utils.sdpa_mask(
                self.at.batch,
                len(query),
                len(key),
                q_offset=int(query[0]),
                kv_offset=int(key[0]),
                mask_function=self.function,
                allow_is_causal_skip=False,
                use_vmap=True,
                device=query.device,
            )
            return allowed
        batch = torch.arange(self.at.batch, device=query.device).view(-1, 1, 1, 1)
        head = torch.zeros(1, 1, 1, 1, dtype=torch.long, device=query.device)
        return self.function(batch, head, query.view(-1, 1), key)  # [batch or 1, 1, q, k]


def _leaves(function: _MaskFunction) -> Iterator[_MaskFunction]:
    """The functions that `and_masks` of transformers combined."""
    name, held = _name_and_closure(function)
    if name == "and_masks.<locals>.and_mask":
        for inner in held["mask_functions"]:
            yield from _leaves(inner)
    else:
        yield function


def _distances(leaf: _MaskFunction) -> tuple[int, int]:
    """How far before and after its own position a mask function of transformers lets a query see; `_ANY` if unknown."""
    name, held = _name_and_closure(leaf)
    if name == "causal_mask_function":
        return _ANY, 0
    if name == "sliding_window_overlay.<locals>.inner_mask":
        return held["sliding_window"] - 1, _ANY
    if name == "sliding_window_bidirectional_overlay.<locals>.inner_mask":
        return held["sliding_window"], held["sliding_window"]
    return _ANY, _ANY


def _is_known(leaf: _MaskFunction) -> bool:
    """Whether the distances of a mask function say all about it."""
    return _name_and_closure(leaf)[0] == "bidirectional_mask_function" or min(_distances(leaf)) < _ANY


def _name_and_closure(function: _MaskFunction) -> tuple[str, dict[str, Any]]:
    """The name of a mask function of transformers, and what it holds; an empty name for any other function."""
    if getattr(function, "__module__", None) != masking_utils.__name__ or not hasattr(function, "__code__"):
        return "", {}
    cells = (cell.cell_contents for cell in function.__closure__ or ())
    return function.__qualname__, dict(zip(function.__code__.co_freevars, cells, strict=True))


register()
