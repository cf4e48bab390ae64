"""Beam search: the likeliest prefixes of each sentence, for all sentences of a batch at once, and for many batches.

    score(y) = log p(y) / penalty(n)      penalty(n) = ((5 + n) / 6)^α      (Wu et al. 2016, equation 14)

n counts the tokens of y and its end, as log p does. α = 0 compares log probabilities, which favours short sequences;
a larger α favours longer ones. At each step, of all continuations of a sentence's open hypotheses by one token,
- those by the end token that are among the `size` likeliest are finished; the best of them by score are kept;
- the `size` likeliest others are the next open hypotheses.

Rows are sentences × hypotheses. A sentence leaves the batch when its search is complete.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Generic, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from regard.checks import positive
from regard.decoding.sampling import largest
from regard.decoding.step import (
    Hypothesis,
    State,
    Step,
    check_log_probs,
    check_possible,
    checked_step,
    length_limits,
    select,
)


@torch.no_grad()
def beam(
    step: Step[State],
    state: State,
    start: Tensor,
    *,
    end: int,
    length: int | Tensor,
    size: int = 5,
    penalty: float = 0.6,
    keep: int = 1,
) -> list[list[Hypothesis]]:
    """The best hypotheses of each sentence, best first: the finished ones, then those cut off at the length.

    start     the first token of each sentence, `[sentences]`: the rows of `state`
    end       the token that ends a sentence
    length    the maximum number of tokens of a sentence, including the end: one number, or one for each sentence
    size      the number of open hypotheses of a sentence
    penalty   α of the length penalty, at least 0
    keep      the number of hypotheses to return, at most `size`; fewer if there are no more

    The search for a sentence stops when no open hypothesis can become better than its `keep` finished ones: the result
    is the same as that of a search to the full length.

    >>> import torch
    >>> table = torch.tensor([[0.0, 0.6, 0.4, 0.0], [0.0, 0.3, 0.3, 0.4], [0.0, 0.0, 0.1, 0.9], [1.0, 0.0, 0.0, 0.0]])
    >>> step = lambda state, last: (state, table.log()[last])
    >>> [[best]] = beam(step, None, torch.tensor([0]), end=3, length=5, size=2)
    >>> best.tokens, round(best.log_probability, 3), best.finished  # greedy would give [1]
    ([2], -1.022, True)
    """
    positive("size", size)
    if positive("keep", keep) > size:
        raise ValueError(f"keep must be at most size, got keep={keep} and size={size}")
    if not 0 <= penalty < math.inf:
        raise ValueError(f"penalty must be finite and at least 0, got {penalty}")
    search = _Search(start, length_limits(length, start, end), end, size, penalty, keep)
    while len(search.sentence):
        state, log_probs = checked_step(step, state, search.token.flatten(), end)
        rows = search.extend(log_probs)
        if len(rows) and not torch.equal(rows, torch.arange(len(log_probs), device=rows.device)):
            state = select(state, rows, of=len(log_probs))
    return [search.results[sentence] for sentence in range(len(start))]


def greedy(step: Step[State], state: State, start: Tensor, *, end: int, length: int | Tensor) -> list[Hypothesis]:
    """The likeliest token at each step, until the end: `beam` with size 1 and penalty 0, one hypothesis a row.

    >>> import torch
    >>> table = torch.tensor([[0.0, 0.9, 0.1], [0.3, 0.1, 0.6], [1.0, 0.0, 0.0]]).log()
    >>> greedy(lambda state, last: (state, table[last]), None, torch.tensor([0, 1]), end=2, length=5)[0].tokens
    [1]
    """
    return [best for [best] in beam(step, state, start, end=end, length=length, size=1, penalty=0.0)]


class Batch(NamedTuple, Generic[State]):
    """Inputs that are searched together.

    >>> Batch(inputs=[2, 0], state=None, length=5).inputs
    [2, 0]
    """

    inputs: Sequence[int]  # [rows]  the index of each row's input
    state: State
    length: int | Tensor  # the maximum number of tokens, including the end: one number, or one for each row


@torch.inference_mode()
def decode_batches(
    step: Step[State],
    batches: Iterable[Batch[State]],
    *,
    start: int,
    end: int,
    size: int = 1,
    penalty: float = 0.0,
    progress: Callable[[int], None] = lambda done: None,
) -> dict[int, list[int]]:
    """The tokens of each input's best hypothesis, without start and end, by the input's index.

    batches    read one at a time, in inference mode: a generator may encode the next inputs when it is asked for them
    size       the number of open hypotheses of an input; 1 is the greedy search
    penalty    α of the beam's length penalty; not used by the greedy search
    progress   is called with the number of inputs decoded so far, after each batch

    >>> import torch
    >>> table = torch.tensor([[0.0, 0.9, 0.1], [0.3, 0.1, 0.6], [1.0, 0.0, 0.0]]).log()
    >>> batches = [Batch([2, 0], None, length=5), Batch([1], None, length=1)]
    >>> decode_batches(lambda state, last: (state, table[last]), batches, start=1, end=0)
    {2: [2], 0: [2], 1: [2]}
    """
    tokens: dict[int, list[int]] = {}
    for inputs, state, length in batches:
        first = torch.full((len(inputs),), start)
        alpha = penalty if size > 1 else 0.0
        ranked = beam(step, state, first, end=end, length=length, size=size, penalty=alpha)
        tokens.update((index, best.tokens) for index, [best] in zip(inputs, ranked, strict=True))
        progress(len(tokens))
    return tokens


class _Ranking(NamedTuple):
    """The best hypotheses of each sentence so far, `[sentences, keep]`, best first; a score of -inf: none."""

    score: Tensor
    log_probability: Tensor
    finished: Tensor
    length: Tensor  # number of tokens, without the end
    tokens: Tensor  # [sentences, keep, longest], of which the first `length` count

    def merge(self, new: "_Ranking", *, append: bool = False) -> "_Ranking":
        """The best of both, of equal ones the earlier; with `append` the new ones follow all that are here."""
        older = self._replace(tokens=pad(self.tokens, (0, new.tokens.shape[2] - self.tokens.shape[2])))
        both = _Ranking(*(torch.cat(pair, dim=1) for pair in zip(older, new, strict=True)))
        key = (both.score > -math.inf).byte() if append else both.score
        order = key.argsort(dim=1, descending=True, stable=True)[:, : self.score.shape[1]]
        return _Ranking(*(_take(part, order) for part in both))


def _take(values: Tensor, index: Tensor) -> Tensor:
    """Those of some hypotheses of each sentence: `[sentences, all, …]` → `[sentences, some, …]`."""
    index = index.reshape(*index.shape, *[1] * (values.ndim - 2))  # [sentences, some] → [sentences, some, 1 …]
    return torch.take_along_dim(values, index, dim=1)


class _Search:
    """The state of the search over all unfinished sentences.

    Tensors are `[sentences]` or `[sentences, width, …]`; the width is 1 at first, then the beam's size.
    """

    def __init__(self, start: Tensor, limit: Tensor, end: int, size: int, penalty: float, keep: int) -> None:
        self.end, self.size, self.number = end, size, 0
        self.sentence, self.limit = torch.arange(len(start), device=start.device), limit
        self.token = start[:, None]  # the last one
        self.tokens = torch.empty(len(start), 1, 0, dtype=torch.long, device=start.device)  # after the start
        self.log_probability = torch.zeros(len(start), 1, device=start.device)  # of the open ones, highest first
        none = torch.full((len(start), keep), -math.inf, dtype=torch.float64, device=start.device)
        zero = torch.zeros_like(none, dtype=torch.long)
        self.best = _Ranking(none, none, finished=zero.bool(), length=zero, tokens=zero.new_zeros(len(start), keep, 0))
        self.results: dict[int, list[Hypothesis]] = {}
        lengths = torch.arange(max(limit.tolist(), default=0) + 1, dtype=torch.float64, device=start.device)
        self.scale = ((5 + lengths) / 6) ** penalty  # penalty(n) for n = 0, …, longest
        if not self.scale.isfinite().all():
            raise ValueError(f"penalty is too large for {len(lengths) - 1} tokens, got {penalty}: 0 to 2 is usual")

    def extend(self, log_probs: Tensor) -> Tensor:
        """Extend all open hypotheses by one token; the rows of the state that stay, `[rows]`."""
        self.number += 1
        (sentences, width), vocabulary = self.token.shape, log_probs.shape[1]
        total = log_probs.view(sentences, width, vocabulary) + self.log_probability[:, :, None]
        # At most one continuation of each hypothesis ends: of size + width, at least `size` stay open.
        value, index = largest(total.flatten(1), self.size + width)  # [sentences, size + width] both
        check_log_probs(value[:, 0] - self.log_probability[:, 0], self.sentence, self.number)
        parent, token = index // vocabulary, index % vocabulary
        tokens, ends = _take(self.tokens, parent), token == self.end
        if ends[:, : self.size].any():
            log_probability = value.masked_fill(~ends, -math.inf)[:, : self.size]
            self.best = self.best.merge(self.ranking(log_probability, tokens[:, : self.size], finished=True))

        order = ends.byte().argsort(dim=1, stable=True)[:, : self.size]  # the open ones, likeliest first
        self.log_probability = value.masked_fill(ends, -math.inf).gather(1, order)
        self.token = token.gather(1, order)
        self.tokens = torch.cat([_take(tokens, order), self.token[:, :, None]], dim=2)  # [sentences, width, number]
        rows = parent.gather(1, order) + width * torch.arange(sentences, device=parent.device)[:, None]
        return self.remove_complete(rows).flatten()

    def remove_complete(self, rows: Tensor) -> Tensor:
        """Remove sentences whose search is complete; the rows `[sentences, width]` of the others."""
        # An open hypothesis of log probability l can only end with l' ≤ l ≤ 0 after n ≤ N = limit tokens, and the
        # penalty does not fall with n: l' / penalty(n) ≤ l / penalty(n) ≤ l / penalty(N). Of equal ones the earlier
        # stays.
        done = self.best.score[:, -1] >= self.log_probability[:, 0] / self.scale[self.limit]
        cut_off = self.limit == self.number
        if cut_off.any():
            log_probability = self.log_probability.masked_fill(~cut_off[:, None], -math.inf)
            self.best = self.best.merge(self.ranking(log_probability, self.tokens, finished=False), append=True)
            done |= cut_off
        if not done.any():
            return rows
        check_possible(self.best.score[done, 0], self.sentence[done], self.number)
        self.add_results(done)
        searched = (self.sentence, self.limit, self.token, self.tokens, self.log_probability, self.best, rows)
        searched = select(searched, (~done).nonzero().squeeze(1))
        self.sentence, self.limit, self.token, self.tokens, self.log_probability, self.best, rows = searched
        return rows

    def ranking(self, log_probability: Tensor, tokens: Tensor, *, finished: bool) -> _Ranking:
        """Hypotheses that end at this step, `[sentences, some]`; a log probability of -inf: none."""
        log_probability = log_probability.double()
        return _Ranking(
            score=log_probability / self.scale[self.number],
            log_probability=log_probability,
            finished=torch.full_like(log_probability, finished, dtype=torch.bool),
            length=torch.full_like(log_probability, tokens.shape[2], dtype=torch.long),
            tokens=tokens,
        )

    def add_results(self, done: Tensor) -> None:
        """The hypotheses of the sentences that are done, `[sentences]`, best first."""
        rows = zip(*(part[done].tolist() for part in self.best), strict=True)
        for sentence, row in zip(self.sentence[done].tolist(), rows, strict=True):
            self.results[sentence] = [
                Hypothesis(tokens[:length], score, log_probability, finished)
                for score, log_probability, finished, length, tokens in zip(*row, strict=True)
                if score > -math.inf
            ]
