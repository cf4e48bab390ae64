"""Sampling: how often tokens come, and the filters they are drawn through."""

import math

import numpy as np
import pytest
import torch
from helpers.worlds import World, beginning, counted, reading
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from regard.decoding import greedy, largest, nucleus, sample
from regard.decoding.topk import BLOCK, FIRST_TOKENS


def drawn(table, rows=20_000, **settings):
    """Tokens that are drawn from one table, once a row."""
    log_probs = torch.tensor(table, dtype=torch.float64).log()
    [tokens] = sample(
        lambda state, last: (state, log_probs.expand(len(last), -1)),
        None,
        torch.zeros(rows, dtype=torch.long),
        length=1,
        generator=torch.Generator().manual_seed(3),
        **settings,
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
def test_tokens_come_as_often_as_they_should(settings, expected):
    counts = drawn(TABLE, **settings)
    possible = expected > 0
    assert (counts[possible] > 0).all()
    assert not counts[~possible].any()
    share = expected[possible] / expected.sum()
    assert possible.sum() == 1 or chisquare(counts[possible], share * counts.sum()).pvalue > 1e-3


def test_draws_depend_on_the_prefix_and_rows_are_independent():
    world = World(4, vocabulary=3)
    rows = 3_000
    tokens = sample(
        reading(world), *beginning(*[0] * rows), length=2, generator=torch.Generator().manual_seed(0), temperature=1.0
    )
    first, second = tokens
    counts = torch.bincount(3 * first + second, minlength=9).numpy()
    expected = [(world(0, ())[a] + world(0, (a,))[b]).exp().item() * rows for a in range(3) for b in range(3)]
    assert chisquare(counts, expected).pvalue > 1e-3


def test_a_seed_gives_the_same_tokens_and_another_others():
    def written(seed):
        generator = torch.Generator().manual_seed(seed)
        return torch.stack(list(sample(reading(World(1, 13)), *beginning(0, 1), length=17, generator=generator)))

    assert torch.equal(written(2), written(2))
    assert not torch.equal(written(2), written(3))
    torch.manual_seed(5)
    once = torch.stack(list(sample(reading(World(1, 13)), *beginning(0), length=17)))
    torch.manual_seed(5)
    assert torch.equal(once, torch.stack(list(sample(reading(World(1, 13)), *beginning(0), length=17))))


def test_rows_that_are_over_give_minus_one_and_the_end_is_given():
    world = World(8, vocabulary=5)
    limits = [3, 11, 1, 11, 11]
    step, rows = counted(reading(world))
    columns = list(sample(step, *beginning(*range(5)), end=2, length=torch.tensor(limits), top_k=3))
    tokens = torch.stack(columns, dim=1).tolist()
    alive = [0] * len(columns)
    for row, limit in zip(tokens, limits, strict=True):
        over = row.index(2) + 1 if 2 in row else limit
        assert all(token >= 0 for token in row[:over])
        assert row[over:] == [-1] * (len(row) - over)
        alive = [count + (place < over) for place, count in enumerate(alive)]
    assert rows == alive
    assert min(alive) >= 1
    assert len(set(alive)) > 2


def test_tokens_stream():
    step, rows = counted(reading(World(8, vocabulary=5)))
    tokens = sample(step, *beginning(0), length=10**9)
    assert rows == []
    next(tokens), next(tokens)
    assert rows == [1, 1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("temperature", [0, 5e-324, 1e-40])
def test_no_temperature_is_greedy(temperature, dtype):
    def step(state, last):
        state, log_probs = reading(World(2, 6))(state, last)
        return state, log_probs.to(dtype) - 50  # so unlikely that a small temperature alone would make all infinite

    state, start = beginning(*range(7))
    found = greedy(step, state, start, end=1, length=9)
    columns = list(sample(step, state, start, end=1, length=torch.tensor(9), temperature=temperature))
    tokens = [[token for token in row if token not in (-1, 1)] for row in torch.stack(columns, dim=1).tolist()]
    assert tokens == [h.tokens for h in found]


@pytest.mark.parametrize(("shot", "token"), [(0.0, 1), (0.4999, 1), (0.5001, 3), (1 - 2**-53, 3)])
def test_what_has_no_probability_is_never_drawn(shot, token, monkeypatch):
    monkeypatch.setattr(torch, "rand", lambda *shape, **kind: torch.full(shape, shot, dtype=torch.float64))

    def one(log_probs):
        [tokens] = sample(lambda state, last: (state, log_probs), None, torch.tensor([0]), length=1)
        return tokens.item()

    assert one(torch.tensor([[0.0, 0.5, 0.0, 0.5, 0.0]]).log()) == token
    # A whole of many parts in float32 is not 1; the last of them must still be found, and nothing behind it.
    many = torch.cat([torch.randn(1, 999), torch.full((1, 1), -math.inf)], dim=1).log_softmax(dim=1)
    assert one(many) < 999


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 10**6),
    rows=st.integers(1, 5),
    n=st.sampled_from([1, 2, 63, 64, 1000, 20 * BLOCK + 17]),
    count=st.integers(1, 9),
    coarse=st.sampled_from([0, 3, 10**6]),
)
def test_the_largest_are_those_of_a_stable_sort(seed, rows, n, count, coarse):
    values = torch.randn(rows, n, generator=torch.Generator().manual_seed(seed))
    if coarse:
        values = (values * coarse).round() / coarse
    value, index = largest(values, count)
    expected = values.sort(dim=1, descending=True, stable=True)
    assert torch.equal(value, expected.values[:, :count])
    assert torch.equal(index, expected.indices[:, :count])


def test_a_nucleus_is_exactly_what_it_says():
    log_probs = torch.tensor([[0.25, 0.25, 0.25, 0.25], [0.1, 0.2, 0.3, 0.4]]).log()
    kept = nucleus(log_probs, 0.6)
    assert kept.isfinite().tolist() == [[True, True, True, False], [False, False, True, True]]
    assert torch.equal(kept[kept.isfinite()], log_probs[kept.isfinite()])
    assert nucleus(log_probs, 1.0) is log_probs
    assert torch.equal(nucleus(log_probs - 7, 0.6).isfinite(), kept.isfinite())  # a share of what is given


@pytest.mark.parametrize("share", [0.02, 0.5, 0.999])
def test_a_nucleus_of_many_tokens_is_the_definition(share):
    log_probs = torch.randn(5, 50 * FIRST_TOKENS + 3, dtype=torch.float64).mul(0.3).log_softmax(dim=1)
    log_probs[0] = log_probs[0].mul(50).log_softmax(dim=0)  # a few tokens have all
    kept = nucleus(log_probs, share).isfinite()
    for row, chosen in zip(log_probs.exp(), kept, strict=True):
        inside, outside = row[chosen], row[~chosen]
        assert inside.min() > outside.max()
        assert inside.sum() >= share > inside.sum() - inside.min()
