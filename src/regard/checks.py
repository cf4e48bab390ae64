"""Checks that settings, tensors and layers share: one rule and one error message for each."""

import operator
from collections.abc import Iterable, Iterator, Mapping, Sized
from contextlib import contextmanager
from numbers import Real
from typing import Any, SupportsIndex, cast

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.modules import module

INSTALL = 'pip install "regard[all]"'
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_GLOBAL_HOOKS: list[Sized] = [getattr(module, "_global" + name) for name in _HOOKS]


@contextmanager
def optional_import(need: str) -> Iterator[None]:
    """Around the import of an optional package: if it is missing, the error says what needs it, and how to get it."""
    try:
        yield
    except ImportError:
        raise ModuleNotFoundError(f"{need}: {INSTALL}") from None


def positive(name: str, number: object) -> int:
    """The number as an int. It must be a positive whole number; NumPy's and torch's integers will do."""
    if not is_count(number):
        raise ValueError(f"{name} must be a positive whole number, got {number!r}")
    return operator.index(cast(SupportsIndex, number))


def not_negative(name: str, number: object) -> int:
    """The number as an int. It must be a whole number from 0 on; NumPy's and torch's integers will do."""
    try:
        whole = -1 if isinstance(number, bool) else operator.index(cast(SupportsIndex, number))
    except TypeError:
        whole = -1
    if whole < 0:
        raise ValueError(f"{name} must be a whole number, 0 or more, got {number!r}")
    return whole


def is_count(value: object) -> bool:
    """Whether a value is a positive whole number."""
    try:
        return not isinstance(value, bool) and operator.index(cast(SupportsIndex, value)) >= 1
    except TypeError:
        return False


def is_number(value: object) -> bool:
    """Whether a value is a number, and no bool."""
    return isinstance(value, Real) and not isinstance(value, bool)


def fraction(name: str, number: float) -> float:
    """The number as a float. It must be between 0 and 1."""
    if not is_number(number) or not 0 <= number <= 1:
        raise ValueError(f"{name} must be a number between 0 and 1, got {number!r}")
    return float(number)


def quote_names(names: Iterable[str], most: int = 20) -> str:
    """Names in quotes, separated by commas; only the first `most` of them."""
    names = list(names)
    more = f", and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(map(repr, names[:most])) + more


def check_rows(name: str, x: Tensor, size: int, rank: int | None = None) -> None:
    """Raise unless x is `[..., length, size]`, with this number of dimensions where `rank` is given."""
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} must be a torch tensor, got {type(x).__name__}")
    shape = x.shape
    if len(shape) < 2 or shape[-1] != size or (rank is not None and len(shape) != rank):
        leading = "batch" if rank == 3 else "..."
        raise ValueError(f"{name} must be [{leading}, length, {size}], got {list(shape)}")


def hooks_of(layers: Iterable[nn.Module]) -> list[Sized]:
    """The dicts that hold the hooks of these layers, and of all layers: no hook is set while all are empty."""
    return [getattr(layer, name) for layer in layers for name in _HOOKS] + _GLOBAL_HOOKS


def is_plain_linear(layer: nn.Module) -> bool:
    """Whether a layer is torch's own `nn.Linear` without hooks, so that its weights may be used without calling it."""
    # An adapter in its place, a parametrized weight or a hook takes effect only if the layer is called.
    return type(layer) is nn.Linear and not any(hooks_of([layer])) and "forward" not in vars(layer)


_TORCH_KEYWORDS = {
    "attn_mask": "mask=…, in which True means that a query may attend, the opposite of nn.MultiheadAttention's",
    "key_padding_mask": "mask=regard.masks.padding(lengths), or mask=~key_padding_mask[:, None, None, :]",
    "is_causal": "mask=regard.masks.causal",
    "need_weights": "the method look, which returns the weights",
    "average_attn_weights": "the method look, and the mean of its weights over the heads",
}


def refuse_keywords(layer: nn.Module, unknown: Mapping[str, object]) -> None:
    """Raise TypeError for arguments that a layer does not have; for those of torch's layer, say what to use instead."""
    for name in unknown:
        hint = f": use {_TORCH_KEYWORDS[name]}" if name in _TORCH_KEYWORDS else ""
        raise TypeError(f"{type(layer).__name__} has no argument {name!r}{hint}")


def as_uint8(array: NDArray[Any]) -> NDArray[np.uint8]:
    """An array as uint8 pixels; raises if its shape, type or range is not that of an image."""
    has_shape = array.ndim == 2 or (array.ndim == 3 and array.shape[2] == 3)
    has_type = array.dtype == np.uint8 or np.issubdtype(array.dtype, np.floating)
    if has_shape and has_type and array.size:
        if array.dtype == np.uint8:
            return np.ascontiguousarray(array)
        if array.min() >= 0 and array.max() <= 1:
            return np.rint(array * 255.0).astype(np.uint8)
    bounds = ""
    if array.size and np.issubdtype(array.dtype, np.number) and not np.iscomplexobj(array):
        bounds = f", from {array.min():g} to {array.max():g}"
    raise ValueError(
        "an image must be [height, width, 3] or [height, width], uint8 or floats from 0 to 1,"
        f" got {array.dtype} of shape {list(array.shape)}{bounds}"
    )
