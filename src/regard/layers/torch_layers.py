"""Recording torch's own attention layers at `forward`.

In evaluation torch computes a whole `nn.TransformerEncoderLayer` by one fused call that does not use its attention
module, and `nn.MultiheadAttention` by another. Hooks, and a mode that hears torch's functions, would disable these
calls and change the last digits of the outputs; so `forward` itself is wrapped, and the mode paused inside. If a
subclass overrides `forward`, with any arguments, torch's own `forward` is recorded whenever the subclass calls it.
"""

import contextlib
import functools
import inspect
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from regard.attend import Look, look
from regard.masks import Mask, both
from regard.torch_modes import paused

Keep = Callable[[Tensor | Look], None]
"""Keeps the weights of one run of a layer."""
_Forward = Callable[..., object]
_Wrapper = Callable[..., object]  # (forward, *args, **kwargs): calls forward, and returns its result
_MULTI_HEAD, _ENCODER_LAYER, _FUNCTION = (
    inspect.signature(function)
    for function in (
        nn.MultiheadAttention.forward,
        nn.TransformerEncoderLayer.forward,
        functional.multi_head_attention_forward,
    )
)
_LOCK = threading.Lock()


class TorchRecorder:
    """Gives the weights of one `nn.MultiheadAttention` to `keep` whenever it runs."""

    def __init__(self, layer: nn.MultiheadAttention, keep: Keep, top: int | None) -> None:
        self.layer, self.top, self._keep = layer, top, keep
        self.runs = 0

    def wrap(self, modules: Iterable[nn.Module], stack: contextlib.ExitStack) -> None:
        """Record all runs until the stack is closed, also those of torch's encoder layers around it."""
        stack.enter_context(_wrap_torch(nn.MultiheadAttention, self.layer, self.call_heads))
        stack.enter_context(_wrap_forward(self.layer, self.call_and_warn))
        for module in modules:
            if isinstance(module, nn.TransformerEncoderLayer) and module.self_attn is self.layer:
                wrapper = functools.partial(self.call_encoder_layer, module)
                stack.enter_context(_wrap_torch(nn.TransformerEncoderLayer, module, wrapper))

    def keep(self, weights: Tensor | Look) -> None:
        self.runs += 1
        self._keep(weights)

    def call_heads(self, forward: _Forward, *args: object, **kwargs: object) -> object:
        """Call torch's attention, and record its weights."""
        output = forward(*args, **kwargs)
        given = _MULTI_HEAD.bind(self.layer, *args, **kwargs).arguments
        masks = {name: given.get(name) for name in ("key_padding_mask", "attn_mask")}
        self.keep(_torch_look(self.layer, given["query"], given["key"], **masks, top=self.top))
        return output

    def call_encoder_layer(
        self, module: nn.TransformerEncoderLayer, forward: _Forward, *args: object, **kwargs: object
    ) -> object:
        """Call torch's encoder layer, and record the weights of its attention if that was not called itself."""
        before = self.runs
        output = forward(*args, **kwargs)
        if self.runs > before:
            return output
        given = _ENCODER_LAYER.bind(module, *args, **kwargs).arguments
        x, padding, mask = given["src"], given.get("src_key_padding_mask"), given.get("src_mask")
        with torch.no_grad():
            if x.is_nested:
                lengths = torch.tensor([len(row) for row in x.unbind()], device=x.device)
                x = x.to_padded_tensor(0.0)
                padding = torch.arange(x.shape[1], device=x.device) >= lengths.unsqueeze(-1)  # [batch, length]
            x = module.norm1(x) if module.norm_first else x
            self.keep(_torch_look(module.self_attn, x, x, key_padding_mask=padding, attn_mask=mask, top=self.top))
        return output

    def call_and_warn(self, forward: _Forward, *args: object, **kwargs: object) -> object:
        """Call a layer of torch, and warn if that recorded nothing."""
        before = self.runs
        output = forward(*args, **kwargs)
        if self.runs == before:
            warnings.warn(
                f"{type(self.layer).__name__} overrides forward without calling nn.MultiheadAttention's: its weights"
                " are not recorded",
                stacklevel=2,
            )
        return output


