"""Decoding against plain definitions: every sequence enumerated, and a beam search of one sentence in lists."""

import math
from collections import OrderedDict, defaultdict
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare
from torch.testing import assert_close

from regard.decoding import Fixed, beam, forbid, greedy, largest, nucleus, sample, select
from regard.decoding.filters import BLOCK, FIRST_TOKENS

START = 0  # a token like any other: the worlds below may give it again


class World:
    """Log probabilities that depend on the sentence and on the whole prefix. Coarse ones are often equal, or -inf."""

    def __init__(self, seed, vocabulary, *, coarse=False):
        self.seed, self.vocabulary, self.coarse, self.known = seed, vocabulary, coarse, {}

    def __call__(self, sentence, prefix):
        """The log probabilities `[vocabulary]` after a prefix (without start)."""
        if (sentence, prefix) not in self.known:
            random = np.random.default_rng([self.seed, sentence, *prefix])
            if self.coarse:  # halves and quarters: sums are exact, so equal is equal
                values = random.choice([0.0, -0.25, -0.5, -0.5, -1.0, -math.inf], self.vocabulary)
                values[random.integers(self.vocabulary)] = -0.5  # no dead ends
            else:
                values = 2 * random.standard_normal(self.vocabulary)
                values -= np.log(np.exp(values).sum())
            self.known[sentence, prefix] = torch.from_numpy(values)
        return self.known[sentence, prefix]


class Prefix(NamedTuple):
    """A state that remembers which sentence each row is, and all tokens that it was fed."""

    sentence: torch.Tensor  # [rows]
    fed: torch.Tensor  # [rows, length]


def reading(world):
    """The step of a world."""

    def step(state, last):
        fed = torch.cat([state.fed, last[:, None]], dim=1)
        rows = zip(state.sentence.tolist(), fed.tolist(), strict=True)
        log_probs = torch.stack([world(sentence, tuple(prefix[1:])) for sentence, prefix in rows])
        return Prefix(state.sentence, fed), log_probs

    return step


def beginning(*sentences):
    """State and start of some sentences."""
    sentence = torch.tensor(sentences)
    return Prefix(sentence, torch.zeros(len(sentence), 0, dtype=torch.long)), torch.full_like(sentence, START)


def scale(length, penalty):
    return ((5 + length) / 6) ** penalty


def all_finished(world, sentence, end, length, penalty):
    """Every sequence that ends within the length: (score, log probability, tokens), best first."""
    found, prefixes = [], [((), 0.0)]
    for number in range(1, length + 1):
        longer = [
            ((*prefix, token), before + value)
            for prefix, before in prefixes
            for token, value in enumerate(world(sentence, prefix).tolist())
        ]
        found += [(value / scale(number, penalty), value, list(p[:-1])) for p, value in longer if p[-1] == end]
        prefixes = [(p, value) for p, value in longer if p[-1] != end]
    return sorted(found, key=lambda hypothesis: -hypothesis[0])


def plain_beam(world, sentence, end, length, size, penalty, keep):
    """Beam search of one sentence in lists, always to the full length: (score, log probability, tokens, finished)."""
    finished, opened = [], [((), 0.0)]
    for number in range(1, length + 1):
        longer = [
            (before + value, place, token)
            for place, (prefix, before) in enumerate(opened)
            for token, value in enumerate(world(sentence, prefix).tolist())
            if before + value > -math.inf
        ]
        longer.sort(key=lambda candidate: (-candidate[0], candidate[1], candidate[2]))
        finished += [
            (value / scale(number, penalty), value, list(opened[place][0]), True)
            for value, place, token in longer[:size]
            if token == end
        ]
        opened = [((*opened[place][0], token), value) for value, place, token in longer if token != end][:size]
    finished.sort(key=lambda hypothesis: -hypothesis[0])
    cut = [(value / scale(length, penalty), value, list(prefix), False) for prefix, value in opened]
    return (finished + cut)[:keep]


def plain_greedy(world, sentence, end, length):
    tokens, total = [], 0.0
    for _ in range(length):
        values = world(sentence, tuple(tokens)).tolist()
        token = values.index(max(values))
        total += values[token]
        if token == end:
            return tokens, total, True
        tokens.append(token)
    return tokens, total, False


