"""The step of decoding: states of every kind, forbidden tokens, and what raises an error."""

import math
from collections import OrderedDict, defaultdict
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from helpers.toy_models import Prefix, ToyModel, initial, step_of, table_step
from torch.testing import assert_close

from regard.decoding import FixedTensors, Sampling, beam, forbid, greedy, largest, nucleus, sample, select


@dataclass(frozen=True)
class Frozen:
    part: Any
    name: Any = field(default=None, init=False)


@dataclass(slots=True)
class Slots:
    part: Any


class Own:
    """A state that selects its own rows, as a cache does: in place, or into a new object."""

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
    "new object": (lambda part: [Own(part, in_place=False)], lambda state: state[0].part),
}


@pytest.mark.parametrize("kind", KINDS)
def test_states_of_every_kind_follow_their_hypotheses(kind):
    wrap, unwrap = KINDS[kind]
    model = ToyModel(9, vocabulary=7)
    plain = step_of(model)

    def step(state, last):
        read, log_probs = plain(unwrap(state["own"]), last)
        assert torch.equal(state["memory"].tensors[0], 10 * read.sentence)
        return {"own": wrap(read), "memory": state["memory"]}, log_probs

    prefix, start = initial(2, 3, 5)
    settings = {"end": 4, "length": torch.tensor([11, 2, 7])}
    state = {"own": wrap(prefix), "memory": FixedTensors(10 * prefix.sentence)}
    found = beam(step, state, start, size=3, **settings, penalty=1.0)
    assert found == beam(plain, prefix, start, size=3, **settings, penalty=1.0)
    state = {"own": wrap(prefix), "memory": FixedTensors(10 * prefix.sentence)}
    assert greedy(step, state, start, **settings) == greedy(plain, prefix, start, **settings)


def test_select_keeps_types_and_values_without_rows():
    rows, number = torch.tensor([1, 1, 0]), torch.tensor(5.0)
    state = (Prefix(torch.tensor([2, 3]), torch.eye(2)), defaultdict(list, a=torch.tensor([5, 7])), number, None, True)
    prefix, table, *others = select(state, rows)
    assert isinstance(prefix, Prefix)
    assert prefix.sentence.tolist() == [3, 3, 2]
    assert prefix.tokens.tolist() == [[0, 1], [0, 1], [1, 0]]
    assert table["a"].tolist() == [7, 7, 5]
    assert table["new"] == []
    assert others == [number, None, True]
    assert state[0].sentence.tolist() == [2, 3]
    assert state[1]["a"].tolist() == [5, 7]  # the argument is unchanged


def test_fixed_tensors_are_copied_only_when_rows_are_added_or_removed():
    memory = FixedTensors(torch.tensor([[2.0], [3.0]]), torch.tensor([5, 7])).select(torch.tensor([0, 0, 1, 1]))
    assert memory.select(torch.tensor([1, 0, 2, 2])) is memory
    fewer = memory.select(torch.tensor([3, 3]))
    assert [tensor.tolist() for tensor in fewer.tensors] == [[[3.0], [3.0]], [7, 7]]
    assert fewer.select(torch.tensor([1, 0])) is fewer
    swapped = memory.select(torch.tensor([2, 3, 0, 0]))
    assert [tensor.tolist() for tensor in swapped.tensors] == [[[3.0], [3.0], [2.0], [2.0]], [7, 7, 5, 5]]


def test_no_gradient_is_recorded():
    table = torch.zeros(3, 3, requires_grad=True)
    requires_grad = []

    def step(state, last):
        log_probs = table.log_softmax(dim=1)[last]
        requires_grad.append(log_probs.requires_grad)
        return state, log_probs

    greedy(step, None, torch.tensor([0]), end=2, length=2)
    beam(step, None, torch.tensor([0]), end=2, length=2)
    for _ in sample(step, None, torch.tensor([0]), length=2):
        assert torch.is_grad_enabled()
    assert requires_grad
    assert not any(requires_grad)


def test_forbidden_tokens_are_never_given():
    model = ToyModel(3, vocabulary=5)
    step = forbid(step_of(model), {0, 3})
    state, start = initial(*range(6))
    written = [h.tokens for h in greedy(step, state, start, end=1, length=9)]
    written += [h.tokens for found in beam(step, state, start, end=1, length=9, keep=5) for h in found]
    written += torch.stack(list(sample(step, state, start, length=9)), dim=1).tolist()
    assert {token for tokens in written for token in tokens} == {1, 2, 4}  # sample gives the end, 1, too
    assert torch.equal(step(state, start)[1][:, [1, 2, 4]], step_of(model)(state, start)[1][:, [1, 2, 4]])
    assert step_of(model)(state, start)[1].isfinite().all()  # the model's own are unchanged
    assert forbid(step_of(model), [])(state, start)[1].isfinite().all()


