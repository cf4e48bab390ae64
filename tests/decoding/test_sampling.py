"""Sampling: how often each token is drawn, and the filters `largest` and `nucleus`."""

import math

import numpy as np
import pytest
import torch
from helpers.toy_models import ToyModel, initial, step_of, with_row_counts
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from regard.decoding import Sampling, greedy, largest, nucleus, sample
from regard.decoding.sampling import _BLOCK, _FIRST_TOKENS


def token_counts(table, rows=20_000, **settings):
    """How often each token of a table of probabilities is sampled, in one step of many rows."""
    log_probs = torch.tensor(table, dtype=torch.float64).log()
    [tokens] = sample(
        lambda state, last: (state, log_probs.expand(len(last), -1)),
        None,
        torch.zeros(rows, dtype=torch.long),
        length=1,
        generator=torch.Generator().manual_seed(3),
        sampling=Sampling(**settings),
    )
    return torch.bincount(tokens, minlength=len(table)).numpy()


TABLE = np.array([0.02, 0.3, 0.0, 0.2, 0.08, 0.4, 0.0])


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, TABLE),
        ({"temperature": 2.0}, TABLE**0.5),
        ({"temperature": 0.5}, TABLE**2),
        ({"top_k": 2}, TABLE * [0, 1, 0, 0, 0, 1, 0]),
        ({"top_k": 7}, TABLE),
        ({"top_p": 0.75}, TABLE * [0, 1, 0, 1, 0, 1, 0]),
        ({"top_p": 1.0}, TABLE),
        ({"top_p": 0.01}, TABLE * [0, 0, 0, 0, 0, 1, 0]),
        # Of the best four the two best have 0.7 / 0.98 > 0.71; of all they would have 0.7.
        ({"top_k": 4, "top_p": 0.71}, TABLE * [0, 1, 0, 0, 0, 1, 0]),
        # At temperature ½ the best has 0.16 / 0.2968 > 0.53, at temperature 1 it has 0.4.
        ({"temperature": 0.5, "top_p": 0.53}, TABLE * [0, 0, 0, 0, 0, 1, 0]),
    ],
    ids=str,
)
def test_tokens_are_drawn_with_their_probabilities(settings, expected):
    counts = token_counts(TABLE, **settings)
    possible = expected > 0
    assert (counts[possible] > 0).all()
    assert not counts[~possible].any()
    probability = expected[possible] / expected.sum()
    assert possible.sum() == 1 or chisquare(counts[possible], probability * counts.sum()).pvalue > 1e-3


def test_draws_depend_on_the_prefix_and_rows_are_independent():
    model = ToyModel(4, vocabulary=3)
    rows = 3_000
    tokens = sample(
        step_of(model), *initial(*[0] * rows), length=2, generator=torch.Generator().manual_seed(0), sampling=Sampling()
    )
    first, second = tokens
    counts = torch.bincount(3 * first + second, minlength=9).numpy()
    expected = [(model(0, ())[a] + model(0, (a,))[b]).exp().item() * rows for a in range(3) for b in range(3)]
    assert chisquare(counts, expected).pvalue > 1e-3


def test_the_same_seed_gives_the_same_tokens():
    def tokens(seed):
        generator = torch.Generator().manual_seed(seed)
        return torch.stack(list(sample(step_of(ToyModel(1, 13)), *initial(0, 1), length=17, generator=generator)))

    assert torch.equal(tokens(2), tokens(2))
    assert not torch.equal(tokens(2), tokens(3))
    torch.manual_seed(5)
    once = torch.stack(list(sample(step_of(ToyModel(1, 13)), *initial(0), length=17)))
    torch.manual_seed(5)
    assert torch.equal(once, torch.stack(list(sample(step_of(ToyModel(1, 13)), *initial(0), length=17))))


def test_a_finished_row_gives_minus_one_after_its_end():
    model = ToyModel(8, vocabulary=5)
    limits = [3, 11, 1, 11, 11]
    step, rows = with_row_counts(step_of(model))
    columns = list(sample(step, *initial(*range(5)), end=2, length=torch.tensor(limits), sampling=Sampling(top_k=3)))
    tokens = torch.stack(columns, dim=1).tolist()
    active = [0] * len(columns)  # rows at each step
    for row, limit in zip(tokens, limits, strict=True):
        length = row.index(2) + 1 if 2 in row else limit
        assert all(token >= 0 for token in row[:length])
        assert row[length:] == [-1] * (len(row) - length)
        active = [count + (step < length) for step, count in enumerate(active)]
    assert rows == active
    assert min(active) >= 1
    assert len(set(active)) > 2


