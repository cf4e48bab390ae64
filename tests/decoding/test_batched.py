"""A search in batches gives each input the same tokens as a search over all inputs at once."""

import pytest
import torch
from helpers.toy_models import ToyModel, initial, step_of

from regard.decoding import Batch, beam, decode_batches, greedy

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
