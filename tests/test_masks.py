"""Masks: what each lets through, and what it refuses."""

import pickle

import pytest
import torch
from torch.testing import assert_close

import regard
from regard import masks

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
    for radius in (-1, float("nan")):
        with pytest.raises(ValueError, match=f"^radius must not be negative, got {radius}"):
            masks.window(radius)


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
