"""What the layers of a model look at while it runs as it always does.

Our layers attend in one place, `Attend`, and a hook there is given the very queries and keys. torch's
`nn.MultiheadAttention` is listened to at its `forward`; so is `nn.TransformerEncoderLayer`, because in evaluation
torch computes the whole layer in one call that never comes by its attention. Hooks would turn that call off,
and change the last digits of the outputs: there, `forward` itself is wrapped for the time. Where a subclass has one
of its own, with whatever arguments, it is torch's that is listened to, while the subclass calls it.
"""

import contextlib
import functools
import inspect
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from regard.attend import Look
from regard.checks import positive
from regard.layers.attention import Attend
from regard.layers.torch_interop import torch_look

Seen = dict[str, list[Tensor | Look]]
Forward = Callable[..., Any]
Wrapper = Callable[..., Any]
ATTEND = inspect.signature(Attend.forward)


@contextlib.contextmanager
def watch(model: nn.Module, layers: Sequence[str] | None = None, top: int | None = None) -> Iterator[Seen]:
    """Record what attention layers look at during forward passes; the outputs do not change.

    model    any module with layers of ours, torch's `nn.MultiheadAttention` or `nn.TransformerEncoderLayer` in it
    layers   names as in `model.named_modules()`; all attention layers where they are not given
    top      how many keys of each query are kept, as a `Look`, without the matrix; whole matrices where not given

    What it gives is a dict: for each layer's name, a list with one entry for each time it ran, the weights
    `[batch, heads, q, k]` or a `Look` of `[batch, heads, q, top]`. Weights are those before dropout, and without
    gradients. Nothing stays in the model afterwards.

    >>> import torch, regard
    >>> model = torch.nn.TransformerEncoderLayer(16, 4, batch_first=True).eval()
    >>> with regard.watch(model, top=3) as seen:
    ...     _ = model(torch.randn(2, 7, 16))
    >>> {name: found[0].weight.shape for name, found in seen.items()}
    {'self_attn': torch.Size([2, 4, 7, 3])}
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"watch needs a torch module, got {type(model).__name__}")
    if top is not None:
        top = positive("top", top)
    modules = dict(model.named_modules())
    found = [name for name, module in modules.items() if attends(module)]
    if not found:
        raise ValueError(f"{type(model).__name__} has no attention layer to watch")
    if isinstance(layers, str):
        raise TypeError(f"layers must be a list of names, got the text {layers!r}: put it in a list")
    unknown = [name for name in layers or [] if name not in found]
    if unknown:
        raise ValueError(f"layers must be among {', '.join(map(repr, found))}, got {', '.join(map(repr, unknown))}")
    seen: Seen = {name: [] for name in (found if layers is None else layers)}
    with contextlib.ExitStack() as stack:
        for name, record in seen.items():
            listen(modules[name], record, top, stack)
        for module in modules.values():
            if isinstance(module, nn.TransformerEncoderLayer):
                for name, record in seen.items():
                    if modules[name] is module.self_attn:
                        stack.enter_context(LAYER.around(module, functools.partial(encoder_layer, module, record, top)))
        yield seen


def attends(module: nn.Module) -> bool:
    """Whether it is an attention layer: one of torch's, or one that holds an `Attend`."""
    return isinstance(module, nn.MultiheadAttention) or isinstance(getattr(module, "attend", None), Attend)


def listen(module: nn.Module, record: list[Tensor | Look], top: int | None, stack: contextlib.ExitStack) -> None:
    """Have one attention layer's weights recorded."""
    if isinstance(module, nn.MultiheadAttention):
        stack.enter_context(HEADS.around(module, functools.partial(torch_heads, module, record, top)))
        stack.enter_context(wrapped(module, functools.partial(noticed, module, record)))
        return

    attend: Any = module.attend

    def hook(called: Any, args: Any, kwargs: Any) -> None:
        if called is not attend:
            return  # a copy that was made in the meantime has the hook too
        given = ATTEND.bind(attend, *args, **kwargs).arguments
        with torch.no_grad():
            record.append(attend.look(given["query"], given["key"], given.get("mask"), top=top))

    handle = attend.register_forward_pre_hook(hook, with_kwargs=True)
    stack.callback(handle.remove)


class Wrapped:
    """A module's `forward` with wrappers around it, the last one outermost; they go in any order."""

    def __init__(self, forward: Forward, own: Forward | None) -> None:
        self.forward, self.own = forward, own
        self.wrappers: list[Wrapper] = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        forward = self.forward
        for wrapper in self.wrappers:
            forward = functools.partial(wrapper, forward)
        return forward(*args, **kwargs)


