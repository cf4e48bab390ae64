"""The step that decoding is made of: its state, whose rows can be selected, and its log probabilities.

    step(state, last [rows]) → (state', log probabilities [rows, vocabulary])

Each row is one unfinished sequence. Everything that a step must remember of it is in the state.

>>> import torch
>>> table = torch.tensor([[0.1, 0.9], [0.5, 0.5]]).log()
>>> def step(state: None, last: torch.Tensor) -> tuple[None, torch.Tensor]:
...     return state, table[last]  # it remembers nothing: the next token depends on the last one only
>>> step(None, torch.tensor([0, 1, 0]))[1].shape
torch.Size([3, 2])
"""

import copy
import dataclasses
import math
import operator
from collections.abc import Callable, Iterable
from numbers import Number
from typing import NamedTuple, TypeVar, cast

import torch
from torch import Tensor

State = TypeVar("State")

Step = Callable[[State, Tensor], tuple[State, Tensor]]
"""From the state of some rows and the last token of each, `[rows]`, to the next state and the log probabilities of
the next token, `[rows, vocabulary]`. The state is an RNN's or cached keys: decoding never asks which."""

_ROUNDING = 1e-3
"""A log probability may exceed 0 by this much through rounding; a larger one is an error, such as a logit."""


class Hypothesis(NamedTuple):
    """A decoded sequence.

    >>> Hypothesis([3, 1, 4], score=-1.5, log_probability=-2.0, finished=True).tokens
    [3, 1, 4]
    """

    tokens: list[int]  # without start and end
    score: float  # the log probability over the length penalty; higher is better
    log_probability: float  # of the tokens, and of the end token if there is one
    finished: bool  # whether the end token came within the length


def select(state: State, rows: Tensor, *, of: int | None = None) -> State:
    """Some rows of a state, in the given order; a row may be selected several times.

    Tensors are indexed along their first dimension, also inside tuples, named tuples, lists, dicts and dataclasses.
    None and numbers stay. An object with a method `select(rows)` selects its own rows: it returns its replacement, or
    None if it has changed in place. One is `FixedTensors`, for parts that no step changes (an encoder's memory):
    they are copied only if rows are repeated or removed, not if a beam reorders the hypotheses of a sentence.

    rows   `[selected]`, integers
    of     the current number of rows, to detect a tensor whose first dimension is something else

    >>> import torch
    >>> hidden, pieces = select((torch.arange(6).view(3, 2), ["ab", None][1:]), torch.tensor([2, 0, 0]))
    >>> hidden.tolist(), pieces
    ([[4, 5], [0, 1], [0, 1]], [None])
    """
    return cast(State, _select_any(state, rows, of))


def _select_any(state: object, rows: Tensor, of: int | None) -> object:
    """`select`, by the kind of state."""
    if isinstance(state, Tensor):
        return _tensor_rows(state, rows, of)
    if state is None or isinstance(state, Number):
        return state
    own_select = getattr(state, "select", None)
    if callable(own_select):
        replacement = own_select(rows)
        return state if replacement is None else replacement
    if isinstance(state, tuple | list):
        parts = [_select_any(part, rows, of) for part in state]
        rebuild = cast(Callable[..., object], type(state))
        return rebuild(*parts) if hasattr(state, "_fields") else rebuild(parts)
    if isinstance(state, dict):
        new = copy.copy(state)  # keeps the kind of dict, and a defaultdict's factory
        new.update((name, _select_any(part, rows, of)) for name, part in state.items())
        return new
    if dataclasses.is_dataclass(state) and not isinstance(state, type):
        replica = copy.copy(state)
        for field in dataclasses.fields(state):
            object.__setattr__(
                replica, field.name, _select_any(getattr(state, field.name), rows, of)
            )  # frozen ones too
        return replica
    raise TypeError(
        "a state or batch must be made of tensors, numbers, None, and objects with a method select(rows), in tuples,"
        f" lists, dicts and dataclasses, got {type(state).__name__}"
    )


def _tensor_rows(tensor: Tensor, rows: Tensor, of: int | None) -> Tensor:
    """Rows of one tensor; a tensor without dimensions is a number, and stays."""
    if not tensor.dim():
        return tensor
    if of is not None and len(tensor) != of:
        raise ValueError(
            f"tensors of a state or batch must have its {of} rows first, got shape {list(tensor.shape)};"
            " an nn.LSTM's or nn.GRU's state has its layers first: transpose it"
        )
    return tensor.index_select(0, rows.to(tensor.device))


