"""Beam search: the likeliest beginnings of each sentence, all sentences at once.

    score(y) = log p(y) / penalty(n)      penalty(n) = ((5 + n) / 6)^α      (Wu et al. 2016, equation 14)

n counts the tokens of y and its end, as log p does. α = 0 compares log probabilities, which favours the short; the
larger α, the less so. At each step, of all continuations of a sentence's open hypotheses by one token,
- those by the end that are among the `size` likeliest are finished, and the best of them by score are kept;
- the `size` likeliest others are the next open hypotheses.

Rows are sentences × hypotheses; a sentence that is done leaves.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from regard.checks import positive
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
from regard.decoding.topk import largest


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
    """The best hypotheses of each sentence, best first: those that finished, then those that were cut off.

    start     the token that each sentence begins with, `[sentences]`: the rows of `state`
    end       the token that ends a sentence
    length    the most tokens that a sentence may get, the end included: a number, or one for each sentence
    size      how many open hypotheses a sentence has
    penalty   α of the length penalty, at least 0
    keep      how many hypotheses come back, at most `size`; fewer where there are no more

    The search for a sentence goes on until no open hypothesis can become better than the `keep` that are finished:
    it gives what it would give if it went on to the full length. With size 1 and penalty 0 it is `greedy`.

    >>> import torch
    >>> table = torch.tensor([[0.0, 0.6, 0.4, 0.0], [0.0, 0.3, 0.3, 0.4], [0.0, 0.0, 0.1, 0.9], [1.0, 0.0, 0.0, 0.0]])
    >>> step = lambda state, last: (state, table.log()[last])
    >>> [[found]] = beam(step, None, torch.tensor([0]), end=3, length=5, size=2)
    >>> found.tokens, round(found.log_probability, 3), found.finished  # greedy would find [1]
    ([2], -1.022, True)
    """
    check_start(start, end)
    check_settings(size, penalty, keep)
    search = Search(start, limits(length, start), end, size, penalty, keep)
    while len(search.sentence):
        state, log_probs = ask(step, state, search.token.flatten(), end)
        rows = search.extend(log_probs)
        if len(rows) and not torch.equal(rows, torch.arange(len(log_probs), device=rows.device)):
            state = select(state, rows, of=len(log_probs))
    return search.hypotheses()


def check_settings(size: int, penalty: float, keep: int) -> None:
    """Settings that make no sense are refused before the first step."""
    positive("size", size)
    if positive("keep", keep) > size:
        raise ValueError(f"keep must be at most size, got keep={keep} and size={size}")
    if not 0 <= penalty < math.inf:
        raise ValueError(f"penalty must be finite and at least 0, got {penalty}")


class Found(NamedTuple):
    """The best hypotheses of each sentence so far, `[sentences, keep]`, best first; score -inf: there is none."""

    score: Tensor
    log_probability: Tensor
    finished: Tensor
    length: Tensor  # in tokens, without the end
    node: Tensor  # of the last token

    def merged(self, new: "Found", *, behind: bool = False) -> "Found":
        """The best of these and new ones, or these with the new ones behind them; of equals the earlier."""
        both = Found(*(torch.cat(pair, dim=1) for pair in zip(self, new, strict=True)))
        key = (both.score > -math.inf).byte() if behind else both.score
        order = key.argsort(dim=1, descending=True, stable=True)[:, : self.score.shape[1]]
        return Found(*(part.gather(1, order) for part in both))


def nothing(start: Tensor, keep: int) -> Found:
    """No hypothesis yet for any of the sentences."""
    none = torch.full((len(start), keep), -math.inf, dtype=torch.float64, device=start.device)
    zero = torch.zeros_like(none, dtype=torch.long)
    return Found(score=none, log_probability=none.clone(), finished=zero.bool(), length=zero, node=zero.clone())


class Tree:
    """The tokens of all hypotheses: each node is a token that knows the node before it."""

    def __init__(self) -> None:
        self.tokens: list[Tensor] = []
        self.parents: list[Tensor] = []
        self.size = 0

    def grow(self, token: Tensor, parent: Tensor) -> Tensor:
        """The new nodes of these tokens, in the tokens' shape."""
        first, self.size = self.size, self.size + token.numel()
        self.tokens.append(token.flatten())
        self.parents.append(parent.flatten())
        return torch.arange(first, self.size, device=token.device).view(token.shape)

    def read(self, node: Tensor, length: Tensor) -> list[list[int]]:
        """The last `length` tokens up to each node, `[hypotheses]` both."""
        if not self.size:
            return []
        tokens, parents = torch.cat(self.tokens), torch.cat(self.parents)
        columns: list[Tensor] = []
        for _ in range(int(length.max())):  # all together, from the last token to the first, and beyond it
            columns.append(tokens[node])
            node = parents[node]
        backwards = torch.stack(columns, dim=1).tolist() if columns else [[] for _ in node]
        return [row[:n][::-1] for row, n in zip(backwards, length.tolist(), strict=True)]


