"""Decoding: forbidden tokens, odd worlds, and what is wrong."""

import math

import pytest
import torch
from helpers.worlds import World, beginning, listed, reading
from torch.testing import assert_close

from regard.decoding import beam, forbid, greedy, largest, nucleus, sample, select


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
        ({"size": 0}, "size must be a positive whole number, got 0"),
        ({"keep": 0}, "keep must be a positive whole number, got 0"),
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
        ({"top_k": 0}, "top_k must be a positive whole number, got 0"),
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
    with pytest.raises(ValueError, match="count must be a positive whole number, got 0"):
        largest(FLAT, 0)
    with pytest.raises(ValueError, match=r"share must be above 0 and at most 1, got 1\.1"):
        nucleus(FLAT, 1.1)
    with pytest.raises(ValueError, match="forbidden tokens must be at least 0, got -2"):
        forbid(lambda state, last: (state, FLAT), [1, -2])
    with pytest.raises(ValueError, match="forbidden tokens must be in the vocabulary of 3, got 5"):
        forbid(lambda state, last: (state, FLAT), [1, 5])(None, rows)
