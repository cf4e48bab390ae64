"""States of a step: rows of every kind follow their hypotheses."""

from collections import OrderedDict, defaultdict
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from helpers.worlds import Prefix, World, beginning, reading

from regard.decoding import Fixed, beam, greedy, sample, select


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