def test_a_hypothesis_may_have_no_continuation_if_another_has_one():
    nan = math.nan
    rows = {(): [0.0, 0.6, 0.4], (1,): [0.0, 0.0, 0.0], (2,): [1.0, 0.0, 0.0]}
    [found] = beam(table_step(rows), *initial(0), end=0, length=5, size=2, keep=2)
    assert [(h.tokens, h.finished) for h in found] == [([2], True)]
    with pytest.raises(ValueError, match="at least one token must be possible, got only -inf in row 0 at step 2"):
        greedy(table_step(rows), *initial(0), end=0, length=5)
    rows[2,] = [0.0, 0.0, 0.0]
    with pytest.raises(ValueError, match="at least one token must be possible, got only -inf in row 0 at step 2"):
        beam(table_step(rows), *initial(0), end=0, length=5, size=2)
    rows[2,] = [nan, 0.5, 0.5]
    with pytest.raises(ValueError, match="at most 0, got nan in row 0 at step 2; use log_softmax"):
        beam(table_step(rows), *initial(0), end=0, length=5, size=2)


def test_errors_give_the_index_of_the_callers_row():
    def model(sentence, prefix):
        certain = torch.tensor([1.0, 0.0]) if sentence == 0 else torch.tensor([0.0, 1.0])
        return torch.full((2,), math.nan) if sentence == 2 and len(prefix) == 2 else certain.log()

    for search in greedy, beam:
        with pytest.raises(ValueError, match="got nan in row 2 at step 3"):
            search(step_of(model), *initial(0, 1, 2), end=0, length=5)


def test_no_sentences_give_no_hypotheses():
    def step(state, last):
        raise AssertionError("called without rows")

    no_rows = torch.zeros(0, dtype=torch.long)
    assert beam(step, None, no_rows, end=0, length=5) == []
    assert greedy(step, None, no_rows, end=0, length=5) == []
    assert list(sample(step, None, no_rows, length=5)) == []


def test_float16_log_probabilities_are_summed_in_higher_precision():
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
        ({"start": torch.tensor([[0]])}, r"start must be integers \[rows\], got int64 of shape \[1, 1\]"),
        ({"start": torch.tensor([0.0])}, r"start must be integers \[rows\], got float32 of shape \[1\]"),
    ],
    ids=str,
)
def test_invalid_settings_raise(settings, message):
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
def test_invalid_settings_of_sampling_raise(settings, message):
    with pytest.raises(ValueError, match=message):
        Sampling(**settings)


@pytest.mark.parametrize(
    ("log_probs", "message"),
    [
        (torch.zeros(3), r"\[rows, vocabulary\] of 1 rows, got float32 of shape \[3\]"),
        (torch.zeros(2, 3), r"\[rows, vocabulary\] of 1 rows, got float32 of shape \[2, 3\]"),
        (torch.zeros(1, 1, 3), r"\[rows, vocabulary\] of 1 rows, got float32 of shape \[1, 1, 3\]"),
        (torch.zeros(1, 0), r"\[rows, vocabulary\] of 1 rows, got float32 of shape \[1, 0\]"),
        (torch.zeros(1, 3, dtype=torch.long), r"\[rows, vocabulary\] of 1 rows, got int64 of shape \[1, 3\]"),
        (torch.tensor([[0.0, 2.5, 1.0]]), "at most 0, got 2.5 in row 0 at step 1; use log_softmax"),
        (torch.tensor([[-1.0, math.nan, -1.0]]), "at most 0, got nan in row 0 at step 1"),
        (torch.full((1, 3), -math.inf), "at least one token must be possible, got only -inf in row 0 at step 1"),
    ],
    ids=str,
)
def test_invalid_log_probabilities_raise(log_probs, message):
    def step(state, last):
        return state, log_probs

    for search in (greedy, beam, lambda *inputs, **settings: list(sample(*inputs, **settings))):
        with pytest.raises(ValueError, match=message):
            search(step, None, torch.tensor([0]), end=0, length=5)


def test_invalid_states_and_filters_raise():
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
    with pytest.raises(ValueError, match=r"top_p must be above 0 and at most 1, got 1\.1"):
        nucleus(FLAT, 1.1)
    with pytest.raises(ValueError, match="forbidden tokens must be at least 0, got -2"):
        forbid(lambda state, last: (state, FLAT), [1, -2])
    with pytest.raises(ValueError, match="forbidden tokens must be in the vocabulary of 3, got 5"):
        forbid(lambda state, last: (state, FLAT), [1, 5])(None, rows)
