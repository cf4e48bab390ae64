"""Masks: what each lets a query see, on what it raises, and what is out of its reach."""

import copy
import math
import pickle
import re

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import regard
from regard import masks
from regard.engines import fused

ROWS, COLUMNS = torch.arange(5)[:, None], torch.arange(3)


def test_causal_is_aligned_to_the_top_left():
    assert torch.equal(masks.causal(ROWS, COLUMNS), torch.ones(5, 3).tril().bool())
    assert torch.equal(masks.causal(ROWS[:3], torch.arange(5)), torch.ones(3, 5).tril().bool())


def test_causal_for_cached_keys_is_a_shift():
    query, key, value = torch.randn(7, 4), torch.randn(7, 4), torch.randn(7, 4)
    whole = regard.attend(query, key, value, mask=masks.causal)
    last = regard.attend(query[5:], key, value, mask=lambda q, k: masks.causal(q + 5, k))
    assert_close(last, whole[5:])


def test_padding_belongs_to_the_first_dimensions_even_where_batch_and_heads_are_equal():
    query, key, value = torch.randn(2, 2, 3, 4), torch.randn(2, 2, 5, 4), torch.randn(2, 2, 5, 4)
    mean = regard.attend(query, key, value, mask=masks.padding(torch.tensor([2, 5])))
    assert_close(mean[0], regard.attend(query[0], key[0, :, :2], value[0, :, :2]))
    assert_close(mean[1], regard.attend(query[1], key[1], value[1]))
    each = regard.attend(query, key, value, mask=masks.padding(torch.tensor([[2, 3], [1, 5]])))
    assert_close(each[0, 1], regard.attend(query[0, 1], key[0, 1, :3], value[0, 1, :3]))


@pytest.mark.parametrize("lengths", [[1, 2], torch.tensor([1.0]), torch.tensor([True])])
def test_padding_raises_on_what_are_no_lengths(lengths):
    with pytest.raises(TypeError, match=r"^padding needs lengths as an integer tensor, got"):
        masks.padding(lengths)


def test_negative_numbers_raise():
    with pytest.raises(ValueError, match=r"^lengths must not be negative, got -3"):
        masks.padding(torch.tensor([2, -3]))


@pytest.mark.parametrize("number", [-1, 1.5, float("nan"), "2", None, True])
def test_distances_are_whole_numbers(number):
    """A radius of 1.5 was taken for 1 by the mask, and for another one by its reach."""
    for make, name in (
        (masks.window, "radius"),
        (masks.prefix, "length"),
        (lambda number: masks.dilated(number, 2), "radius"),
        (lambda number: masks.global_and_window(number, 2), "count"),
    ):
        with pytest.raises(ValueError, match=re.escape(f"{name} must be a whole number, 0 or more, got {number!r}")):
            make(number)
    assert masks.window(np.int64(2)) == masks.window(torch.tensor(2)) == masks.window(2)


def test_blocks_are_for_the_lengths_that_they_were_made_for():
    """Blocks beyond them were left out."""
    x, mask = torch.randn(1, 1, 40, 8), masks.blocks(masks.others, 40, 40, 16)
    assert_close(regard.attend(x, x, x, mask=mask, engine="stream"), regard.attend(x, x, x, mask=masks.others))
    longer = torch.randn(1, 1, 50, 8)
    with pytest.raises(ValueError, match="made for 40 queries and 40 keys, got query 49 and key 49: make it again"):
        regard.attend(longer, longer, longer, mask=mask, engine="stream")


def test_documents_of_no_positions():
    none = torch.zeros(1, 2, 0, 8)
    assert regard.attend(none, none, none, mask=masks.documents(torch.zeros(0, dtype=torch.long))).shape == none.shape


def test_masks_can_be_sent_to_another_process():
    mask = pickle.loads(pickle.dumps(masks.both(masks.padding(torch.tensor([2])), masks.window(1))))
    assert mask(ROWS, COLUMNS).tolist() == [
        [[True, True, False]] * 1 + [[True, True, False]] + [[False, True, False]] + [[False] * 3] * 2
    ]


def test_both_is_a_mask_of_its_own_even_when_shifted():
    query, key, value = torch.randn(2, 4, 3), torch.randn(2, 6, 3), torch.randn(2, 6, 3)
    row, table = torch.rand(6) > 0.3, torch.rand(2, 6, 6) > 0.3
    row[0] = table[..., 0] = True
    mask = masks.both(masks.both(masks.causal, row), table)
    shifted = regard.attend(query, key, value, mask=lambda q, k: mask(q + 2, k))
    six = torch.cat([torch.randn(2, 2, 3), query], dim=1)
    assert_close(shifted, regard.attend(six, key, value, mask=mask)[:, 2:])


def test_both_of_any_kinds():
    table = torch.rand(5, 3) > 0.5
    bias = torch.randn(5, 3)
    assert torch.equal(masks.both(masks.causal, table)(ROWS, COLUMNS), masks.causal(ROWS, COLUMNS) & table)
    biased = masks.both(masks.both(masks.causal, table), bias)(ROWS, COLUMNS)
    allowed = masks.causal(ROWS, COLUMNS) & table
    assert_close(biased[allowed], bias[allowed])
    assert (biased[~allowed] == -torch.inf).all()
    assert_close(masks.both(bias, bias)(ROWS, COLUMNS), 2 * bias)