class Search:
    """What is known of every sentence that is still searched for.

    Tensors are `[sentences]` or `[sentences, width]`; the width is 1 at first, then the beam's size.
    """

    def __init__(self, start: Tensor, limit: Tensor, end: int, size: int, penalty: float, keep: int) -> None:
        self.end, self.size, self.number = end, size, 0
        self.sentence, self.limit = torch.arange(len(start), device=start.device), limit
        self.token, self.node = start[:, None], torch.zeros_like(start, dtype=torch.long)[:, None]
        self.log_probability = torch.zeros(len(start), 1, device=start.device)  # of what is open, highest first
        self.found, self.result, self.tree = nothing(start, keep), nothing(start, keep), Tree()
        lengths = torch.arange(max(limit.tolist(), default=0) + 1, dtype=torch.float64, device=start.device)
        self.scale = ((5 + lengths) / 6) ** penalty  # penalty(n) for n = 0, …, longest
        if not self.scale.isfinite().all():
            raise ValueError(f"penalty is too large for {len(lengths) - 1} tokens, got {penalty}: 0 to 2 is usual")

    def extend(self, log_probs: Tensor) -> Tensor:
        """All open hypotheses grow by one token; which rows of the state go on, `[rows]`."""
        self.number += 1
        (sentences, width), vocabulary = self.token.shape, log_probs.shape[1]
        total = log_probs.view(sentences, width, vocabulary) + self.log_probability[:, :, None]
        # At most one continuation of each hypothesis ends: of size + width, at least `size` go on.
        value, index = largest(total.flatten(1), self.size + width)
        check_numbers(value[:, 0] - self.log_probability[:, 0], self.sentence, self.number)
        parent, token = index // vocabulary, index % vocabulary
        node, ends = self.node.gather(1, parent), token == self.end
        if ends[:, : self.size].any():
            ended = value.masked_fill(~ends, -math.inf)[:, : self.size]
            self.found = self.found.merged(self.over(ended, node[:, : self.size], finished=True))

        order = ends.byte().argsort(dim=1, stable=True)[:, : self.size]  # those that do not end, likeliest first
        self.log_probability = value.masked_fill(ends, -math.inf).gather(1, order)
        self.token = token.gather(1, order)
        self.node = self.tree.grow(self.token, node.gather(1, order))
        rows = parent.gather(1, order) + width * torch.arange(sentences, device=parent.device)[:, None]
        return self.retire(rows).flatten()

    def retire(self, rows: Tensor) -> Tensor:
        """Sentences that are done leave; the rows `[sentences, width]` of the others."""
        # An open hypothesis of log probability l can only end with l' ≤ l ≤ 0 after n ≤ N = limit tokens, and the
        # penalty does not fall with n: l' / penalty(n) ≤ l / penalty(n) ≤ l / penalty(N). Of equals the earlier stays.
        done = self.found.score[:, -1] >= self.log_probability[:, 0] / self.scale[self.limit]
        cut = self.limit == self.number
        if cut.any():
            open_ = self.log_probability.masked_fill(~cut[:, None], -math.inf)
            self.found = self.found.merged(self.over(open_, self.node, finished=False), behind=True)
            done |= cut
        if not done.any():
            return rows
        check_possible(self.found.score[done, 0], self.sentence[done], self.number)
        for result, found in zip(self.result, self.found, strict=True):
            result[self.sentence[done]] = found[done]
        searched = (self.sentence, self.limit, self.token, self.node, self.log_probability, self.found, rows)
        searched = select(searched, (~done).nonzero().squeeze(1))
        self.sentence, self.limit, self.token, self.node, self.log_probability, self.found, rows = searched
        return rows

    def over(self, log_probability: Tensor, node: Tensor, *, finished: bool) -> Found:
        """Hypotheses that are over at this step, `[sentences, some]`; log probability -inf: there is none."""
        log_probability = log_probability.double()
        return Found(
            score=log_probability / self.scale[self.number],
            log_probability=log_probability,
            finished=torch.full_like(node, finished, dtype=torch.bool),
            length=torch.full_like(node, self.number - finished),
            node=node,
        )

    def hypotheses(self) -> list[list[Hypothesis]]:
        """What was found for every sentence, best first."""
        keep = self.result.score.shape[1]
        tokens = self.tree.read(self.result.node.flatten(), self.result.length.flatten())
        numbers = zip(*(part.flatten().tolist() for part in self.result[:3]), strict=True)
        found = [Hypothesis(written, *of_it) for written, of_it in zip(tokens, numbers, strict=True)]
        sentences = (found[first : first + keep] for first in range(0, len(found), keep))
        return [[hypothesis for hypothesis in some if hypothesis.score > -math.inf] for some in sentences]