@contextlib.contextmanager
def wrapped(module: nn.Module, wrapper: Wrapper) -> Iterator[None]:
    """`wrapper(forward, *args, **kwargs)` takes the place of a module's `forward` for the time."""
    own = module.__dict__.get("forward")
    place = own if isinstance(own, Wrapped) else Wrapped(module.forward, own)
    place.wrappers.append(wrapper)
    module.forward = place
    try:
        yield
    finally:
        place.wrappers = [other for other in place.wrappers if other is not wrapper]
        if not place.wrappers and module.__dict__.get("forward") is place:
            if place.own is None:
                del module.forward
            else:
                module.forward = place.own


class Base:
    """A class of torch whose `forward` is listened to while those who override it run, and call it."""

    def __init__(self, kind: type[nn.Module]) -> None:
        self.kind, self.forward = kind, kind.forward
        self.arguments = inspect.signature(kind.forward)
        self.lock = threading.Lock()
        self.heard: list[tuple[nn.Module, Wrapper]] = []

    @contextlib.contextmanager
    def listening(self, module: nn.Module, wrapper: Wrapper) -> Iterator[None]:
        """`wrapper` is around the class's own `forward` where it is called for this module."""
        entry = module, wrapper
        with self.lock:
            if not self.heard:
                self.forward, self.kind.forward = self.kind.forward, self.call()
            self.heard = [*self.heard, entry]
        try:
            yield
        finally:
            with self.lock:
                self.heard = [other for other in self.heard if other is not entry]
                if not self.heard:
                    self.kind.forward = self.forward

    def call(self) -> Forward:
        """What takes the place of the class's `forward`."""

        def forward(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            found = functools.partial(self.forward, module)
            for listened, wrapper in self.heard:
                if listened is module:
                    found = functools.partial(wrapper, found)
            return found(*args, **kwargs)

        return forward

    def around(self, module: nn.Module, wrapper: Wrapper) -> contextlib.AbstractContextManager[None]:
        """`wrapper` is around the class's `forward`, also where the module's own has other arguments and calls it."""
        if type(module).forward is self.kind.forward:
            return wrapped(module, wrapper)

        def outside(forward: Forward, *args: Any, **kwargs: Any) -> Any:
            with self.listening(module, wrapper):
                return forward(*args, **kwargs)

        return wrapped(module, outside)


HEADS, LAYER = Base(nn.MultiheadAttention), Base(nn.TransformerEncoderLayer)


def noticed(module: nn.Module, record: list[Tensor | Look], forward: Forward, *args: Any, **kwargs: Any) -> Any:
    """A layer that nothing is recorded of is not passed over in silence."""
    before = len(record)
    out = forward(*args, **kwargs)
    if len(record) == before:
        warnings.warn(
            f"{type(module).__name__} has a forward of its own that does not call nn.MultiheadAttention's: what it"
            " looks at is not recorded",
            stacklevel=2,
        )
    return out


def torch_heads(
    module: nn.MultiheadAttention,
    record: list[Tensor | Look],
    top: int | None,
    forward: Forward,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """torch's attention, and what it looks at."""
    out = forward(*args, **kwargs)
    given = HEADS.arguments.bind(module, *args, **kwargs).arguments
    masks = {name: given.get(name) for name in ("key_padding_mask", "attn_mask")}
    record.append(torch_look(module, given["query"], given["key"], **masks, top=top))
    return out


def encoder_layer(
    module: nn.TransformerEncoderLayer,
    record: list[Tensor | Look],
    top: int | None,
    forward: Forward,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """torch's encoder layer, and what its attention would look at where it was not called itself."""
    before = len(record)
    out = forward(*args, **kwargs)
    if len(record) > before:
        return out
    given = LAYER.arguments.bind(module, *args, **kwargs).arguments
    x, padding = given["src"], given.get("src_key_padding_mask")
    with torch.no_grad():
        if x.is_nested:
            lengths = torch.tensor([len(row) for row in x.unbind()], device=x.device)
            x = x.to_padded_tensor(0.0)
            padding = torch.arange(x.shape[1], device=x.device) >= lengths.unsqueeze(-1)
        x = module.norm1(x) if module.norm_first else x
        record.append(
            torch_look(module.self_attn, x, x, key_padding_mask=padding, attn_mask=given.get("src_mask"), top=top)
        )
    return out