def assert_same(hypotheses, expected):
    """The same tokens in the same order, with the same numbers."""
    assert [(h.tokens, h.finished) for h in hypotheses] == [(tokens, finished) for *_, tokens, finished in expected]
    assert_close([h.score for h in hypotheses], [score for score, *_ in expected], rtol=1e-12, atol=1e-12)
    numbers = [h.log_probability for h in hypotheses], [value for _, value, *_ in expected]
    assert_close(*numbers, rtol=1e-12, atol=1e-12)


# Beam search


@pytest.mark.parametrize("penalty", [0.0, 0.6, 1.0, 3.0])
@pytest.mark.parametrize("length", [1, 2, 5])
def test_a_beam_of_everything_finds_the_best_of_all(penalty, length):
    world = World(1, vocabulary=3)
    state, start = beginning(0, 1, 2, 3, 4)
    results = beam(reading(world), state, start, end=1, length=length, size=3**length, penalty=penalty, keep=2)
    lengths = set()
    for sentence, hypotheses in enumerate(results):
        expected = all_finished(world, sentence, 1, length, penalty)[:2]
        assert_same([h for h in hypotheses if h.finished], [(*hypothesis, True) for hypothesis in expected])
        lengths.add(len(expected[0][2]))
    assert length == 1 or len(lengths) > 1  # the best are of several lengths, or this would show little


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 10**6),
    vocabulary=st.integers(2, 7),
    limits=st.lists(st.integers(1, 7), min_size=1, max_size=4),
    size=st.integers(1, 6),
    penalty=st.sampled_from([0.0, 0.3, 1.0, 2.5]),
    coarse=st.booleans(),
    data=st.data(),
)
def test_it_is_the_search_of_each_sentence_alone_to_the_full_length(
    seed, vocabulary, limits, size, penalty, coarse, data
):
    keep = data.draw(st.integers(1, size))
    end = data.draw(st.integers(0, vocabulary - 1))
    world = World(seed, vocabulary, coarse=coarse)
    state, start = beginning(*range(len(limits)))
    settings = {"end": end, "length": torch.tensor(limits), "size": size, "penalty": penalty, "keep": keep}
    for sentence, hypotheses in enumerate(beam(reading(world), state, start, **settings)):
        assert_same(hypotheses, plain_beam(world, sentence, end, limits[sentence], size, penalty, keep))


def listed(rows):
    """A step of listed probabilities after each prefix; after others the end, 0, is certain."""

    def world(sentence, prefix):
        return torch.tensor(rows.get(prefix, [1.0, 0.0, 0.0]), dtype=torch.float64).log()

    return reading(world)


def test_a_finished_hypothesis_does_not_end_the_search_while_a_better_one_can_come():
    # [] has ended, the likeliest of all first tokens, but 1 and then the end is better per token.
    step = listed({(): [0.5, 0.45, 0.05], (1,): [0.99, 0.005, 0.005]})
    for penalty, tokens in (0.0, []), (1.0, [1]):
        [[found]] = beam(step, *beginning(0), end=0, length=4, size=2, penalty=penalty)
        assert found.tokens == tokens, penalty
    # Here nothing is normalised: 2 was less likely than the ended [1] all along the way, and is better.
    step = listed({(): [0.0, 0.6, 0.4], (1,): [0.5, 0.3, 0.2], (2,): [0.9, 0.05, 0.05]})
    [[found]] = beam(step, *beginning(0), end=0, length=4, size=2, penalty=0.0)
    assert found.tokens == [2]
    assert_close(found.log_probability, math.log(0.36))


def counted(step):
    """A step that keeps the number of rows of each call."""
    rows = []

    def counting(state, last):
        rows.append(len(last))
        return step(state, last)

    return counting, rows


def test_it_stops_as_soon_as_nothing_better_can_come_and_rows_leave():
    def world(sentence, prefix):  # sentence s ends after s tokens, almost surely
        likely = 0 if len(prefix) >= sentence else 1
        return torch.tensor([0.99 if token == likely else 0.01 / 3 for token in range(4)], dtype=torch.float64).log()

    step, rows = counted(reading(world))
    results = beam(step, *beginning(3, 0, 1, 3), end=0, length=50, size=3, penalty=0.0)
    assert [found.tokens for [found] in results] == [[1] * 3, [], [1], [1] * 3]
    assert rows == [4, 9, 6, 6]  # one row a sentence at first; the second leaves, then the third


