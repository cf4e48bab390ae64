"""The parts of a captioner's recurrence: what is drawn, what rows of shared grids see, and the recurrence itself."""

import math

import pytest
import torch
from helpers.cases import rand
from torch.testing import assert_close

from regard.models.looking import Draw, Maps, Regions, drawn, walk
from regard.ops import additive
from regard.weighing import hard, softmax


@pytest.mark.parametrize(
    ("weights", "shot", "cell"),
    [
        ([0.5, 0.25, 0.25], 0.0, 0),
        ([0.5, 0.25, 0.25], math.nextafter(0.5, 0), 0),
        ([0.5, 0.25, 0.25], 0.5, 1),
        ([0.5, 0.25, 0.25], math.nextafter(1, 0), 2),
        ([0.0, 0.5, 0.25, 0.0], 0.0, 1),  # what has no weight is not drawn, at either end
        ([0.0, 0.5, 0.25, 0.0], math.nextafter(1, 0), 2),
        ([0.0, 0.5, 0.25, 0.0], 0.5, 1),  # weights that do not add up to 1 are shares of what they do add up to
        ([0.0, 0.5, 0.25, 0.0], 0.75, 2),
        ([math.nan, 0.5], 0.5, 1),  # no distribution, and no error either
    ],
)
def test_a_number_falls_on_a_cell(weights, shot, cell):
    for dtype in (torch.float32, torch.float64):
        assert drawn(torch.tensor([weights], dtype=dtype), torch.tensor([shot], dtype=torch.float64)).tolist() == [cell]


@pytest.mark.parametrize("weigh", [softmax, hard])
@pytest.mark.parametrize("which", [[0, 1], [1, 0], [0, 0, 1, 1], [0, 1, 0, 1], [1, 0, 1], [1]])
def test_each_row_sees_the_grid_of_its_image(which, weigh):
    key, value, weight = rand(2, 5, 7, seed=1), rand(2, 5, 3, seed=2), rand(7, seed=3)
    query = rand(len(which), 7, seed=4)
    found = Regions(key, value, torch.tensor(which)).attended(query, weight, weigh)
    for row, image in enumerate(which):
        scores = torch.tanh(query[row] + key[image]) @ weight
        assert_close(found[row], weigh(scores.unsqueeze(0))[0] @ value[image])


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("hardly", [True, False])
def test_grids_and_keys_that_lie_elsewhere_are_read_as_they_are(hardly, fused, monkeypatch):
    monkeypatch.setattr(additive, "fusible", lambda *_: fused)
    batch, cells, attention, channels, hidden, steps = 3, 5, 7, 2, 11, 4
    maps = Maps(
        rand(attention, seed=1),
        rand(attention + channels + 4 * hidden, hidden, seed=2),
        rand(attention + channels, seed=3),
        rand(4 * hidden, channels, seed=4),
    )
    draw = Draw(torch.full((batch, steps), 0.6).double(), torch.tensor([False, True, False])) if hardly else None

    def made(turn):
        shapes = (batch, cells, attention), (batch, cells, channels)
        key, grid = (turn(rand(*shape, seed=seed)).requires_grad_() for seed, shape in enumerate(shapes, 5))
        found = walk(
            key, grid, rand(batch, steps, 4 * hidden, seed=7), *rand(2, batch, hidden, seed=8).unbind(), maps, draw
        )
        outcome = found.states.sum() + found.contexts.square().sum() + found.weights.square().sum()
        return *found, *torch.autograd.grad(outcome, [key, grid])

    assert_close(made(lambda x: x.mT.contiguous().mT), made(lambda x: x))
