"""One sequence a row, token by token, each a random one.

    token_t ~ p(· | token_<t)^(1/temperature), filtered

Filters of log probabilities `[rows, vocabulary]`; each row keeps at least its likeliest token:

    largest   the k likeliest tokens
    nucleus   the fewest likeliest tokens that together reach a probability

Finished rows leave the batch.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.checks import is_number, positive
from regard.decoding.step import State, Step, check_log_probs, check_possible, checked_step, length_limits, select
from regard.ops.attentive_rnn import draw_keys

Generators = torch.Generator | Sequence[torch.Generator] | None
"""Where random numbers come from: one generator for all rows, one for each row, or torch's global one."""

_BLOCK = 64
"""Values of which only the maximum is compared at first: five times faster than torch's topk over all of them."""

_FIRST_TOKENS = 256
"""Number of tokens that are tried as a nucleus before all are sorted."""


@dataclass(frozen=True)
class Sampling:
    """How `sample` draws a token from log probabilities.

    temperature   log probabilities are divided by it; 0 takes the likeliest token
    top_k         draw from the k likeliest tokens (`largest`)
    top_p         draw from the fewest likeliest tokens that together have this probability (`nucleus`); applied after
                  temperature and top_k

    >>> import torch
    >>> Sampling(temperature=0.5, top_k=1).draw(torch.tensor([[0.2, 0.5, 0.3]]).log()).tolist()
    [1]
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None

    def __post_init__(self) -> None:
        if not is_number(self.temperature) or not 0 <= self.temperature < math.inf:
            raise ValueError(f"temperature must be finite and at least 0, got {self.temperature!r}")
        if self.top_k is not None:
            positive("top_k", self.top_k)
        if self.top_p is not None:
            _check_top_p(self.top_p)

    def draw(self, log_probs: Tensor, generator: Generators = None) -> Tensor:
        """A random token for each row of `[rows, vocabulary]`: `[rows]`. `generator` may be one for each row."""
        if self.temperature == 0:
            return log_probs.max(dim=1).indices  # of equal tokens the lowest
        if self.temperature != 1:  # the maximum becomes 0, so that a small temperature makes nothing infinite
            least = torch.finfo(log_probs.dtype).tiny
            log_probs = (log_probs - log_probs.amax(dim=1, keepdim=True)) / max(self.temperature, least)
        token = None
        if self.top_k is not None:
            log_probs, token = largest(log_probs, self.top_k)  # [rows, k] both
        if self.top_p is not None:
            log_probs = nucleus(log_probs, self.top_p)
        index = _draw_index(log_probs, generator)
        return index if token is None else token.gather(1, index[:, None]).squeeze(1)


def sample(
    step: Step[State],
    state: State,
    start: Tensor,
    *,
    end: int | None = None,
    length: int | Tensor,
    sampling: Sampling | None = None,
    generator: Generators = None,
) -> Iterator[Tensor]:
    """Random tokens, one a row at each step, as a stream: `[rows]` each, -1 for a finished row.

    start       the first token of each row, `[rows]`
    end         the token that ends a row; it is given too. None: rows end at their length
    length      the maximum number of tokens of a row, including the end: one number, or one for each row
    sampling    temperature and filters; default: tokens are drawn with their probabilities
    generator   random numbers: the same seed gives the same tokens; None: torch's global generator. If it is one for
                each row, a row's tokens do not depend on the other rows

    >>> import torch
    >>> table = torch.tensor([[0.1, 0.9, 0.0], [0.5, 0.4, 0.1], [1.0, 0.0, 0.0]]).log()
    >>> step, start = lambda state, last: (state, table[last]), torch.tensor([0, 0])
    >>> tokens = sample(step, None, start, length=3, sampling=Sampling(temperature=0))
    >>> torch.stack(list(tokens), dim=1).tolist()
    [[1, 0, 1], [1, 0, 1]]
    """
    if isinstance(generator, Sequence) and len(generator) != len(start):
        raise ValueError(f"generator must be one, or one for each of {len(start)} rows, got {len(generator)}")
    draw = (sampling or Sampling()).draw

    def choose(log_probs: Tensor, row: Tensor) -> Tensor:
        some = [generator[number] for number in row.tolist()] if isinstance(generator, Sequence) else generator
        return draw(log_probs, some)

    return _generate(step, state, start, choose, end, length_limits(length, start, end))


@torch.no_grad()
def _generate(
    step: Step[State],
    state: State,
    start: Tensor,
    choose: Callable[[Tensor, Tensor], Tensor],
    end: int | None,
    limit: Tensor,
) -> Iterator[Tensor]:
    """The tokens of `sample`, step by step, by `choose`: log probabilities of some rows, and their numbers."""
    row, last, number = torch.arange(len(start), device=start.device), start, 0
    while len(row):
        number += 1
        state, log_probs = checked_step(step, state, last, end)
        best = log_probs.amax(dim=1)
        check_log_probs(best, row, number)
        check_possible(best, row, number)
        last = choose(log_probs, row)
        yield torch.full_like(start, -1, dtype=torch.long).index_copy_(0, row, last)
        active = limit > number if end is None else (limit > number) & (last != end)
        if not active.all():
            index = active.nonzero().squeeze(1)
            if len(index):
                state = select(state, index, of=len(row))
            row, last, limit = row[index], last[index], limit[index]


def _draw_index(log_probs: Tensor, generator: Generators) -> Tensor:
    """A random index for each row, `[rows]`, by inverting the cumulative distribution at one uniform number.

    torch's multinomial draws a number for each token of the vocabulary instead.
    """
    if isinstance(generator, Sequence):
        uniform = torch.cat([torch.rand(1, dtype=torch.float64, generator=one, device=one.device) for one in generator])
    else:
        device = log_probs.device if generator is None else generator.device
        uniform = torch.rand(len(log_probs), dtype=torch.float64, generator=generator, device=device)
    return draw_keys(log_probs.softmax(dim=1), uniform.to(log_probs.device))


def _check_top_p(top_p: float) -> None:
    if not is_number(top_p) or not 0 < top_p <= 1:
        raise ValueError(f"top_p must be above 0 and at most 1, got {top_p!r}")


def nucleus(log_probs: Tensor, top_p: float) -> Tensor:
    """The fewest likeliest tokens that together have the probability `top_p` (Holtzman et al. 2020).

    top_p   above 0 and at most 1, as a fraction of the row's total, which need not be 1

    The log probabilities of the other tokens become -inf.

    >>> import torch
    >>> nucleus(torch.tensor([[0.2, 0.5, 0.2, 0.1]]).log(), 0.6).exp()
    tensor([[0.2000, 0.5000, 0.0000, 0.0000]])
    """
    _check_top_p(top_p)
    if top_p == 1:
        return log_probs
    total = log_probs.logsumexp(dim=1, keepdim=True)
    value, index = largest(log_probs, _FIRST_TOKENS)
    cumulative = (value - total).double().exp().cumsum(dim=1)  # [rows, tokens]
    if bool((cumulative[:, -1] < top_p).any()):
        value, index = log_probs.sort(dim=1, descending=True, stable=True)
        cumulative = (value - total).double().exp().cumsum(dim=1)
    # A token stays if those before it have not reached top_p yet: the first one always does.
    before = cumulative.roll(1, dims=1)
    before[:, 0] = 0.0
    return torch.full_like(log_probs, -math.inf).scatter_(1, index, value.masked_fill(before >= top_p, -math.inf))


def largest(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` largest values of each row `[rows, n]`, in descending order, and their indices; ties by index.

    All values if there are fewer. The order of values of -inf is undefined.

    >>> import torch
    >>> value, index = largest(torch.tensor([[1.0, 3.0, 2.0, 3.0]]), 3)
    >>> value.tolist(), index.tolist()
    ([[3.0, 3.0, 2.0]], [[1, 3, 2]])
    """
    one_more = min(positive("count", count) + 1, values.shape[1])  # to detect a tie at the border
    value, index = _topk_by_blocks(values, one_more)
    tied = ((value[:, 1:] == value[:, :-1]) & (value[:, 1:] > -math.inf)).any(dim=1)
    if tied.any():  # topk guarantees no order among equal values; such rows are few, so sort them completely
        rows = tied.nonzero().squeeze(1)
        by_value = values[rows].sort(dim=1, descending=True, stable=True)
        value[rows], index[rows] = by_value.values[:, :one_more], by_value.indices[:, :one_more]
    return value[:, :count], index[:, :count]


def _topk_by_blocks(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """torch's `topk` along rows: the `count` largest values are in the `count` blocks with the largest maxima."""
    rows, n = values.shape
    blocks = n // _BLOCK
    if blocks < 2 * count:
        return values.topk(count, dim=1)
    maxima = values[:, : blocks * _BLOCK].view(rows, blocks, _BLOCK).amax(dim=2)  # [rows, blocks]
    block = maxima.topk(count, dim=1).indices  # [rows, count]
    inside = torch.arange(_BLOCK, device=values.device)
    rest = torch.arange(blocks * _BLOCK, n, device=values.device).expand(rows, -1)
    index = torch.cat([(block[:, :, None] * _BLOCK + inside).flatten(1), rest], dim=1)  # [rows, count · _BLOCK + rest]
    value, position = values.gather(1, index).topk(count, dim=1)
    return value, index.gather(1, position)
