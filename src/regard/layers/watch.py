"""What the layers of a model look at while it runs as it always does.

Our layers attend in one place, `Attend`, and a hook there is given the very queries and keys. torch's
`nn.MultiheadAttention` is listened to at its `forward`; so is `nn.TransformerEncoderLayer`, because in evaluation
torch computes the whole layer in one call that never comes by its attention. Hooks would turn that call off,
and change the last digits of the outputs: there, `forward` itself is wrapped for the time.
"""

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from regard.attend import Look
from regard.layers.attending import Attend
from regard.layers.torch_heads import torch_look

Seen = dict[str, list[Tensor | Look]]
Wrapper = Callable[..., Any]


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
    if top is not None and (isinstance(top, bool) or not isinstance(top, int) or top < 1):
        raise ValueError(f"top must be a positive whole number, got {top!r}")
    modules = dict(model.named_modules())
    found = [name for name, module in modules.items() if attends(module)]
    if not found:
        raise ValueError(f"{type(model).__name__} has no attention layer to watch")
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
                        stack.enter_context(wrapped(module, functools.partial(encoder_layer, module, record, top)))
        yield seen


def attends(module: nn.Module) -> bool:
    """Whether it is an attention layer: one of torch's, or one that holds an `Attend`."""
    return isinstance(module, nn.MultiheadAttention) or isinstance(getattr(module, "attend", None), Attend)


def listen(module: nn.Module, record: list[Tensor | Look], top: int | None, stack: contextlib.ExitStack) -> None:
    """Have one attention layer's weights recorded."""
    if isinstance(module, nn.MultiheadAttention):
        stack.enter_context(wrapped(module, functools.partial(torch_heads, module, record, top)))
        return

    def hook(attend: Any, inputs: Any) -> None:
        query, key, _, *mask = inputs
        with torch.no_grad():
            record.append(attend.look(query, key, *mask, top=top))

    handle = module.attend.register_forward_pre_hook(hook)  # type: ignore[union-attr]
    stack.callback(handle.remove)


@contextlib.contextmanager
def wrapped(module: nn.Module, wrapper: Wrapper) -> Iterator[None]:
    """`wrapper(forward, *args, **kwargs)` takes the place of a module's `forward` for the time."""
    before = module.__dict__.get("forward")
    module.forward = functools.partial(wrapper, module.forward)
    try:
        yield
    finally:
        if before is None:
            del module.forward
        else:
            module.forward = before


def torch_heads(
    module: nn.MultiheadAttention,
    record: list[Tensor | Look],
    top: int | None,
    forward: Callable[..., Any],
    *args: Any,
    **kwargs: Any,
) -> Any:
    """torch's attention, and what it looks at."""
    out = forward(*args, **kwargs)
    given = inspect.signature(nn.MultiheadAttention.forward).bind(module, *args, **kwargs).arguments
    masks = {name: given.get(name) for name in ("key_padding_mask", "attn_mask")}
    record.append(torch_look(module, given["query"], given["key"], **masks, top=top))
    return out


def encoder_layer(
    module: nn.TransformerEncoderLayer,
    record: list[Tensor | Look],
    top: int | None,
    forward: Callable[..., Any],
    *args: Any,
    **kwargs: Any,
) -> Any:
    """torch's encoder layer, and what its attention would look at where it was not called itself."""
    before = len(record)
    out = forward(*args, **kwargs)
    if len(record) > before:
        return out
    given = inspect.signature(nn.TransformerEncoderLayer.forward).bind(module, *args, **kwargs).arguments
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
