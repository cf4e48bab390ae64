"""One sequence a row, one token after the other: the likeliest, or a drawn one.

    token_t = argmax log p(· | token_<t)                     greedy
    token_t ~ p(· | token_<t)^(1/temperature), filtered      sample

Rows that are over leave the batch.
"""

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from regard.checks import is_number, positive
from regard.decoding.step import (
    Hypothesis,
    State,
    Step,
    ask,
    check_numbers,
    check_possible,
    check_start,
    limits,
    select,
)
from regard.decoding.topk import largest, nucleus


def greedy(step: Step[State], state: State, start: Tensor, *, end: int, length: int | Tensor) -> list[Hypothesis]:
    """The likeliest token each time, until the end: one hypothesis a row.

    start    the token that each row begins with, `[rows]`
    end      the token that ends a row
    length   the most tokens that a row may get, the end included: a number, or one for each row

    Rows that are over leave the batch. The score is the log probability.

    >>> import torch
    >>> table = torch.tensor([[0.0, 0.9, 0.1], [0.3, 0.1, 0.6], [1.0, 0.0, 0.0]]).log()
    >>> greedy(lambda state, last: (state, table[last]), None, torch.tensor([0, 1]), end=2, length=5)[0].tokens
    [1]
    """
    check_start(start, end)
    total = torch.zeros(len(start), dtype=torch.float64, device=start.device)
    columns = []
    for row, token, log_probs in write(step, state, start, likeliest, end, limits(length, start)):
        columns.append(spread(row, token, len(start)))
        total[row] += log_probs.gather(1, token[:, None]).squeeze(1)
    if not columns:
        return []
    tokens = torch.stack(columns, dim=1)  # [rows, longest], -1 behind the last
    finished = (tokens == end).any(dim=1)
    count = (tokens >= 0).sum(dim=1) - finished.long()
    return [
        Hypothesis(written[:n], score=score, log_probability=score, finished=ended)
        for written, n, score, ended in zip(
            tokens.tolist(), count.tolist(), total.tolist(), finished.tolist(), strict=True
        )
    ]


def sample(
    step: Step[State],
    state: State,
    start: Tensor,
    *,
    end: int | None = None,
    length: int | Tensor,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    generator: torch.Generator | None = None,
) -> Iterator[Tensor]:
    """Draws one token a row after the other, and gives them as they come: `[rows]` each, -1 where a row is over.

    start         the token that each row begins with, `[rows]`
    end           the token that ends a row; it is given too. None: rows end by their length alone
    length        the most tokens that a row may get, the end included: a number, or one for each row
    temperature   log probabilities are divided by it; 0 takes the likeliest token
    top_k         draws from so many tokens, the likeliest (`largest`)
    top_p         draws from the fewest tokens that together are so likely (`nucleus`), after the two before
    generator     of random numbers: the same seed gives the same tokens; None: torch's own

    >>> import torch
    >>> table = torch.tensor([[0.1, 0.9, 0.0], [0.5, 0.4, 0.1], [1.0, 0.0, 0.0]]).log()
    >>> tokens = sample(lambda state, last: (state, table[last]), None, torch.tensor([0, 0]), length=3, temperature=0)
    >>> torch.stack(list(tokens), dim=1).tolist()
    [[1, 0, 1], [1, 0, 1]]
    """
    check_start(start, end)
    check_sampling(temperature, top_k, top_p)

    def choose(log_probs: Tensor) -> Tensor:
        if temperature != 1:  # the largest becomes 0, which no small temperature makes infinite
            least = torch.finfo(log_probs.dtype).tiny
            log_probs = (log_probs - log_probs.amax(dim=1, keepdim=True)) / max(temperature, least)
        token = None
        if top_k is not None:
            log_probs, token = largest(log_probs, top_k)  # [rows, k] both
        if top_p is not None:
            log_probs = nucleus(log_probs, top_p)
        place = draw(log_probs, generator)
        return place if token is None else token.gather(1, place[:, None]).squeeze(1)

    written = write(step, state, start, likeliest if temperature == 0 else choose, end, limits(length, start))
    return (spread(row, token, len(start)) for row, token, _ in written)


def check_sampling(temperature: float, top_k: int | None, top_p: float | None) -> None:
    """Settings that make no sense are refused before the first step."""
    if not is_number(temperature) or not 0 <= temperature < math.inf:
        raise ValueError(f"temperature must be finite and at least 0, got {temperature!r}")
    if top_k is not None:
        positive("top_k", top_k)
    if top_p is not None and not (is_number(top_p) and 0 < top_p <= 1):
        raise ValueError(f"top_p must be above 0 and at most 1, got {top_p!r}")


@torch.no_grad()
def write(
    step: Step[State],
    state: State,
    start: Tensor,
    choose: Callable[[Tensor], Tensor],
    end: int | None,
    limit: Tensor,
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Which rows go on, the token that was chosen for each, and what it was chosen from."""
    row, last, number = torch.arange(len(start), device=start.device), start, 0
    while len(row):
        number += 1
        state, log_probs = ask(step, state, last, end)
        top = log_probs.amax(dim=1)
        check_numbers(top, row, number)
        check_possible(top, row, number)
        last = choose(log_probs)
        yield row, last, log_probs
        stays = limit > number if end is None else (limit > number) & (last != end)
        if not stays.all():
            kept = stays.nonzero().squeeze(1)
            if len(kept):
                state = select(state, kept, of=len(row))
            row, last, limit = row[kept], last[kept], limit[kept]


def likeliest(log_probs: Tensor) -> Tensor:
    """The likeliest token of each row, `[rows]`; of equals the lowest."""
    return log_probs.max(dim=1).indices


def draw(log_probs: Tensor, generator: torch.Generator | None) -> Tensor:
    """A token for each row, `[rows]`: where one uniform number falls on the cumulated probabilities.

    torch's multinomial draws a number for each token instead.
    """
    reached = log_probs.softmax(dim=1).cumsum(dim=1, dtype=torch.float64)
    device = log_probs.device if generator is None else generator.device
    shot = torch.rand(len(log_probs), 1, dtype=torch.float64, generator=generator, device=device)
    # The first that is above: so a token of probability 0, which reaches no further than the one before, never is.
    return torch.searchsorted(reached, shot.to(log_probs.device) * reached[:, -1:], right=True).squeeze(1)


def spread(row: Tensor, token: Tensor, rows: int) -> Tensor:
    """The tokens of some rows among all, -1 elsewhere."""
    return torch.full((rows,), -1, dtype=torch.long, device=token.device).index_copy_(0, row, token)