@pytest.mark.parametrize(("penalty", "length", "steps"), [(0.0, 19, 1), (1.0, 19, 4), (1.0, 20, 5), (1.0, 3, 2)])
def test_it_goes_on_just_as_long_as_a_better_one_can_come(penalty, length, steps):
    # [] ends at once with log ½. After t steps t · log ½ is open, and may become t · log ½ / ((5 + length) / 6).
    step, rows = counted(lambda state, last: (state, torch.full((len(last), 2), math.log(0.5), dtype=torch.float64)))
    [[found]] = beam(step, None, torch.tensor([1]), end=0, length=length, size=1, penalty=penalty)
    assert found.tokens == []
    assert len(rows) == steps


def test_batched_is_the_same_as_one_at_a_time():
    world = World(5, vocabulary=11)
    settings = {"end": 3, "size": 4, "penalty": 1.0, "keep": 3}
    limits = [13, 1, 7, 13, 2]
    together = beam(reading(world), *beginning(2, 3, 5, 7, 11), length=torch.tensor(limits), **settings)
    alone = [
        beam(reading(world), *beginning(sentence), length=limit, **settings)[0]
        for sentence, limit in zip((2, 3, 5, 7, 11), limits, strict=True)
    ]
    assert together == alone
    assert len({len(hypotheses[0].tokens) for hypotheses in together}) > 2


def test_hypotheses_that_were_cut_come_after_those_that_finished():
    step = listed({(): [0.1, 0.6, 0.3], (1,): [0.0, 0.9, 0.1], (2,): [0.0, 0.9, 0.1]})
    [found] = beam(step, *beginning(0), end=0, length=2, size=3, penalty=0.0, keep=3)
    assert [(h.tokens, h.finished) for h in found] == [([], True), ([1, 1], False), ([2, 1], False)]


def test_fewer_come_back_where_there_are_no_more():
    step = listed({(): [0.5, 0.5, 0.0]})
    [found] = beam(step, *beginning(0), end=0, length=9, size=5, keep=4)
    assert [h.tokens for h in found] == [[1], []]


@settings(max_examples=60, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10**6), limits=st.lists(st.integers(1, 9), min_size=1, max_size=4), coarse=st.booleans())
def test_greedy_is_the_plain_loop_and_a_beam_of_one_without_penalty(seed, limits, coarse):
    world = World(seed, vocabulary=5, coarse=coarse)
    state, start = beginning(*range(len(limits)))
    found = greedy(reading(world), state, start, end=2, length=torch.tensor(limits))
    for sentence, (hypothesis, limit) in enumerate(zip(found, limits, strict=True)):
        tokens, total, finished = plain_greedy(world, sentence, 2, limit)
        assert_same([hypothesis], [(total, total, tokens, finished)])
    beams = beam(reading(world), state, start, end=2, length=torch.tensor(limits), size=1, penalty=0.0)
    assert [hypothesis for [hypothesis] in beams] == found


def test_greedy_rows_leave_when_they_are_over():
    def world(sentence, prefix):
        return torch.tensor([0.9, 0.1] if len(prefix) >= sentence else [0.1, 0.9]).log()

    step, rows = counted(reading(world))
    assert [h.tokens for h in greedy(step, *beginning(2, 0, 4), end=0, length=4)] == [[1] * 2, [], [1] * 4]
    assert rows == [3, 2, 2, 1]


def test_equal_is_equal_the_earlier_beam_and_the_lower_token_first():
    def step(state, last):
        return state, torch.full((len(last), 300), -1.0)

    [found] = beam(step, None, torch.tensor([7]), end=0, length=3, size=3, penalty=0.0, keep=3)
    # The end is among the first three, then that of [1] is; those of [2] and [3] come behind 300 ways on from [1].
    assert [h.tokens for h in found] == [[], [1], [1, 1]]
    [found] = greedy(step, None, torch.tensor([7]), end=9, length=2)
    assert found.tokens == [0, 0]


# States


@dataclass(frozen=True)
class Frozen:
    part: Any
    name: Any = field(default=None, init=False)


@dataclass(slots=True)
class Slots:
    part: Any


class Own:
    """A state that picks its rows itself, as a cache does: in place, or into another."""

    def __init__(self, part, *, in_place):
        self.part, self.in_place = part, in_place

    def select(self, rows):
        part = select(self.part, rows)
        if not self.in_place:
            return Own(part, in_place=False)
        self.part = part
        return None