def test_tokens_are_computed_when_they_are_asked_for():
    step, rows = with_row_counts(step_of(ToyModel(8, vocabulary=5)))
    tokens = sample(step, *initial(0), length=10**9)
    assert rows == []
    next(tokens), next(tokens)
    assert rows == [1, 1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("temperature", [0, 5e-324, 1e-40])
def test_a_temperature_of_zero_is_greedy(temperature, dtype):
    def step(state, last):
        state, log_probs = step_of(ToyModel(2, 6))(state, last)
        return state, log_probs.to(dtype) - 50  # a small temperature alone would make these infinite

    state, start = initial(*range(7))
    found = greedy(step, state, start, end=1, length=9)
    sampling = Sampling(temperature=temperature)
    columns = list(sample(step, state, start, end=1, length=torch.tensor(9), sampling=sampling))
    tokens = [[token for token in row if token not in (-1, 1)] for row in torch.stack(columns, dim=1).tolist()]
    assert tokens == [h.tokens for h in found]


@pytest.mark.parametrize(("uniform", "token"), [(0.0, 1), (0.4999, 1), (0.5001, 3), (1 - 2**-53, 3)])
def test_a_token_of_probability_zero_is_never_drawn(uniform, token, monkeypatch):
    monkeypatch.setattr(torch, "rand", lambda *shape, **kind: torch.full(shape, uniform, dtype=torch.float64))

    def one(log_probs):
        [tokens] = sample(lambda state, last: (state, log_probs), None, torch.tensor([0]), length=1)
        return tokens.item()

    assert one(torch.tensor([[0.0, 0.5, 0.0, 0.5, 0.0]]).log()) == token
    # A sum of many float32 probabilities is not 1: the last token must still be found, and nothing after it.
    many = torch.cat([torch.randn(1, 999), torch.full((1, 1), -math.inf)], dim=1).log_softmax(dim=1)
    assert one(many) < 999


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 10**6),
    rows=st.integers(1, 5),
    n=st.sampled_from([1, 2, 63, 64, 1000, 20 * _BLOCK + 17]),
    count=st.integers(1, 9),
    coarse=st.sampled_from([0, 3, 10**6]),
)
def test_largest_is_a_stable_sort(seed, rows, n, count, coarse):
    values = torch.randn(rows, n, generator=torch.Generator().manual_seed(seed))
    if coarse:
        values = (values * coarse).round() / coarse
    value, index = largest(values, count)
    expected = values.sort(dim=1, descending=True, stable=True)
    assert torch.equal(value, expected.values[:, :count])
    assert torch.equal(index, expected.indices[:, :count])


def test_a_nucleus_has_the_fewest_likeliest_tokens():
    log_probs = torch.tensor([[0.25, 0.25, 0.25, 0.25], [0.1, 0.2, 0.3, 0.4]]).log()
    kept = nucleus(log_probs, 0.6)
    assert kept.isfinite().tolist() == [[True, True, True, False], [False, False, True, True]]
    assert torch.equal(kept[kept.isfinite()], log_probs[kept.isfinite()])
    assert nucleus(log_probs, 1.0) is log_probs
    assert torch.equal(nucleus(log_probs - 7, 0.6).isfinite(), kept.isfinite())  # a fraction of the total


@pytest.mark.parametrize("top_p", [0.02, 0.5, 0.999])
def test_a_nucleus_of_many_tokens_is_the_definition(top_p):
    log_probs = torch.randn(5, 50 * _FIRST_TOKENS + 3, dtype=torch.float64).mul(0.3).log_softmax(dim=1)
    log_probs[0] = log_probs[0].mul(50).log_softmax(dim=0)  # a few tokens have all the probability
    kept = nucleus(log_probs, top_p).isfinite()
    for row, chosen in zip(log_probs.exp(), kept, strict=True):
        inside, outside = row[chosen], row[~chosen]
        assert inside.min() > outside.max()
        assert inside.sum() >= top_p > inside.sum() - inside.min()


def test_with_a_generator_for_each_row_its_tokens_do_not_depend_on_the_others():
    table = torch.rand(11, 11).log_softmax(dim=1)

    def draw(starts, seeds, **more):
        generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        step = lambda state, last: (state, table[last])  # noqa: E731
        return torch.stack([*sample(step, None, torch.tensor(starts), length=9, generator=generators, **more)], dim=1)

    together = draw([3, 5, 3], [0, 1, 2], end=4, sampling=Sampling(0.7, top_k=8, top_p=0.95))
    for row, start in enumerate([3, 5, 3]):
        [alone] = draw([start], [row], end=4, sampling=Sampling(0.7, top_k=8, top_p=0.95)).tolist()
        assert [token for token in together[row].tolist() if token >= 0] == alone
    assert not torch.equal(together[0], together[2])
    with pytest.raises(ValueError, match="generator must be one, or one for each of 2 rows, got 3"):
        draw([3, 5], [0, 1, 2])
