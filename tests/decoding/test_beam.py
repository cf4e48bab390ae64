"""Beam search and greedy search against plain Python definitions; a search in batches gives the same tokens."""

import math

import pytest
import torch
from helpers.toy_models import (
    ToyModel,
    all_finished,
    assert_hypotheses,
    initial,
    reference_beam,
    reference_greedy,
    step_of,
    table_step,
    with_row_counts,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from regard.decoding import Batch, beam, decode_batches, greedy


@pytest.mark.parametrize("penalty", [0.0, 0.6, 1.0, 3.0])
@pytest.mark.parametrize("length", [1, 2, 5])
def test_a_beam_as_large_as_the_search_space_finds_the_best(penalty, length):
    model = ToyModel(1, vocabulary=3)
    state, start = initial(0, 1, 2, 3, 4)
    results = beam(step_of(model), state, start, end=1, length=length, size=3**length, penalty=penalty, keep=2)
    lengths = set()
    for sentence, hypotheses in enumerate(results):
        expected = all_finished(model, sentence, 1, length, penalty)[:2]
        assert_hypotheses([h for h in hypotheses if h.finished], [(*hypothesis, True) for hypothesis in expected])
        lengths.add(len(expected[0][2]))
    assert length == 1 or len(lengths) > 1  # the best have different lengths, else this tests little


@pytest.mark.slow
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
def test_it_equals_a_search_of_each_sentence_alone_to_the_full_length(
    seed, vocabulary, limits, size, penalty, coarse, data
):
    keep = data.draw(st.integers(1, size))
    end = data.draw(st.integers(0, vocabulary - 1))
    model = ToyModel(seed, vocabulary, coarse=coarse)
    state, start = initial(*range(len(limits)))
    settings = {"end": end, "length": torch.tensor(limits), "size": size, "penalty": penalty, "keep": keep}
    for sentence, hypotheses in enumerate(beam(step_of(model), state, start, **settings)):
        assert_hypotheses(hypotheses, reference_beam(model, sentence, end, limits[sentence], size, penalty, keep))


def test_the_search_continues_while_an_open_hypothesis_can_become_better():
    # The end is the likeliest first token, but 1 and then the end is better per token.
    step = table_step({(): [0.5, 0.45, 0.05], (1,): [0.99, 0.005, 0.005]})
    for penalty, tokens in (0.0, []), (1.0, [1]):
        [[found]] = beam(step, *initial(0), end=0, length=4, size=2, penalty=penalty)
        assert found.tokens == tokens, penalty
    # Without a penalty: [2] is less likely than [1] at first, and better in the end.
    step = table_step({(): [0.0, 0.6, 0.4], (1,): [0.5, 0.3, 0.2], (2,): [0.9, 0.05, 0.05]})
    [[found]] = beam(step, *initial(0), end=0, length=4, size=2, penalty=0.0)
    assert found.tokens == [2]
    assert_close(found.log_probability, math.log(0.36))


def test_it_stops_as_soon_as_nothing_better_can_come_and_removes_rows():
    def model(sentence, prefix):  # sentence s ends after s tokens, almost surely
        likely = 0 if len(prefix) >= sentence else 1
        return torch.tensor([0.99 if token == likely else 0.01 / 3 for token in range(4)], dtype=torch.float64).log()

    step, rows = with_row_counts(step_of(model))
    results = beam(step, *initial(3, 0, 1, 3), end=0, length=50, size=3, penalty=0.0)
    assert [found.tokens for [found] in results] == [[1] * 3, [], [1], [1] * 3]
    assert rows == [4, 9, 6, 6]  # one row a sentence at first; the second is removed, then the third


@pytest.mark.parametrize(("penalty", "length", "steps"), [(0.0, 19, 1), (1.0, 19, 4), (1.0, 20, 5), (1.0, 3, 2)])
def test_the_number_of_steps_is_the_smallest_possible(penalty, length, steps):
    # [] ends at once with log ½. After t steps t · log ½ is open, and may become t · log ½ / ((5 + length) / 6).
    step, rows = with_row_counts(
        lambda state, last: (state, torch.full((len(last), 2), math.log(0.5), dtype=torch.float64))
    )
    [[found]] = beam(step, None, torch.tensor([1]), end=0, length=length, size=1, penalty=penalty)
    assert found.tokens == []
    assert len(rows) == steps


def test_many_sentences_together_give_the_same_as_one_at_a_time():
    model = ToyModel(5, vocabulary=11)
    settings = {"end": 3, "size": 4, "penalty": 1.0, "keep": 3}
    limits = [13, 1, 7, 13, 2]
    together = beam(step_of(model), *initial(2, 3, 5, 7, 11), length=torch.tensor(limits), **settings)
    alone = [
        beam(step_of(model), *initial(sentence), length=limit, **settings)[0]
        for sentence, limit in zip((2, 3, 5, 7, 11), limits, strict=True)
    ]
    assert together == alone
    assert len({len(hypotheses[0].tokens) for hypotheses in together}) > 2


def test_hypotheses_that_were_cut_off_follow_the_finished_ones():
    step = table_step({(): [0.1, 0.6, 0.3], (1,): [0.0, 0.9, 0.1], (2,): [0.0, 0.9, 0.1]})
    [found] = beam(step, *initial(0), end=0, length=2, size=3, penalty=0.0, keep=3)
    assert [(h.tokens, h.finished) for h in found] == [([], True), ([1, 1], False), ([2, 1], False)]


def test_fewer_hypotheses_are_returned_if_there_are_no_more():
    step = table_step({(): [0.5, 0.5, 0.0]})
    [found] = beam(step, *initial(0), end=0, length=9, size=5, keep=4)
    assert [h.tokens for h in found] == [[1], []]


@settings(max_examples=60, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10**6), limits=st.lists(st.integers(1, 9), min_size=1, max_size=4), coarse=st.booleans())
def test_greedy_is_a_plain_loop_and_a_beam_of_size_one_without_penalty(seed, limits, coarse):
    model = ToyModel(seed, vocabulary=5, coarse=coarse)
    state, start = initial(*range(len(limits)))
    found = greedy(step_of(model), state, start, end=2, length=torch.tensor(limits))
    for sentence, (hypothesis, limit) in enumerate(zip(found, limits, strict=True)):
        tokens, total, finished = reference_greedy(model, sentence, 2, limit)
        assert_hypotheses([hypothesis], [(total, total, tokens, finished)])
    beams = beam(step_of(model), state, start, end=2, length=torch.tensor(limits), size=1, penalty=0.0)
    assert [hypothesis for [hypothesis] in beams] == found