KINDS = {
    "tensor": (lambda part: part, lambda state: state),
    "tuple": (lambda part: (1, part), lambda state: state[1]),
    "list": (lambda part: [None, [part]], lambda state: state[1][0]),
    "dict": (lambda part: {"a": {"b": part}, "c": 2.5}, lambda state: state["a"]["b"]),
    "ordered dict": (lambda part: OrderedDict(a=part), lambda state: state["a"]),
    "default dict": (lambda part: defaultdict(list, a=part), lambda state: state["a"]),
    "dataclass": (lambda part: Slots(part), lambda state: state.part),
    "frozen dataclass": (lambda part: Frozen((part,)), lambda state: state.part[0]),
    "in place": (lambda part: Own(part, in_place=True), lambda state: state.part),
    "into another": (lambda part: [Own(part, in_place=False)], lambda state: state[0].part),
}


@pytest.mark.parametrize("kind", KINDS)
def test_states_of_every_kind_follow_their_hypotheses(kind):
    wrap, unwrap = KINDS[kind]
    world = World(9, vocabulary=7)
    plain = reading(world)

    def step(state, last):
        read, log_probs = plain(unwrap(state["own"]), last)
        assert torch.equal(state["memory"].value, 10 * read.sentence)
        return {"own": wrap(read), "memory": state["memory"]}, log_probs

    prefix, start = beginning(2, 3, 5)
    settings = {"end": 4, "length": torch.tensor([11, 2, 7])}
    state = {"own": wrap(prefix), "memory": Fixed(10 * prefix.sentence)}
    found = beam(step, state, start, size=3, **settings, penalty=1.0)
    assert found == beam(plain, prefix, start, size=3, **settings, penalty=1.0)
    state = {"own": wrap(prefix), "memory": Fixed(10 * prefix.sentence)}
    assert greedy(step, state, start, **settings) == greedy(plain, prefix, start, **settings)


def test_select_keeps_types_and_what_has_no_rows():
    rows, number = torch.tensor([1, 1, 0]), torch.tensor(5.0)
    state = (Prefix(torch.tensor([2, 3]), torch.eye(2)), defaultdict(list, a=torch.tensor([5, 7])), number, None, True)
    prefix, table, *others = select(state, rows)
    assert isinstance(prefix, Prefix)
    assert prefix.sentence.tolist() == [3, 3, 2]
    assert prefix.fed.tolist() == [[0, 1], [0, 1], [1, 0]]
    assert table["a"].tolist() == [7, 7, 5]
    assert table["new"] == []
    assert others == [number, None, True]
    assert state[0].sentence.tolist() == [2, 3]
    assert state[1]["a"].tolist() == [5, 7]  # what was given is as it was


def test_what_is_fixed_is_copied_only_when_rows_come_or_go():
    memory = Fixed({"grid": torch.tensor([[2.0], [3.0]])}).select(torch.tensor([0, 0, 1, 1]))
    assert memory.select(torch.tensor([1, 0, 2, 2])) is memory
    fewer = memory.select(torch.tensor([3, 3]))
    assert fewer.value["grid"].tolist() == [[3.0], [3.0]]
    assert fewer.select(torch.tensor([1, 0])) is fewer
    swapped = memory.select(torch.tensor([2, 3, 0, 0]))
    assert swapped.value["grid"].tolist() == [[3.0], [3.0], [2.0], [2.0]]


def test_no_gradient_is_kept():
    table = torch.zeros(3, 3, requires_grad=True)
    seen = []

    def step(state, last):
        log_probs = table.log_softmax(dim=1)[last]
        seen.append(log_probs.requires_grad)
        return state, log_probs

    greedy(step, None, torch.tensor([0]), end=2, length=2)
    beam(step, None, torch.tensor([0]), end=2, length=2)
    for _ in sample(step, None, torch.tensor([0]), length=2):
        assert torch.is_grad_enabled()
    assert seen
    assert not any(seen)


# Sampling


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


# Forbidden tokens, and what is wrong