def function_look(args: tuple[Any, ...], kwargs: dict[str, Any], top: int | None) -> Tensor | Look:
    """The weights of a call of `torch.nn.functional.multi_head_attention_forward`."""
    call = _FUNCTION.bind(*args, **kwargs)
    call.apply_defaults()
    given = call.arguments
    separate = given["use_separate_proj_weight"]
    layer = SimpleNamespace(
        in_proj_weight=None if separate else given["in_proj_weight"],
        num_heads=given["num_heads"],
        head_dim=given["query"].shape[-1] // given["num_heads"],
        batch_first=False,
        **{name: given[name] for name in ("in_proj_bias", "q_proj_weight", "k_proj_weight", "bias_k", "add_zero_attn")},
    )
    masks = {name: given[name] for name in ("key_padding_mask", "attn_mask")}
    return _torch_look(layer, given["query"], given["key"], **masks, top=top)


def pause_in_torch_layers(
    kind: type[TorchFunctionMode], modules: Iterable[nn.Module], stack: contextlib.ExitStack
) -> None:
    """Pause modes of this kind inside torch's attention layers, until the stack is closed."""

    def call(forward: _Forward, *args: object, **kwargs: object) -> object:
        with paused(kind):
            return forward(*args, **kwargs)

    for module in modules:
        if isinstance(module, nn.MultiheadAttention):
            stack.enter_context(_wrap_torch(nn.MultiheadAttention, module, call))
        elif _has_torch_heads(module):
            stack.enter_context(_wrap_torch(nn.TransformerEncoderLayer, module, call))
        elif isinstance(module, nn.TransformerEncoder) and all(map(_has_torch_heads, module.layers)):
            stack.enter_context(_wrap_torch(nn.TransformerEncoder, module, call))


def _has_torch_heads(module: nn.Module) -> bool:
    """Whether it is torch's encoder layer with torch's attention, and so may run as one fused call."""
    return isinstance(module, nn.TransformerEncoderLayer) and isinstance(module.self_attn, nn.MultiheadAttention)


class _WrappedForward:
    """The `forward` of a module or a class with wrappers around it, the last one outermost."""

    def __init__(self, forward: _Forward, own: _Forward | None) -> None:
        self.forward, self.own = forward, own  # own: what the module or class itself has as `forward`
        self.wrappers: list[_Wrapper] = []

    def __call__(self, *args: object, **kwargs: object) -> object:
        forward = self.forward
        for wrapper in self.wrappers:
            forward = functools.partial(wrapper, forward)
        return forward(*args, **kwargs)

    def __get__(self, module: nn.Module | None, kind: type[nn.Module]) -> _Forward:
        return self if module is None else functools.partial(self, module)  # a method, if it is a class's


@contextlib.contextmanager
def _wrap_forward(target: nn.Module | type[nn.Module], wrapper: _Wrapper) -> Iterator[None]:
    """Call `wrapper(forward, *args, **kwargs)` instead of a module's or class's `forward`; may end in any order."""
    entry = functools.partial(wrapper)  # the same wrapper may be entered several times
    with _LOCK:
        own = vars(target).get("forward")
        wrapped = own if isinstance(own, _WrappedForward) else _WrappedForward(target.forward, own)
        wrapped.wrappers = [*wrapped.wrappers, entry]
        target.forward = wrapped
    try:
        yield
    finally:
        with _LOCK:
            wrapped.wrappers = [other for other in wrapped.wrappers if other is not entry]
            if not wrapped.wrappers and vars(target).get("forward") is wrapped:
                if wrapped.own is None:
                    del target.forward
                else:
                    target.forward = wrapped.own


