"""The captioner's recurrence: how cells are drawn, and inputs that are not contiguous."""

import math

import pytest
import torch
from helpers.cases import rand
from torch.testing import assert_close

from regard.ops import additive
from regard.ops.attentive_lstm import Draw, Maps, draw_cells, run_recurrence


@pytest.mark.parametrize(
    ("weights", "uniform", "cell"),
    [
        ([0.5, 0.25, 0.25], 0.0, 0),
        ([0.5, 0.25, 0.25], math.nextafter(0.5, 0), 0),
        ([0.5, 0.25, 0.25], 0.5, 1),
        ([0.5, 0.25, 0.25], math.nextafter(1, 0), 2),
        ([0.0, 0.5, 0.25, 0.0], 0.0, 1),  # a weight of 0 is never drawn, at either end
        ([0.0, 0.5, 0.25, 0.0], math.nextafter(1, 0), 2),
        ([0.0, 0.5, 0.25, 0.0], 0.5, 1),  # weights that do not sum to 1 are normalised
        ([0.0, 0.5, 0.25, 0.0], 0.75, 2),
        ([math.nan, 0.5], 0.5, 1),  # NaN raises no error
    ],
)
def test_cells_are_drawn_by_inversion(weights, uniform, cell):
    number = torch.tensor([uniform], dtype=torch.float64)
    for dtype in (torch.float32, torch.float64):
        assert draw_cells(torch.tensor([weights], dtype=dtype), number).tolist() == [cell]


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("hard", [True, False])
def test_grids_and_keys_need_not_be_contiguous(hard, fused, monkeypatch):
    monkeypatch.setattr(additive, "fusible", lambda *_: fused)
    batch, cells, attention, channels, hidden, steps = 3, 5, 7, 2, 11, 4
    maps = Maps(
        rand(attention, seed=1),
        rand(attention + channels + 4 * hidden, hidden, seed=2),
        rand(attention + channels, seed=3),
        rand(4 * hidden, channels, seed=4),
    )
    draw = Draw(torch.full((batch, steps), 0.6).double(), torch.tensor([False, True, False])) if hard else None

    def outputs_and_gradients(layout):
        shapes = (batch, cells, attention), (batch, cells, channels)
        key, grid = (layout(rand(*shape, seed=seed)).requires_grad_() for seed, shape in enumerate(shapes, 5))
        state = rand(2, batch, hidden, seed=8).unbind()
        trajectory = run_recurrence(key, grid, rand(batch, steps, 4 * hidden, seed=7), state, maps, draw)
        loss = trajectory.states.sum() + trajectory.contexts.square().sum() + trajectory.weights.square().sum()
        return *trajectory, *torch.autograd.grad(loss, [key, grid])

    assert_close(outputs_and_gradients(lambda x: x.mT.contiguous().mT), outputs_and_gradients(lambda x: x))
