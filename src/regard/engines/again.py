"""Scores that backward computes again: what they came from must be what it was.

Random numbers are drawn again, a score has the parameters it had, and hooks do not hear of parts of a gradient. What
cannot be seen to, because it is in a function of somebody's own, is noticed by what comes out.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn

DRIFT = 0.01
"""How far the weights of a query, computed again, may be from adding up to 1."""


def state_of(score: object) -> dict[str, Tensor]:
    """The parameters and buffers of a score."""
    return dict([*score.named_parameters(), *score.named_buffers()]) if isinstance(score, nn.Module) else {}


def with_state(score: Callable[[Tensor, Tensor], Tensor], state: dict[str, Tensor]) -> Callable[..., Tensor]:
    """The score with the parameters it had in forward, which `torch.func.functional_call` may only have lent it."""
    now = state_of(score)
    if not isinstance(score, nn.Module) or all(now.get(name) is tensor for name, tensor in state.items()):
        return score
    return lambda query, key: torch.func.functional_call(score, state, (query, key))


def check_same(sums: Tensor, missed: int) -> None:
    """Weights that are computed again add up to 1, as they did, by the same parameters; or what computes them changed.

    sums     [..., q] of the weights of each query
    missed   how many parameters forward depended on, and backward on no more
    """
    off = float((sums - 1).abs().nan_to_num(0.0).max()) if sums.numel() else 0.0
    if off <= DRIFT and not missed:
        return
    other = f"{missed} of its parameters are not in it" if missed else f"the weights of a query add up to 1 ± {off:.2g}"
    raise RuntimeError(
        f"backward calls the score and the mask again, and they are others than in forward: {other}. Do not change what"
        " they hold in between, and in a loop bind what is looped over, lambda query, key, s=s: …; or attend with"
        " engine='dense'"
    )


def autocast_of(kind: str) -> Callable[[], contextlib.AbstractContextManager[object]]:
    """The precision that products have now on a kind of device, for later."""
    if not torch.amp.is_autocast_available(kind):
        return contextlib.nullcontext
    return functools.partial(torch.autocast, kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind))


def random_states(device: torch.device) -> dict[str, Tensor]:
    """Where the random numbers stand that a score may draw."""
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states[str(device)] = torch.cuda.get_rng_state(device)
    return states


@contextlib.contextmanager
def replayed(states: dict[str, Tensor]) -> Iterator[None]:
    """Draws the same random numbers again: blocks come in the same order, and a score draws the same for each."""
    with torch.random.fork_rng([name for name in states if name != "cpu"]):
        for name, state in states.items():
            if name == "cpu":
                torch.set_rng_state(state)
            else:
                torch.cuda.set_rng_state(state, name)
        yield


@contextlib.contextmanager
def hooks_off(leaves: Sequence[Tensor]) -> Iterator[None]:
    """Hooks of parameters see the whole gradient once, as it leaves this function, not each block's share."""
    kept = [(leaf._backward_hooks, dict(leaf._backward_hooks)) for leaf in leaves if leaf._backward_hooks]
    for hooks, _ in kept:
        hooks.clear()
    try:
        yield
    finally:
        for hooks, before in kept:
            hooks.update(before)
