"""Toy models to decode, whose log probabilities depend on all tokens so far; and searches by the definition."""

import math
from typing import NamedTuple

import numpy as np
import torch
from torch.testing import assert_close

START = 0  # a token like any other: the models below may give it again


class ToyModel:
    """Random log probabilities of a sentence and a whole prefix. Coarse ones are often equal, or -inf."""

    def __init__(self, seed, vocabulary, *, coarse=False):
        self.seed, self.vocabulary, self.coarse, self.cache = seed, vocabulary, coarse, {}

    def __call__(self, sentence, prefix):
        """The log probabilities `[vocabulary]` after a prefix (without start)."""
        if (sentence, prefix) not in self.cache:
            random = np.random.default_rng([self.seed, sentence, *prefix])
            if self.coarse:  # halves and quarters: sums are exact, so equal is equal
                values = random.choice([0.0, -0.25, -0.5, -0.5, -1.0, -math.inf], self.vocabulary)
                values[random.integers(self.vocabulary)] = -0.5  # no dead ends
            else:
                values = 2 * random.standard_normal(self.vocabulary)
                values -= np.log(np.exp(values).sum())
            self.cache[sentence, prefix] = torch.from_numpy(values)
        return self.cache[sentence, prefix]


class Prefix(NamedTuple):
    """The state of `step_of`: the sentence of each row, and all tokens it was given."""

    sentence: torch.Tensor  # [rows]
    tokens: torch.Tensor  # [rows, length]


def step_of(model):
    """The step of a model."""

    def step(state, last):
        tokens = torch.cat([state.tokens, last[:, None]], dim=1)
        rows = zip(state.sentence.tolist(), tokens.tolist(), strict=True)
        log_probs = torch.stack([model(sentence, tuple(prefix[1:])) for sentence, prefix in rows])
        return Prefix(state.sentence, tokens), log_probs

    return step


def initial(*sentences):
    """The state and the start tokens of some sentences."""
    sentence = torch.tensor(sentences)
    return Prefix(sentence, torch.zeros(len(sentence), 0, dtype=torch.long)), torch.full_like(sentence, START)


def scale(length, penalty):
    return ((5 + length) / 6) ** penalty


def all_finished(model, sentence, end, length, penalty):
    """Every sequence that ends within the length: (score, log probability, tokens), best first."""
    found, prefixes = [], [((), 0.0)]
    for number in range(1, length + 1):
        longer = [
            ((*prefix, token), before + value)
            for prefix, before in prefixes
            for token, value in enumerate(model(sentence, prefix).tolist())
        ]
        found += [(value / scale(number, penalty), value, list(p[:-1])) for p, value in longer if p[-1] == end]
        prefixes = [(p, value) for p, value in longer if p[-1] != end]
    return sorted(found, key=lambda hypothesis: -hypothesis[0])


def reference_beam(model, sentence, end, length, size, penalty, keep):
    """Beam search of one sentence in lists, always to the full length: (score, log probability, tokens, finished)."""
    finished, open_ = [], [((), 0.0)]
    for number in range(1, length + 1):
        longer = [
            (before + value, parent, token)
            for parent, (prefix, before) in enumerate(open_)
            for token, value in enumerate(model(sentence, prefix).tolist())
            if before + value > -math.inf
        ]
        longer.sort(key=lambda candidate: (-candidate[0], candidate[1], candidate[2]))
        finished += [
            (value / scale(number, penalty), value, list(open_[parent][0]), True)
            for value, parent, token in longer[:size]
            if token == end
        ]
        open_ = [((*open_[parent][0], token), value) for value, parent, token in longer if token != end][:size]
    finished.sort(key=lambda hypothesis: -hypothesis[0])
    cut = [(value / scale(length, penalty), value, list(prefix), False) for prefix, value in open_]
    return (finished + cut)[:keep]


def reference_greedy(model, sentence, end, length):
    tokens, total = [], 0.0
    for _ in range(length):
        values = model(sentence, tuple(tokens)).tolist()
        token = values.index(max(values))
        total += values[token]
        if token == end:
            return tokens, total, True
        tokens.append(token)
    return tokens, total, False


def assert_hypotheses(hypotheses, expected):
    """The same tokens in the same order, with the same numbers."""
    assert [(h.tokens, h.finished) for h in hypotheses] == [(tokens, finished) for *_, tokens, finished in expected]
    assert_close([h.score for h in hypotheses], [score for score, *_ in expected], rtol=1e-12, atol=1e-12)
    numbers = [h.log_probability for h in hypotheses], [value for _, value, *_ in expected]
    assert_close(*numbers, rtol=1e-12, atol=1e-12)


def with_row_counts(step):
    """A step, and the list of the numbers of rows it is called with."""
    rows = []

    def counting(state, last):
        rows.append(len(last))
        return step(state, last)

    return counting, rows


def table_step(rows):
    """The step of a table from prefix to probabilities; after any other prefix the end, 0, is certain."""

    def model(sentence, prefix):
        return torch.tensor(rows.get(prefix, [1.0, 0.0, 0.0]), dtype=torch.float64).log()

    return step_of(model)
