"""`watch`: record the attention weights of a model while it runs unchanged.

Our layers attend in one place, `Attend`: a hook there gets the exact queries and keys. torch's `nn.MultiheadAttention`
is recorded at its `forward`. So is `nn.TransformerEncoderLayer`, because in evaluation torch computes the whole layer
by one fused call that does not use its attention module. Hooks would disable that call, and change the last digits of
the outputs; so `forward` itself is wrapped while the model is watched. If a subclass overrides `forward`, with any
arguments, torch's own `forward` is recorded whenever the subclass calls it.
"""

import contextlib
import functools
import inspect
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.attend import Look, look
from regard.checks import positive
from regard.layers.attention import Attend
from regard.masks import Mask, both

Weights = dict[str, list[Tensor | Look]]
_Forward = Callable[..., object]
_Wrapper = Callable[..., object]  # (forward, *args, **kwargs): calls forward, and returns its result
_ATTEND, _MULTI_HEAD, _ENCODER_LAYER = (
    inspect.signature(kind.forward) for kind in (Attend, nn.MultiheadAttention, nn.TransformerEncoderLayer)
)
_LOCK = threading.Lock()


@contextlib.contextmanager
def watch(model: nn.Module, layers: Sequence[str] | None = None, top: int | None = None) -> Iterator[Weights]:
    """Record the weights of attention layers during forward passes; the outputs do not change.

    model    any module that contains attention layers of ours, `nn.MultiheadAttention` or `nn.TransformerEncoderLayer`
    layers   names as in `model.named_modules()`; default: all attention layers
    top      number of keys to record for each query, as a `Look`, without the matrix; default: whole matrices

    It gives a dict: for each layer's name, a list with one entry for each time it ran, the weights `[batch, heads, q,
    k]` or a `Look` of `[batch, heads, q, top]`. Weights are those before dropout, without gradients. Nothing stays in
    the model afterwards.

    >>> import torch, regard
    >>> model = torch.nn.TransformerEncoderLayer(16, 4, batch_first=True).eval()
    >>> with regard.watch(model, top=3) as weights:
    ...     _ = model(torch.randn(2, 7, 16))
    >>> {name: records[0].weight.shape for name, records in weights.items()}
    {'self_attn': torch.Size([2, 4, 7, 3])}
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"watch needs a torch module, got {type(model).__name__}")
    if top is not None:
        top = positive("top", top)
    modules = dict(model.named_modules())
    names = [  # the attention layers: torch's, or those that hold an `Attend`
        name
        for name, module in modules.items()
        if isinstance(module, nn.MultiheadAttention) or isinstance(getattr(module, "attend", None), Attend)
    ]
    if not names:
        raise ValueError(f"{type(model).__name__} has no attention layer to watch")
    if isinstance(layers, str):
        raise TypeError(f"layers must be a list of names, got the text {layers!r}: put it in a list")
    unknown = [name for name in layers or [] if name not in names]
    if unknown:
        raise ValueError(f"layers must be among {', '.join(map(repr, names))}, got {', '.join(map(repr, unknown))}")
    weights: Weights = {name: [] for name in (names if layers is None else layers)}
    with contextlib.ExitStack() as stack:
        recorders = [_Recorder(modules[name], records, top) for name, records in weights.items()]
        for recorder in recorders:
            recorder.record_layer(stack)
        for module in modules.values():
            if isinstance(module, nn.TransformerEncoderLayer):
                for recorder in recorders:
                    if recorder.layer is module.self_attn:
                        wrapper = functools.partial(recorder.call_encoder_layer, module)
                        stack.enter_context(_wrap_torch(nn.TransformerEncoderLayer, module, wrapper))
        yield weights


class _Recorder:
    """Records the weights of one attention layer whenever it runs."""

    def __init__(self, layer: nn.Module, records: list[Tensor | Look], top: int | None) -> None:
        self.layer, self.records, self.top = layer, records, top

    def record_layer(self, stack: contextlib.ExitStack) -> None:
        """Record all calls until the stack is closed."""
        if isinstance(self.layer, nn.MultiheadAttention):
            wrapper = functools.partial(self.call_torch_heads, self.layer)
            stack.enter_context(_wrap_torch(nn.MultiheadAttention, self.layer, wrapper))
            stack.enter_context(_wrap_forward(self.layer, self.call_and_warn))
            return
        attend = self.layer.attend
        assert isinstance(attend, Attend)

        def hook(called: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
            if called is not attend:
                return  # a deep copy of the model, made while it is watched, has the hook too
            given = _ATTEND.bind(attend, *args, **kwargs).arguments
            with torch.no_grad():
                self.records.append(attend.look(given["query"], given["key"], given.get("mask"), top=self.top))

        handle = attend.register_forward_pre_hook(hook, with_kwargs=True)
        stack.callback(handle.remove)

    def call_torch_heads(
        self, module: nn.MultiheadAttention, forward: _Forward, *args: object, **kwargs: object
    ) -> object:
        """Call torch's attention, and record its weights."""
        output = forward(*args, **kwargs)
        given = _MULTI_HEAD.bind(module, *args, **kwargs).arguments
        masks = {name: given.get(name) for name in ("key_padding_mask", "attn_mask")}
        self.records.append(_torch_look(module, given["query"], given["key"], **masks, top=self.top))
        return output

    def call_encoder_layer(
        self, module: nn.TransformerEncoderLayer, forward: _Forward, *args: object, **kwargs: object
    ) -> object:
        """Call torch's encoder layer, and record the weights of its attention if that was not called itself."""
        before = len(self.records)
        output = forward(*args, **kwargs)
        if len(self.records) > before:
            return output
        given = _ENCODER_LAYER.bind(module, *args, **kwargs).arguments
        x, padding, mask = given["src"], given.get("src_key_padding_mask"), given.get("src_mask")
        with torch.no_grad():
            if x.is_nested:
                lengths = torch.tensor([len(row) for row in x.unbind()], device=x.device)
                x = x.to_padded_tensor(0.0)
                padding = torch.arange(x.shape[1], device=x.device) >= lengths.unsqueeze(-1)  # [batch, length]
            x = module.norm1(x) if module.norm_first else x
            weight = _torch_look(module.self_attn, x, x, key_padding_mask=padding, attn_mask=mask, top=self.top)
        self.records.append(weight)
        return output

    def call_and_warn(self, forward: _Forward, *args: object, **kwargs: object) -> object:
        """Call a layer of torch, and warn if that recorded nothing."""
        before = len(self.records)
        output = forward(*args, **kwargs)
        if len(self.records) == before:
            warnings.warn(
                f"{type(self.layer).__name__} overrides forward without calling nn.MultiheadAttention's: its weights"
                " are not recorded",
                stacklevel=2,
            )
        return output


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
    module: nn.MultiheadAttention,
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


def _project_heads(module: nn.MultiheadAttention, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor, int]:
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
