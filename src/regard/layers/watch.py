"""`watch`: record the attention weights of any model while it runs unchanged.

A model attends in one of three ways, and each is heard where it happens:

* `torch.nn.functional.scaled_dot_product_attention`, as the models of Hugging Face and timm do and most people's own: a
  `TorchFunctionMode` hears each call with its queries, keys and mask, and lets it run.
* `regard.attend`, which tells its listeners. Our layers call it in one place, `Attend`, where a hook records them.
* torch's own layers, at their `forward`: see `torch_layers.py`.

A call belongs to the innermost module of the model whose method is running, which the call stack shows: the model needs
no hooks, so that it takes the same fast paths as without `watch`. What computes softmax(QKᵀ) by hand cannot be heard.
"""

import contextlib
import functools
import inspect
import sys
import warnings
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from regard.attend import Look, attend, listeners, look, make_job
from regard.checks import positive, quote_names
from regard.engines import dense
from regard.engines.job import repeat_heads
from regard.layers.attention import Attend
from regard.layers.attention_record import AttentionRecord, Layers, matches, nearest, patterns_of
from regard.layers.torch_layers import TorchRecorder, function_look, pause_in_torch_layers
from regard.masks import Mask, causal
from regard.scores import Score
from regard.torch_modes import active, compiling
from regard.weighing import BlockWeighing, Sinks, Weighing, softmax

Reduce = Callable[[str, Tensor | Look], Any]
_SDPA = (
    torch._C._nn.scaled_dot_product_attention,
    torch.ops.aten.scaled_dot_product_attention,
    torch.ops.aten.scaled_dot_product_attention.default,
)
_ATTEND = inspect.signature(Attend.forward)
_CALL = nn.Module._wrapped_call_impl.__code__
_EAGER = (
    'its attn_implementation, "eager", computes the weights by hand, which cannot be heard. Load the model with'
    ' attn_implementation="sdpa", or call model.set_attn_implementation("sdpa"). If it does not support "sdpa", import'
    ' regard.integrations.transformers and use "regard"'
)
_UNHEARD = (
    "it must run inside the `with` block, in the same thread and not compiled by torch.compile, and attend by"
    " torch.nn.functional.scaled_dot_product_attention, regard.attend or torch's layers. A model that computes"
    " softmax(QKᵀ) by hand cannot be heard"
)


