"""The tour's station for language models: its baseline and its picture."""

import math

import numpy as np
import pytest

from regard.estimators.writing.evidence import TextEvidence
from regard.estimators.writing.station import HEADS, heads_picture, python_manual, trigram_perplexity


def test_trigrams_are_counted_as_defined():
    training, held_out = "abcabdabc", "abcab"
    letters, loss = "abcd", []
    for index in range(2, len(held_out)):
        before = held_out[index - 2 : index]
        next_ones = [training[i + 2 : i + 3] for i in range(len(training)) if training[i : i + 2] == before]
        probability = (next_ones.count(held_out[index]) + 0.5) / (len(next_ones) + 0.5 * len(letters))
        loss.append(-math.log(probability))
    expected = math.exp(sum(loss) / len(loss))
    assert trigram_perplexity(training, held_out, smoothing=0.5) == pytest.approx(expected)


def test_the_manual_is_long_enough_to_train_on():
    assert len(python_manual()) > 200_000


def test_the_picture_shows_the_heads_with_the_largest_weights():
    tokens, blocks, heads = 3, 2, 3
    index = np.broadcast_to(np.arange(tokens), (blocks, heads, tokens, tokens)).copy()
    weight = np.full((blocks, heads, tokens, tokens), 0.1)
    for number, (block, head) in enumerate(np.ndindex(blocks, heads)):
        weight[block, head, :, 0] = number / 10
    picture = heads_picture(TextEvidence(list("a b"), index, weight, np.zeros((blocks, heads, tokens))))
    titles = [axes.get_title(loc="left") for axes in picture.figure.axes if axes.get_title(loc="left")]
    assert titles == ["block 0, head 2", "block 1, head 0", "block 1, head 1", "block 1, head 2"]
    assert len(titles) == HEADS
    assert "4 of 6 heads" in picture.text
