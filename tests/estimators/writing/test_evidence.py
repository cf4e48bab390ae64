"""Evidence of a text as a table, as a matrix and as a picture."""

import numpy as np
import pytest
import torch

from regard.attend import Look
from regard.estimators.writing.evidence import TextEvidence, text_evidence

INDEX = torch.tensor([[[[0, -1], [0, 1], [2, 0]], [[0, -1], [1, 0], [1, 2]]]])  # [1, heads, tokens, top]
WEIGHT = torch.tensor([[[[1.0, 0.0], [0.75, 0.25], [0.5, 0.25]], [[1.0, 0.0], [0.5, 0.5], [0.625, 0.25]]]])


@pytest.fixture
def evidence():
    """A text of three tokens, one block, two heads, two weights of each token."""
    return text_evidence(["a", " ", "\n"], [Look(INDEX, WEIGHT)])


def test_the_rest_is_the_weight_that_is_not_listed(evidence):
    assert evidence.index.shape == evidence.weight.shape == (1, 2, 3, 2)
    assert evidence.rest.tolist() == [[[0.0, 0.0, 0.25], [0.0, 0.0, 0.125]]]
    assert len(evidence) == 3


def test_a_table_has_a_row_for_each_weight(evidence):
    frame = evidence.to_frame()
    columns = ["place", "token", "block", "head", "rank", "looked_at", "looked_at_place", "weight", "rest"]
    assert list(frame.columns) == columns
    assert len(frame) == 10  # the first token looks at one token only
    assert frame.iloc[0].tolist() == [0, "a", 0, 0, 1, "a", 0, 1.0, 0.0]
    assert frame.iloc[-1].tolist() == [2, "\n", 0, 1, 2, "\n", 2, 0.25, 0.125]


def test_a_matrix_is_of_one_head_or_the_mean(evidence):
    first, second = (evidence.matrix(0, head) for head in range(2))
    assert first.tolist() == [[1.0, 0.0, 0.0], [0.75, 0.25, 0.0], [0.25, 0.0, 0.5]]
    np.testing.assert_allclose(evidence.matrix(0), (first + second) / 2)


def test_a_heat_map_says_what_it_shows(evidence):
    axes = evidence.plot(head=1)
    assert axes.get_title() == "block 0, head 1, the 2 largest weights of each"
    assert [label.get_text() for label in axes.get_yticklabels()] == ["a", "␣", "↵"]
    whole = TextEvidence(evidence.tokens, evidence.index, evidence.weight, np.zeros_like(evidence.rest))
    assert whole.plot().get_title() == "block 0, mean of heads"