REACHES = {
    "causal": masks.causal,
    "window": masks.window(3),
    "prefix": masks.prefix(5),
    "padding": masks.padding(torch.tensor([4, 0, 13])),
    "dilated": masks.dilated(2, step=3),
    "global": masks.global_and_window(2, radius=1),
    "documents": masks.documents(torch.arange(17) // 4),
    "documents apart": masks.documents(torch.arange(17) % 3),
    "documents of a batch": masks.documents(torch.tensor([[0] * 9 + [1] * 8, [5] * 17, [2] * 3 + [1] * 14])),
    "shifted": masks.shifted(masks.window(2), 4),
    "both": masks.both(masks.causal, masks.window(4)),
    "blocks": masks.blocks(lambda query, key: (query - key).abs() % 7 == 0, 17, 17, size=2),
}


@pytest.mark.parametrize("name", REACHES)
def test_a_reach_tells_the_truth(name):
    masks.check_reach(REACHES[name], 17, 17)


@pytest.mark.parametrize("name", REACHES)
def test_what_is_out_of_reach_changes_no_engine(name, monkeypatch):
    monkeypatch.setattr(fused, "NARROW_ROWS", 4)
    torch.manual_seed(0)
    tensors = [torch.randn(3, 2, 17, 5, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    grad = torch.randn(3, 2, 17, 5, dtype=torch.float64)

    def run(score, engine):
        mean = regard.attend(*tensors, score=score, mask=REACHES[name], engine=engine)
        return mean, *torch.autograd.grad(mean, tensors, grad)

    for score in (regard.scores.dot, lambda query, key: torch.tanh(query @ key.mT)):
        definition = run(score, "dense")
        for engine in (regard.engines.Stream(), regard.engines.Stream(block=(5, 3))):
            for one, other in zip(run(score, engine), definition, strict=True):
                assert_close(one, other)
        weights = regard.look(*tensors[:2], score=score, mask=REACHES[name])
        top = regard.look(*tensors[:2], score=score, mask=REACHES[name], top=3)
        assert_close(top.weight, weights.topk(3).values)


@pytest.mark.parametrize("score", [regard.scores.dot, lambda query, key: query @ key.mT])
def test_keys_out_of_reach_are_not_scored(score):
    query, key = torch.randn(1, 2, 600, 4), torch.randn(1, 2, 600, 4)
    key[..., 300:, :] = math.nan  # no query before 290 sees one of them
    mean = regard.attend(query, key, torch.ones(1, 2, 600, 4), score=score, mask=masks.window(9), engine="stream")
    assert_close(mean[..., :290, :], torch.ones(1, 2, 290, 4))


def test_a_reach_that_lies_is_found():
    class Wrong:
        def __call__(self, query, key):
            return key <= query

        def reach(self, query):
            return 0, query

    class Solid(Wrong):
        solid = True

        def reach(self, query):
            return 0, query + 2

    with pytest.raises(ValueError, match="for query 0, key 0 is out of reach, but seen"):
        masks.check_reach(Wrong(), 5, 5)
    with pytest.raises(ValueError, match="for query 0, key 1 is in reach, but not seen"):
        masks.check_reach(masks.shifted(Solid(), 0), 5, 5)
    hole = masks.blocks(torch.ones(5, 5, dtype=torch.bool), 5, 5, size=1)
    hole.seen[3, 1] = False
    with pytest.raises(ValueError, match="for query 3, key 1 is out of reach, but seen"):
        masks.check_reach(hole, 5, 5)


def test_a_mask_with_a_short_reach_is_streamed_and_others_are_not():
    x = torch.randn(1, 2, 2048, 8)
    assert regard.plan(x, x, x, mask=masks.window(64)).engine == "stream"
    assert "reaches 520,064 of 8,388,608 pairs" in regard.plan(x, x, x, mask=masks.window(64)).why
    assert regard.plan(x, x, x, mask=masks.global_and_window(1, 64)).engine == "stream"
    assert regard.plan(x, x, x, mask=masks.window(1500)).engine == "flash"
    assert regard.plan(x, x, x, mask=masks.prefix(7)).engine == "flash"
    assert regard.plan(x[:, :, :99], x[:, :, :99], x[:, :, :99], mask=masks.window(2)).engine == "flash"


def test_documents_and_other_masks_raise_on_what_they_cannot_be_made_of():
    with pytest.raises(TypeError, match=r"integer tensor \[\.\.\., n\], got dtype torch.float32"):
        masks.documents(torch.zeros(3))
    with pytest.raises(ValueError, match="ids of 3 positions, got position 4"):
        masks.documents(torch.zeros(3, dtype=torch.long))(torch.arange(5)[:, None], torch.arange(5))
    for wrong in (lambda: masks.prefix(-1), lambda: masks.dilated(-1, 2), lambda: masks.global_and_window(1, -2)):
        with pytest.raises(ValueError, match="must be a whole number, 0 or more, got -"):
            wrong()
    with pytest.raises(ValueError, match="step"):
        masks.dilated(1, 0)


def test_causal_is_the_same_object_wherever_it_is_copied():
    assert pickle.loads(pickle.dumps(masks.causal)) is copy.deepcopy(masks.causal) is masks.causal