def forbid(step: Step[State], tokens: Iterable[int]) -> Step[State]:
    """A step that never gives some tokens, such as padding and start; the others keep their probabilities.

    Any other rule can wrap a step in the same way. A rule that counts (no end before the tenth token, say) keeps its
    counter in the state.

    >>> import torch
    >>> table = torch.tensor([[0.5, 0.25, 0.25]]).log()
    >>> step = forbid(lambda state, last: (state, table[last]), [0])
    >>> step(None, torch.tensor([0]))[1].exp().tolist()
    [[0.0, 0.25, 0.25]]
    """
    forbidden = sorted({operator.index(token) for token in tokens})
    if forbidden and forbidden[0] < 0:
        raise ValueError(f"forbidden tokens must be at least 0, got {forbidden[0]}")

    def allowed_step(state: State, last: Tensor) -> tuple[State, Tensor]:
        state, log_probs = step(state, last)
        if forbidden and forbidden[-1] >= log_probs.shape[-1]:
            raise ValueError(
                f"forbidden tokens must be in the vocabulary of {log_probs.shape[-1]}, got {forbidden[-1]}"
            )
        index = torch.tensor(forbidden, dtype=torch.long, device=log_probs.device)
        return state, log_probs.index_fill(-1, index, -math.inf)

    return allowed_step


def checked_step(step: Step[State], state: State, last: Tensor, end: int | None) -> tuple[State, Tensor]:
    """One step; raises unless its log probabilities are `[rows, vocabulary]`."""
    state, log_probs = step(state, last)
    shape = log_probs.shape
    if len(shape) != 2 or shape[0] != len(last) or not log_probs.is_floating_point() or not log_probs.numel():
        raise ValueError(
            f"step must return log probabilities [rows, vocabulary] of {len(last)} rows,"
            f" got {_dtype_name(log_probs)} of shape {list(shape)}"
        )
    if end is not None and end >= shape[1]:
        raise ValueError(f"end must be in the vocabulary of {shape[1]}, got {end}")
    return state, log_probs


def check_log_probs(best: Tensor, row: Tensor, number: int) -> None:
    """Raise if the highest log probability of a row, `[rows]`, is NaN or above 0."""
    wrong = ~(best <= _ROUNDING)
    if wrong.any():
        value = float(best[wrong][0])
        raise ValueError(
            f"log probabilities must be numbers of at most 0, got {value:.4g} in row {int(row[wrong][0])}"
            f" at step {number}; use log_softmax"
        )


def check_possible(best: Tensor, row: Tensor, number: int) -> None:
    """Raise if a row has no possible next token."""
    wrong = best == -math.inf
    if wrong.any():
        raise ValueError(
            f"at least one token must be possible, got only -inf in row {int(row[wrong][0])} at step {number}"
        )


def length_limits(length: int | Tensor, start: Tensor, end: int | None) -> Tensor:
    """The maximum number of tokens of each row, `[rows]`, including the end.

    Raises unless `start` has one token a row, `end` is a token, and the length is one number, or one for each row.
    """
    if start.dim() != 1 or start.is_floating_point() or start.is_complex() or start.dtype == torch.bool:
        raise ValueError(f"start must be integers [rows], got {_dtype_name(start)} of shape {list(start.shape)}")
    if end is not None and end < 0:
        raise ValueError(f"end must be a token, at least 0, got {end}")
    if not isinstance(length, Tensor):
        length = torch.full_like(start, operator.index(length), dtype=torch.long)
    elif length.is_floating_point() or length.shape not in (start.shape, torch.Size([])):
        raise ValueError(
            f"length must be an integer, or one for each of {len(start)} rows,"
            f" got {_dtype_name(length)} of shape {list(length.shape)}"
        )
    if bool((length < 1).any()):
        raise ValueError(f"length must be at least 1, got {int(length.min())}")
    return length.to(start.device, torch.long).expand(len(start))


def _dtype_name(tensor: Tensor) -> str:
    """A tensor's dtype as an error message names it: int64, not torch.int64."""
    return str(tensor.dtype).removeprefix("torch.")
