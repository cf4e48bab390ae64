"""The step that decoding is made of: its state, whose rows can be picked, and its log probabilities.

    step(state, last [rows]) → (state', log probabilities [rows, vocabulary])

Each row is one sequence in the making. Everything a step must remember of it is in the state.

>>> import torch
>>> table = torch.tensor([[0.1, 0.9], [0.5, 0.5]]).log()
>>> def step(state: None, last: torch.Tensor) -> tuple[None, torch.Tensor]:
...     return state, table[last]  # it remembers nothing: the next token depends on the last alone
>>> step(None, torch.tensor([0, 1, 0]))[1].shape
torch.Size([3, 2])
"""

import copy
import dataclasses
import math
import operator
from collections.abc import Callable, Iterable
from numbers import Number
from typing import Any, Generic, NamedTuple, TypeVar, cast

import torch
from torch import Tensor

from regard.layers.cache import moved

State = TypeVar("State")

Step = Callable[[State, Tensor], tuple[State, Tensor]]
"""From the state of some rows and the last token of each, `[rows]`, to the next state and the log probabilities of
the next token, `[rows, vocabulary]`: an RNN's state or cached keys, decoding never asks which."""

ROUNDING = 1e-3
"""By how much a log probability may be above 0: more is no rounding, but something else, such as a logit."""


class Hypothesis(NamedTuple):
    """A sequence that was found.

    >>> Hypothesis([3, 1, 4], score=-1.5, log_probability=-2.0, finished=True).tokens
    [3, 1, 4]
    """

    tokens: list[int]  # without start and end
    score: float  # the log probability over the length penalty; higher is better
    log_probability: float  # of the tokens, and of the end where it came
    finished: bool  # whether the end came within the length


def select(state: State, rows: Tensor, *, of: int | None = None) -> State:
    """The state of some of its rows, in their order; a row may be taken several times.

    Tensors are indexed along their first dimension, within tuples, named tuples, lists, dicts and dataclasses too.
    None and numbers stay. An object with a method `select(rows)` is asked itself: what it gives takes its place,
    and where it gives None it has changed in place.

    rows   `[chosen]`, whole numbers
    of     how many rows there are now, to find a tensor that has them elsewhere than first

    >>> import torch
    >>> hidden, pieces = select((torch.arange(6).view(3, 2), ["ab", None][1:]), torch.tensor([2, 0, 0]))
    >>> hidden.tolist(), pieces
    ([[4, 5], [0, 1], [0, 1]], [None])
    """
    return cast(State, selected(state, rows, of))


def selected(state: Any, rows: Tensor, of: int | None) -> Any:
    """`select` without its type: which kind of state it is."""
    if isinstance(state, Tensor):
        return tensor_rows(state, rows, of)
    if state is None or isinstance(state, Number):
        return state
    if callable(getattr(state, "select", None)):
        chosen = state.select(rows)
        return state if chosen is None else chosen
    if isinstance(state, tuple | list):
        parts = [selected(part, rows, of) for part in state]
        return type(state)(*parts) if hasattr(state, "_fields") else type(state)(parts)
    if isinstance(state, dict):
        chosen = copy.copy(state)  # whatever kind of dict it is
        chosen.update((name, selected(part, rows, of)) for name, part in state.items())
        return chosen
    if dataclasses.is_dataclass(state) and not isinstance(state, type):
        chosen = copy.copy(state)
        for field in dataclasses.fields(state):
            object.__setattr__(chosen, field.name, selected(getattr(state, field.name), rows, of))  # frozen too
        return chosen
    raise TypeError(
        "a state must be made of tensors, numbers, None, and objects with a method select(rows), in tuples, lists,"
        f" dicts and dataclasses, got {type(state).__name__}"
    )


def tensor_rows(tensor: Tensor, rows: Tensor, of: int | None) -> Tensor:
    """Rows of one tensor; without dimensions it is a number, and stays."""
    if not tensor.dim():
        return tensor
    if of is not None and len(tensor) != of:
        raise ValueError(
            f"tensors of a state must have its {of} rows first, got shape {list(tensor.shape)};"
            " an nn.LSTM's or nn.GRU's state has its layers first: transpose it"
        )
    return tensor.index_select(0, rows)