@contextlib.contextmanager
def watch(
    model: nn.Module, layers: Layers | None = None, top: int | None = None, *, reduce: Reduce | None = None
) -> Iterator[AttentionRecord]:
    """Record the weights of all attention in a model during forward passes; the outputs do not change.

    model    any module that calls `scaled_dot_product_attention` or `regard.attend`, or has attention layers of torch's
    layers   names as in `model.named_modules()`, or patterns such as `encoder.*`; default: all
    top      number of keys to record for each query, as a `Look`, without the matrix; default: whole matrices
    reduce   a callable `(name, weights) -> anything`, called for each run: what it returns is recorded instead

    It gives an `AttentionRecord`, a dict: for the name of each module that attends, a list with one entry for each time
    it ran, the weights `[batch, heads, q, k]` or a `Look` of `[batch, heads, q, top]`. If a module attends several
    times in one run, the second time is `name#2`, and so on. Weights are those before dropout, without gradients.
    Nothing stays in the model afterwards.

    >>> import torch, regard
    >>> model = torch.nn.TransformerEncoderLayer(16, 4, batch_first=True).eval()
    >>> with regard.watch(model, top=3) as record:
    ...     _ = model(torch.randn(2, 7, 16))
    >>> {name: entries[0].weight.shape for name, entries in record.items()}
    {'self_attn': torch.Size([2, 4, 7, 3])}
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"watch needs a torch module, got {type(model).__name__}")
    if reduce is not None and not callable(reduce):
        raise TypeError(f"reduce must be callable, (name, weights) -> anything, got {type(reduce).__name__}")
    watcher = _Watcher(model, patterns_of(layers), None if top is None else positive("top", top), reduce)
    watcher.check_patterns()
    with contextlib.ExitStack() as stack:
        watcher.start(stack)
        yield watcher.record
        watcher.check_heard()


class _Watcher:
    """Records the attention of one model."""

    def __init__(self, model: nn.Module, patterns: list[str] | None, top: int | None, reduce: Reduce | None) -> None:
        self.model, self.patterns, self.top, self.reduce = model, patterns, top, reduce
        self.modules = dict(model.named_modules())
        self.names = {id(module): name for name, module in self.modules.items()}
        self.layers = _attention_layers(self.modules)
        self.heard: set[str] = set()  # also of layers that were not selected
        self.mark = f"regard.watch {id(self)}"
        chosen = [name for pattern in patterns or ["*"] for name in self.layers if matches(name, [pattern])]
        self.record = AttentionRecord(chosen)

    def check_patterns(self) -> None:
        """Raise if there is no attention layer, or a pattern can match none."""
        own = [name for name, module in self.modules.items() if not _is_library(module)]  # may attend by themselves
        possible = list(dict.fromkeys([*self.layers, *own]))
        if not possible:
            raise ValueError(f"{type(self.model).__name__} has no attention layer to watch")
        for pattern in self.patterns or []:
            if not any(matches(name, [pattern.partition("#")[0]]) for name in possible):
                raise ValueError(
                    "layers must be names of modules that may attend, or patterns of such names, got"
                    f" {pattern!r}; nearest names: {nearest(pattern, possible)}"
                )

    def start(self, stack: contextlib.ExitStack) -> None:
        """Record all runs until the stack is closed."""
        modules = list(self.modules.values())
        for name in self.record:
            layer = self.layers[name]
            if isinstance(layer, Attend):
                self.hook(name, layer, stack)
            else:
                TorchRecorder(layer, functools.partial(self.keep, name), self.top).wrap(modules, stack)
        if compiling():
            return
        listeners.append(self.hear_attend)
        stack.callback(listeners.remove, self.hear_attend)
        if any(map(_is_compiled, modules)):
            warnings.warn(
                "the model was compiled by torch.compile: it runs uncompiled while it is watched, and its outputs may"
                " differ in the last digits",
                stacklevel=4,
            )
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        pause_in_torch_layers(_Listener, modules, stack)
        stack.enter_context(active(_Listener(self)))

    def keep(self, name: str, weights: Tensor | Look) -> None:
        """Record what a layer gave, or what `reduce` makes of it."""
        self.heard.add(name)
        self.record.add(name, weights if self.reduce is None else self.reduce(name, weights))

    def hook(self, name: str, layer: Attend, stack: contextlib.ExitStack) -> None:
        """Record a layer of ours until the stack is closed."""

        def hear(called: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
            if called is not layer:
                return  # a deep copy of the model, made while it is watched, has the hook too
            given = _ATTEND.bind(layer, *args, **kwargs).arguments
            with torch.no_grad():
                self.keep(name, layer.look(given["query"], given["key"], given.get("mask"), top=self.top))

        stack.callback(layer.register_forward_pre_hook(hear, with_kwargs=True).remove)

    def hear_attend(self, query: Tensor, key: Tensor, score: Score, mask: Mask | None, weigh: Weighing) -> None:
        """Record a call of `regard.attend`, unless it is that of a layer of ours."""
        # The frame of `attend`'s caller.
        self.hear(sys._getframe(2), lambda: _attend_weights(query, key, score, mask, weigh, self.top))

    def hear(self, frame: FrameType, weights: Callable[[], Tensor | Look]) -> None:
        """Record a call that was made in a frame, if that belongs to the model and the layer is selected."""
        name = self.name_call(frame)
        if name is None:
            return
        self.heard.add(name)
        if not matches(name, self.patterns):
            return
        try:
            with torch.no_grad():
                found = weights()
        except ValueError as error:
            error.add_note(f"(regard.watch, in the module {name!r})")
            raise
        self.keep(name, found)

    def name_call(self, frame: FrameType | None) -> str | None:
        """The name of the innermost module of the model whose method is running, with a number after its first call."""
        module, entered = None, None
        while frame is not None:
            if module is None and frame.f_code is attend.__code__:
                return None  # what `attend` runs: it was recorded already
            first = _first_argument(frame)
            if isinstance(first, nn.Module) and id(first) in self.names:
                if module is not None and first is not module:
                    break
                module, entered = first, frame
                if frame.f_code is _CALL:
                    break
            frame = frame.f_back
        if module is None or entered is None or _is_ours(module):
            return None  # not of this model, or of a layer of ours, which is recorded in `Attend`
        # The frame of this run of the module carries the number of its calls: no reference to it may be kept, because
        # that would keep its tensors.
        calls = entered.f_locals.get(self.mark, 0) + 1
        entered.f_locals[self.mark] = calls
        name = self.names[id(module)]
        return name if calls == 1 else f"{name}#{calls}"

    def check_heard(self) -> None:
        """Raise if nothing was heard; warn of parts of a Hugging Face model that cannot be heard."""
        silent = _silent_models(self.modules, self.heard)
        if not self.heard and not self.layers:
            raise ValueError(
                f"watch heard no attention in {type(self.model).__name__}: {_EAGER if silent else _UNHEARD}"
            )
        if silent:
            warnings.warn(f"watch heard no attention in {quote_names(silent)}: {_EAGER}", stacklevel=4)
        for pattern in self.patterns or []:
            if not any(matches(name, [pattern]) for name in (*self.heard, *self.layers)):
                raise ValueError(
                    f"no attention ran in a module that matches {pattern!r}; it ran in {nearest(pattern, self.heard)}"
                )


class _Listener(TorchFunctionMode):
    """Lets all functions of torch run as they are, and tells a watcher of those that attend."""

    def __init__(self, watcher: _Watcher) -> None:
        super().__init__()
        self.watcher = watcher

    def __torch_function__(
        self, function: Any, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        output = function(*args, **kwargs)
        if any(function is one for one in _SDPA):
            self.watcher.hear(sys._getframe(1), lambda: _sdpa_weights(*args, **kwargs, top=self.watcher.top))
        elif function is functional.multi_head_attention_forward:
            self.watcher.hear(sys._getframe(1), lambda: function_look(args, kwargs, self.watcher.top))
        return output


def _sdpa_weights(  # noqa: PLR0913  # torch's signature
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
    top: int | None,
) -> Tensor | Look:
    """The weights of a call of torch's `scaled_dot_product_attention`, before dropout."""
    if enable_gqa and query.ndim == 3:  # [heads, q, d] and [heads / groups, k, d]
        key = repeat_heads(key, query.shape[0] // key.shape[0])
    mask = causal if is_causal else attn_mask
    device = query.device.type
    if not torch.amp.is_autocast_available(device) or not torch.is_autocast_enabled(device):
        return look(query, key, mask=mask, scale=scale, top=top)
    query, key = (x.to(torch.get_autocast_dtype(device)) for x in (query, key))  # as torch runs this function
    with torch.autocast(device, enabled=False):
        return look(query, key, mask=mask, scale=scale, top=top)


def _attend_weights(
    query: Tensor, key: Tensor, score: Score, mask: Mask | None, weigh: Weighing, top: int | None
) -> Tensor | Look:
    """The weights of a call of `regard.attend`, before dropout."""
    if weigh is softmax or isinstance(weigh, Sinks | BlockWeighing):
        return look(query, key, score=score, mask=mask, weigh=weigh, top=top)
    matrix = dense.weights(make_job(query, key, key, score, mask, weigh, 0.0))
    if top is None:
        return matrix
    weight, index = matrix.topk(min(top, matrix.shape[-1]), dim=-1)
    return Look(index, weight)


def _attention_layers(modules: dict[str, nn.Module]) -> dict[str, Attend | nn.MultiheadAttention]:
    """torch's attention layers, and ours by the `Attend` that they hold."""
    layers: dict[str, Attend | nn.MultiheadAttention] = {}
    for name, module in modules.items():
        held = getattr(module, "attend", None)
        if isinstance(module, nn.MultiheadAttention):
            layers[name] = module
        elif isinstance(held, Attend):
            layers[name] = held
        elif isinstance(module, Attend) and not any(module is layer for layer in layers.values()):
            layers[name] = module
    return layers


def _first_argument(frame: FrameType) -> object:
    """The first argument of the function that runs in a frame: in a method, the object itself."""
    code = frame.f_code
    return frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None


def _is_library(module: nn.Module) -> bool:
    """Whether a module is torch's or a layer of ours, which attend only in attention layers."""
    return type(module).__module__.startswith("torch.nn.") or _is_ours(module)


def _is_ours(module: nn.Module) -> bool:
    """Whether a module is a layer of ours."""
    return isinstance(module, Attend) or type(module).__module__.startswith("regard.layers.")


def _is_compiled(module: nn.Module) -> bool:
    """Whether torch.compile was called on a module."""
    return getattr(module, "_compiled_call_impl", None) is not None or type(module).__name__ == "OptimizedModule"


def _silent_models(modules: dict[str, nn.Module], heard: set[str]) -> list[str]:
    """Hugging Face models among the modules that compute their attention by hand, by name; only the outermost."""
    silent: list[str] = []
    for name, module in modules.items():
        implementation = getattr(getattr(module, "config", None), "_attn_implementation", None)
        if implementation != "eager" or not hasattr(module, "set_attn_implementation"):
            continue
        attends = any("Attention" in type(part).__name__ for part in module.modules())
        parts = ("" if not name else f"{name}.",)
        if attends and not any(one.startswith(parts) for one in heard) and not any(map(name.startswith, silent)):
            silent.append(name)
    return silent
