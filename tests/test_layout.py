"""Weights that lie otherwise for the time: the same answers, and the same weights afterwards."""

import pytest
import torch
from cases import rand
from torch import nn
from torch.testing import assert_close

from regard.layers import Block, Decoder, FeedForward, MultiHeadAttention, quick_steps


def model():
    return Decoder(2, lambda: Block(MultiHeadAttention(12, 3), FeedForward(12))).double().eval()


def test_answers_are_the_same_and_so_are_the_weights_afterwards():
    decoder, x = model(), rand(2, 5, 12)
    whole, places = decoder(x), [parameter.data_ptr() for parameter in decoder.parameters()]
    with quick_steps(decoder), torch.inference_mode():
        assert decoder.blocks[0].attention.input.weight.stride() == (1, 36)
        cache = decoder.cache(5)
        assert_close(torch.cat([decoder(rows, cache=cache) for rows in x.split(1, dim=1)], dim=1), whole)
    assert [parameter.data_ptr() for parameter in decoder.parameters()] == places
    assert all(parameter.is_contiguous() and parameter.requires_grad for parameter in decoder.parameters())
    decoder(x).sum().backward()


def test_a_failure_puts_them_back_and_shared_weights_stay_shared():
    shared = nn.Linear(4, 4)
    both = nn.Sequential(shared, nn.Linear(4, 4))
    both[1].weight = shared.weight
    strides = []

    def fail():
        with quick_steps(both):
            assert both[1].weight is shared.weight
            strides.append(shared.weight.stride())
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert [*strides, shared.weight.stride()] == [(1, 4), (4, 1)]