def test_greedy_removes_finished_rows():
    def model(sentence, prefix):
        return torch.tensor([0.9, 0.1] if len(prefix) >= sentence else [0.1, 0.9]).log()

    step, rows = with_row_counts(step_of(model))
    assert [h.tokens for h in greedy(step, *initial(2, 0, 4), end=0, length=4)] == [[1] * 2, [], [1] * 4]
    assert rows == [3, 2, 2, 1]


def test_ties_go_to_the_earlier_hypothesis_and_the_lower_token():
    def step(state, last):
        return state, torch.full((len(last), 300), -1.0)

    [found] = beam(step, None, torch.tensor([7]), end=0, length=3, size=3, penalty=0.0, keep=3)
    # The end is among the first three, then that of [1]; those of [2] and [3] follow 300 continuations of [1].
    assert [h.tokens for h in found] == [[], [1], [1, 1]]
    [found] = greedy(step, None, torch.tensor([7]), end=9, length=2)
    assert found.tokens == [0, 0]


def test_a_penalty_that_overflows_raises():
    with pytest.raises(ValueError, match=r"penalty is too large for 4 tokens, got 100000\.0"):
        beam(lambda state, last: (state, torch.zeros(1, 2).log_softmax(1)), *initial(0), end=0, length=4, penalty=1e5)


LIMITS = [13, 1, 7, 13, 2, 5]


def batches_of(*groups):
    for group in groups:
        assert torch.is_inference_mode_enabled()  # an encoder that makes the state records nothing either
        yield Batch(group, initial(*group)[0], torch.tensor([LIMITS[sentence] for sentence in group]))


@pytest.mark.parametrize("size", [1, 3])
def test_batches_give_the_same_tokens_as_one_search(size):
    step = step_of(ToyModel(5, vocabulary=11))
    state, start = initial(*range(6))
    settings = {"end": 3, "length": torch.tensor(LIMITS)}
    if size == 1:
        expected = greedy(step, state, start, **settings)
    else:
        expected = [best for best, *_ in beam(step, state, start, size=size, penalty=1.0, **settings)]
    counts = []
    groups = [4, 0], [5], [2, 1]
    tokens = decode_batches(step, batches_of(*groups), start=0, end=3, size=size, penalty=1.0, progress=counts.append)
    assert tokens == {sentence: expected[sentence].tokens for sentence in (4, 0, 5, 2, 1)}
    assert list(tokens) == [4, 0, 5, 2, 1]
    assert len({len(row) for row in tokens.values()}) > 2
    assert counts == [2, 3, 5]
    assert not torch.is_inference_mode_enabled()


def test_the_penalty_reaches_the_beam():
    step = step_of(ToyModel(5, vocabulary=11))
    short, long = (
        decode_batches(step, batches_of([0, 3]), start=0, end=3, size=4, penalty=penalty) for penalty in (0.0, 3.0)
    )
    assert sum(map(len, short.values())) < sum(map(len, long.values()))


def test_no_batches_give_no_tokens():
    assert decode_batches(step_of(ToyModel(1, 3)), [], start=0, end=1) == {}