def test_forbidden_tokens_never_come():
    world = World(3, vocabulary=5)
    step = forbid(reading(world), {0, 3})
    state, start = beginning(*range(6))
    written = [h.tokens for h in greedy(step, state, start, end=1, length=9)]
    written += [h.tokens for found in beam(step, state, start, end=1, length=9, keep=5) for h in found]
    written += torch.stack(list(sample(step, state, start, length=9)), dim=1).tolist()
    assert {token for tokens in written for token in tokens} == {1, 2, 4}  # sample gives the 1 too
    assert torch.equal(step(state, start)[1][:, [1, 2, 4]], reading(world)(state, start)[1][:, [1, 2, 4]])
    assert reading(world)(state, start)[1].isfinite().all()  # the world's own are as they were
    assert forbid(reading(world), [])(state, start)[1].isfinite().all()


def test_a_hypothesis_may_come_to_a_dead_end_where_another_goes_on():
    nan = math.nan
    rows = {(): [0.0, 0.6, 0.4], (1,): [0.0, 0.0, 0.0], (2,): [1.0, 0.0, 0.0]}
    [found] = beam(listed(rows), *beginning(0), end=0, length=5, size=2, keep=2)
    assert [(h.tokens, h.finished) for h in found] == [([2], True)]
    with pytest.raises(ValueError, match="at least one token must be possible, got only -inf in row 0 at step 2"):
        greedy(listed(rows), *beginning(0), end=0, length=5)
    rows[2,] = [0.0, 0.0, 0.0]
    with pytest.raises(ValueError, match="at least one token must be possible, got only -inf in row 0 at step 2"):
        beam(listed(rows), *beginning(0), end=0, length=5, size=2)
    rows[2,] = [nan, 0.5, 0.5]
    with pytest.raises(ValueError, match="at most 0, got nan in row 0 at step 2; log_softmax"):
        beam(listed(rows), *beginning(0), end=0, length=5, size=2)


def test_the_number_of_the_row_is_that_of_the_caller():
    def world(sentence, prefix):
        certain = torch.tensor([1.0, 0.0]) if sentence == 0 else torch.tensor([0.0, 1.0])
        return torch.full((2,), math.nan) if sentence == 2 and len(prefix) == 2 else certain.log()

    for search in greedy, beam:
        with pytest.raises(ValueError, match="got nan in row 2 at step 3"):
            search(reading(world), *beginning(0, 1, 2), end=0, length=5)


def test_no_sentences_no_hypotheses():
    def step(state, last):
        raise AssertionError("nothing to ask")

    nobody = torch.zeros(0, dtype=torch.long)
    assert beam(step, None, nobody, end=0, length=5) == []
    assert greedy(step, None, nobody, end=0, length=5) == []
    assert list(sample(step, None, nobody, length=5)) == []


def test_half_precision_is_added_up_in_full():
    log_probs = torch.tensor([[-20.0, -0.001]], dtype=torch.float16)

    def step(state, last):
        return state, log_probs

    [found] = greedy(step, None, torch.tensor([0]), end=0, length=300)
    [[same]] = beam(step, None, torch.tensor([0]), end=0, length=300, size=1, penalty=0.0)
    for hypothesis in found, same:
        assert_close(hypothesis.log_probability, 300 * log_probs[0, 1].item(), rtol=1e-4, atol=0)