def _wrap_torch(kind: type[nn.Module], module: nn.Module, wrapper: _Wrapper) -> contextlib.AbstractContextManager[None]:
    """Wrap the `forward` of a class of torch for one module, also below a subclass that overrides it."""
    if type(module).forward is kind.forward:
        return _wrap_forward(module, wrapper)

    def for_module(forward: _Forward, called: nn.Module, *args: object, **kwargs: object) -> object:
        bound = functools.partial(forward, called)
        return wrapper(bound, *args, **kwargs) if called is module else bound(*args, **kwargs)

    def outer(forward: _Forward, *args: object, **kwargs: object) -> object:
        with _wrap_forward(kind, for_module):
            return forward(*args, **kwargs)

    return _wrap_forward(module, outer)


@torch.no_grad()
def _torch_look(
    module: nn.MultiheadAttention | SimpleNamespace,
    query: Tensor,
    key: Tensor,
    *,
    key_padding_mask: Tensor | None = None,
    attn_mask: Tensor | None = None,
    top: int | None = None,
) -> Tensor | Look:
    """The weights of torch's layer for the arguments of its `forward`: `[batch, heads, q, k]`, or the top ones.

    Without a batch, `[heads, q, k]`. Keys that the layer adds itself (`bias_k`, `add_zero_attn`) come last.
    """
    batched = query.ndim == 3
    if not batched:
        query, key = query.unsqueeze(0), key.unsqueeze(0)
    elif not module.batch_first:
        query, key = query.transpose(0, 1), key.transpose(0, 1)  # [batch, length, size]
    query, key, added = _project_heads(module, query, key)
    mask: Mask | None = None
    if attn_mask is not None:
        shape = len(query), module.num_heads, *attn_mask.shape[-2:]
        table = attn_mask.view(shape) if attn_mask.ndim == 3 else attn_mask  # [batch, heads, q, k] or [q, k]
        mask = _as_our_mask(table, added, query.dtype)
    if key_padding_mask is not None:
        table = key_padding_mask if batched else key_padding_mask.unsqueeze(0)
        padding = _as_our_mask(table[:, None, None], added, query.dtype)  # [batch, 1, 1, k]
        mask = padding if mask is None else both(mask, padding)
    weights = look(query, key, mask=mask, top=top)
    if batched:
        return weights
    return Look(*(x[0] for x in weights)) if isinstance(weights, Look) else weights[0]


def _project_heads(
    module: nn.MultiheadAttention | SimpleNamespace, query: Tensor, key: Tensor
) -> tuple[Tensor, Tensor, int]:
    """Queries and keys of torch's layer, `[batch, heads, length, d]`, and the number of keys that it adds itself."""
    if module.in_proj_weight is not None:
        query_weight, key_weight, _ = module.in_proj_weight.chunk(3)
    else:
        query_weight, key_weight = module.q_proj_weight, module.k_proj_weight
    query_bias, key_bias, _ = (None, None, None) if module.in_proj_bias is None else module.in_proj_bias.chunk(3)
    query, key = functional.linear(query, query_weight, query_bias), functional.linear(key, key_weight, key_bias)
    added = []
    if module.bias_k is not None:
        added.append(module.bias_k.expand(len(key), 1, -1))
    if module.add_zero_attn:
        added.append(key.new_zeros(len(key), 1, key.shape[-1]))
    key = torch.cat([key, *added], dim=1)
    query, key = (x.reshape(*x.shape[:2], module.num_heads, module.head_dim).transpose(1, 2) for x in (query, key))
    return query, key, len(added)


def _as_our_mask(table: Tensor, added: int, dtype: torch.dtype) -> Tensor:
    """torch's boolean mask (True = may not attend) inverted, or its bias as it is; the added keys are visible."""
    if table.dtype == torch.bool:
        return functional.pad(~table, (0, added), value=True)
    return functional.pad(table.to(dtype), (0, added))
