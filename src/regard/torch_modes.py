"""Modes of torch: compiling and transforming a program instead of running it, `train` or `eval`, and small steps.

While torch compiles or transforms, values of tensors are unknown, and loops that are not torch's cannot be used.
"""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx
from torch.overrides import TorchFunctionMode

_transformation = torch._C._functorch.peek_interpreter_stack  # the innermost one, or None
_overrides: Any = torch.overrides  # its functions for modes have no types


class Context(FunctionCtx):
    """The `ctx` of an autograd function, for type checkers: with what torch adds to it when it runs."""

    saved_tensors: tuple[Any, ...]
    needs_input_grad: tuple[bool, ...]


_Gradients = tuple[Tensor | None, ...]


def once_differentiable(backward: Callable[..., _Gradients]) -> Callable[..., _Gradients]:
    """A backward whose gradients have no derivatives: to ask for them raises.

    torch's decorator of this name takes the gradients for constants if that of the output is one: then a second
    derivative would be wrong, without an error.
    """

    @functools.wraps(backward)
    def wrapped(ctx: Any, *grads: Tensor | None) -> _Gradients:
        with torch.no_grad():
            found = backward(ctx, *grads)
        if not torch.is_grad_enabled():  # it is with create_graph=True
            return found
        given = [x for x in (*grads, *ctx.saved_tensors) if x is not None]
        return tuple(None if x is None else _NoDerivative.apply(x, *given) for x in found)  # type: ignore[no-untyped-call]

    return wrapped


class _NoDerivative(torch.autograd.Function):
    """A gradient as it is, of which a derivative by what it was computed from raises."""

    @staticmethod
    def forward(ctx: FunctionCtx, gradient: Tensor, *given: Tensor) -> Tensor:
        return gradient.view_as(gradient)

    @staticmethod
    def backward(ctx: FunctionCtx, *grads: Tensor) -> _Gradients:
        raise RuntimeError(
            "this operation of regard has first derivatives only: for second ones, attend with engine='dense'"
        )


compiling = torch.compiler.is_compiling
"""Whether torch is compiling or exporting the program."""


def exporting() -> bool:
    """Whether torch is exporting the program, for others to run: it must hold torch's own operations only."""
    return torch.compiler.is_exporting()


def transforming() -> bool:
    """Whether this runs within `vmap`, `grad`, `jvp` or another transformation of `torch.func`.

    >>> import torch
    >>> seen = []
    >>> _ = torch.func.vmap(lambda x: seen.append(transforming()) or x)(torch.ones(2, 3))
    >>> seen, transforming()
    ([True], False)
    """
    return not compiling() and _transformation() is not None


@contextmanager
def restored_modes(model: nn.Module) -> Iterator[None]:
    """Restore the `train` or `eval` mode of each module at the end."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


@contextmanager
def small_steps() -> Iterator[None]:
    """One thread, and weights below 1e-38 rounded to 0: for steps of a few milliseconds, and the same bits everywhere.

    Several threads wait for one another at each operation. With another process on one of the cores, that was measured
    to take 25 times as long. Most keys of a narrow kernel have a weight below 1e-38, and denormal numbers make the CPU
    5 times slower.
    """
    threads, flushes = torch.get_num_threads(), float(torch.tensor(1e-39) * 1.0) == 0
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.set_flush_denormal(flushes)


@contextmanager
def active(mode: TorchFunctionMode) -> Iterator[None]:
    """The mode hears the functions of torch. Unlike `with mode`, it may end before modes that were entered later."""
    _replace_modes([*_overrides._get_current_function_mode_stack(), mode])
    try:
        yield
    finally:
        _replace_modes([other for other in _overrides._get_current_function_mode_stack() if other is not mode])


@contextmanager
def paused(kind: type[TorchFunctionMode]) -> Iterator[None]:
    """No mode of this kind is active: layers of torch run otherwise while there is one."""
    modes = _overrides._get_current_function_mode_stack()
    _replace_modes([mode for mode in modes if not isinstance(mode, kind)])
    try:
        yield
    finally:
        _replace_modes(modes)


def _replace_modes(modes: list[TorchFunctionMode]) -> None:
    """Make these the active modes, the last one innermost."""
    for _ in _overrides._get_current_function_mode_stack():
        _overrides._pop_mode()
    for mode in modes:
        _overrides._push_mode(mode)