FLAT = torch.full((1, 3), -1.0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"size": 0}, "size must be at least 1, got 0"),
        ({"keep": 0}, "keep must be at least 1, got 0"),
        ({"size": 2, "keep": 3}, "keep must be at most size, got keep=3 and size=2"),
        ({"penalty": -0.5}, "penalty must be finite and at least 0, got -0.5"),
        ({"penalty": math.nan}, "penalty must be finite and at least 0, got nan"),
        ({"length": 0}, "length must be at least 1, got 0"),
        ({"length": torch.tensor([-1])}, "length must be at least 1, got -1"),
        ({"length": torch.tensor([3, 3])}, r"one for each of 1 rows, got int64 of shape \[2\]"),
        ({"length": torch.tensor([2.5])}, r"one for each of 1 rows, got float32 of shape \[1\]"),
        ({"end": -1}, "end must be a token, at least 0, got -1"),
        ({"end": 3}, "end must be in the vocabulary of 3, got 3"),
        ({"start": torch.tensor([[0]])}, r"start must be whole numbers \[rows\], got int64 of shape \[1, 1\]"),
        ({"start": torch.tensor([0.0])}, r"start must be whole numbers \[rows\], got float32 of shape \[1\]"),
    ],
    ids=str,
)
def test_wrong_settings_are_named(settings, message):
    settings = {"start": torch.tensor([0]), "end": 0, "length": 5} | settings

    def step(state, last):
        return state, FLAT

    with pytest.raises(ValueError, match=message):
        beam(step, None, **settings)
    if not {"size", "keep", "penalty"} & set(settings):
        with pytest.raises(ValueError, match=message):
            greedy(step, None, **settings)
        with pytest.raises(ValueError, match=message):
            list(sample(step, None, **settings))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"temperature": -1.0}, "temperature must be finite and at least 0, got -1.0"),
        ({"temperature": math.inf}, "temperature must be finite and at least 0, got inf"),
        ({"temperature": math.nan}, "temperature must be finite and at least 0, got nan"),
        ({"top_k": 0}, "top_k must be at least 1, got 0"),
        ({"top_p": 0.0}, "top_p must be above 0 and at most 1, got 0.0"),
        ({"top_p": 1.5}, "top_p must be above 0 and at most 1, got 1.5"),
        ({"top_p": math.nan}, "top_p must be above 0 and at most 1, got nan"),
    ],
    ids=str,
)
def test_wrong_settings_of_sample_are_named_at_once(settings, message):
    with pytest.raises(ValueError, match=message):
        sample(lambda state, last: (state, FLAT), None, torch.tensor([0]), length=5, **settings)


@pytest.mark.parametrize(
    ("log_probs", "message"),
    [
        (torch.zeros(3), r"\[rows, vocabulary\] of 1 rows, got float32 of shape \[3\]"),
        (torch.zeros(2, 3), r"\[rows, vocabulary\] of 1 rows, got float32 of shape \[2, 3\]"),
        (torch.zeros(1, 1, 3), r"\[rows, vocabulary\] of 1 rows, got float32 of shape \[1, 1, 3\]"),
        (torch.zeros(1, 0), r"\[rows, vocabulary\] of 1 rows, got float32 of shape \[1, 0\]"),
        (torch.zeros(1, 3, dtype=torch.long), r"\[rows, vocabulary\] of 1 rows, got int64 of shape \[1, 3\]"),
        (torch.tensor([[0.0, 2.5, 1.0]]), "at most 0, got 2.5 in row 0 at step 1; log_softmax"),
        (torch.tensor([[-1.0, math.nan, -1.0]]), "at most 0, got nan in row 0 at step 1"),
        (torch.full((1, 3), -math.inf), "at least one token must be possible, got only -inf in row 0 at step 1"),
    ],
    ids=str,
)
def test_wrong_log_probabilities_are_named(log_probs, message):
    def step(state, last):
        return state, log_probs

    for search in (greedy, beam, lambda *inputs, **settings: list(sample(*inputs, **settings))):
        with pytest.raises(ValueError, match=message):
            search(step, None, torch.tensor([0]), end=0, length=5)


def test_wrong_states_and_filters_are_named():
    rows = torch.tensor([0])
    with pytest.raises(TypeError, match=r"objects with a method select\(rows\), .* got function"):
        select({"a": (lambda: None)}, rows)
    with pytest.raises(TypeError, match="got str"):
        select(["text"], rows)
    with pytest.raises(ValueError, match=r"must have its 4 rows first, got shape \[2, 4, 8\]; .* transpose it"):
        select((torch.zeros(2, 4, 8),), rows, of=4)
    lstm = (torch.zeros(2, 3, 8), torch.zeros(2, 3, 8))
    with pytest.raises(ValueError, match=r"must have its 3 rows first, got shape \[2, 3, 8\]"):
        beam(lambda state, last: (state, FLAT.expand(len(last), -1)), lstm, torch.zeros(3).long(), end=0, length=5)
    with pytest.raises(ValueError, match="count must be at least 1, got 0"):
        largest(FLAT, 0)
    with pytest.raises(ValueError, match=r"share must be above 0 and at most 1, got 1\.1"):
        nucleus(FLAT, 1.1)
    with pytest.raises(ValueError, match="forbidden tokens must be at least 0, got -2"):
        forbid(lambda state, last: (state, FLAT), [1, -2])
    with pytest.raises(ValueError, match="forbidden tokens must be in the vocabulary of 3, got 5"):
        forbid(lambda state, last: (state, FLAT), [1, 5])(None, rows)