class Fixed(Generic[State]):
    """A part of a state that no step changes: an encoder's memory, an image's grid.

    A beam's hypotheses change places within their sentence at every step. What is the same for all of them need
    not be copied each time: it is only when rows are repeated or leave.

    >>> import torch
    >>> memory = Fixed(torch.tensor([[1.0], [2.0]])).select(torch.tensor([0, 0, 1, 1]))
    >>> memory.value.tolist()
    [[1.0], [1.0], [2.0], [2.0]]
    >>> memory.select(torch.tensor([1, 1, 3, 2])) is memory
    True
    """

    def __init__(self, value: State, source: Tensor | None = None) -> None:
        self.value = value
        self.source = source  # [rows]  which of the first rows each is a copy of; None: nothing was selected yet

    def select(self, rows: Tensor) -> "Fixed[State]":
        """The same part for these rows."""
        source, new = moved(self.source, rows)
        return Fixed(select(self.value, rows), source) if new else self


def forbid(step: Step[State], tokens: Iterable[int]) -> Step[State]:
    """The step that never gives some tokens, such as padding and start; the others keep their probabilities.

    Any rule can be a step around a step like this one. One that counts (no end before the tenth token, say) keeps
    its number in the state.

    >>> import torch
    >>> table = torch.tensor([[0.5, 0.25, 0.25]]).log()
    >>> step = forbid(lambda state, last: (state, table[last]), [0])
    >>> step(None, torch.tensor([0]))[1].exp().tolist()
    [[0.0, 0.25, 0.25]]
    """
    forbidden = sorted({operator.index(token) for token in tokens})
    if forbidden and forbidden[0] < 0:
        raise ValueError(f"forbidden tokens must be at least 0, got {forbidden[0]}")

    def allowed(state: State, last: Tensor) -> tuple[State, Tensor]:
        state, log_probs = step(state, last)
        if forbidden and forbidden[-1] >= log_probs.shape[-1]:
            raise ValueError(
                f"forbidden tokens must be in the vocabulary of {log_probs.shape[-1]}, got {forbidden[-1]}"
            )
        return state, log_probs.index_fill(
            -1, torch.tensor(forbidden, dtype=torch.long, device=log_probs.device), -math.inf
        )

    return allowed


def ask(step: Step[State], state: State, last: Tensor, end: int | None) -> tuple[State, Tensor]:
    """One step, its log probabilities looked at: `[rows, vocabulary]`."""
    state, log_probs = step(state, last)
    if (
        log_probs.dim() != 2
        or len(log_probs) != len(last)
        or not log_probs.is_floating_point()
        or not log_probs.numel()
    ):
        raise ValueError(
            f"step must give log probabilities [rows, vocabulary] of {len(last)} rows,"
            f" got {str(log_probs.dtype).removeprefix('torch.')} of shape {list(log_probs.shape)}"
        )
    if end is not None and end >= log_probs.shape[1]:
        raise ValueError(f"end must be in the vocabulary of {log_probs.shape[1]}, got {end}")
    return state, log_probs


def check_numbers(best: Tensor, row: Tensor, number: int) -> None:
    """The highest log probability of each row must be one: no NaN, and not above 0."""
    wrong = ~(best <= ROUNDING)
    if wrong.any():
        value = float(best[wrong][0])
        raise ValueError(
            f"log probabilities must be numbers of at most 0, got {value:.4g} in row {int(row[wrong][0])}"
            f" at step {number}; log_softmax makes them"
        )


def check_possible(best: Tensor, row: Tensor, number: int) -> None:
    """Each row must have a way on."""
    wrong = best == -math.inf
    if wrong.any():
        raise ValueError(
            f"at least one token must be possible, got only -inf in row {int(row[wrong][0])} at step {number}"
        )


def check_start(start: Tensor, end: int | None) -> None:
    """The first tokens are one a row; the end is a token."""
    if start.dim() != 1 or start.is_floating_point() or start.is_complex() or start.dtype == torch.bool:
        kind = str(start.dtype).removeprefix("torch.")
        raise ValueError(f"start must be whole numbers [rows], got {kind} of shape {list(start.shape)}")
    if end is not None and end < 0:
        raise ValueError(f"end must be a token, at least 0, got {end}")


def limits(length: int | Tensor, start: Tensor) -> Tensor:
    """The most tokens that each row may get, `[rows]`, the end included."""
    if not isinstance(length, Tensor):
        length = torch.full_like(start, operator.index(length), dtype=torch.long)
    elif length.is_floating_point() or length.shape not in (start.shape, torch.Size([])):
        kind = str(length.dtype).removeprefix("torch.")
        raise ValueError(
            f"length must be a whole number, or one for each of {len(start)} rows,"
            f" got {kind} of shape {list(length.shape)}"
        )
    if bool((length < 1).any()):
        raise ValueError(f"length must be at least 1, got {int(length.min())}")
    return length.to(start.device, torch.long).expand(len(start))
