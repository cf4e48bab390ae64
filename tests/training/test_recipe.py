"""Recipes with torch's own schedules, and their checkpoints."""

import pytest
import torch
from helpers.small_runs import StoppedError, batches, same
from torch import nn

from regard.training import Checkpoint, Recipe, train


def scheduled(schedule, checkpoint=None, stop=None):
    """A run with one of torch's schedules, and its learning rates; it stops with an error at a step."""
    torch.manual_seed(3)
    model, rates = nn.Linear(5, 5), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loss(batch):
        rates.append(optimizer.param_groups[0]["lr"])
        if len(rates) == stop:
            raise StoppedError
        return model(batch).square().mean()

    train(model, batches, loss, Recipe(optimizer, 4, schedule(optimizer)), checkpoint=checkpoint)
    return model, rates


@pytest.mark.parametrize("within", [False, True])
def test_milestones_are_restored(tmp_path, within):
    """Milestones are integer keys, which JSON makes strings."""

    def schedule(optimizer):
        steps = torch.optim.lr_scheduler.MultiStepLR(optimizer, [3, 15])
        constant = torch.optim.lr_scheduler.ConstantLR(optimizer, 1.0)
        return torch.optim.lr_scheduler.SequentialLR(optimizer, [constant, steps], [2]) if within else steps

    whole, rates = scheduled(schedule)
    with pytest.raises(StoppedError):
        scheduled(schedule, Checkpoint(tmp_path / "run", every=5), stop=9)
    resumed, later = scheduled(schedule, Checkpoint(tmp_path / "run", resume=True))
    same(whole, resumed)
    assert later == rates[-len(later) :]
    assert len({round(rate, 9) for rate in rates}) == 3


class Extra(nn.Linear):
    def get_extra_state(self):
        return {"of": "mine"}

    def set_extra_state(self, state):
        self.mine = state


def test_state_that_is_not_a_tensor_is_copied_but_raises_with_a_checkpoint(tmp_path):
    model = Extra(5, 1)
    recipe = Recipe(torch.optim.SGD(model.parameters(), lr=0.1), epochs=3, average=2)
    loss = lambda batch: model(batch).square().mean()  # noqa: E731
    train(model, batches, loss, recipe, validate=lambda: 1.0)
    assert model.mine == {"of": "mine"}
    with pytest.raises(TypeError, match=r"a checkpoint can only hold tensors, .* also has .'_extra_state'"):
        train(model, batches, loss, recipe, validate=lambda: 1.0, checkpoint=Checkpoint(tmp_path / "run"))


def test_a_schedule_that_needs_a_metric_raises():
    model = nn.Linear(5, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
    with pytest.raises(TypeError, match="call the step of ReduceLROnPlateau at the end of validate"):
        Recipe(optimizer, epochs=1, schedule=plateau)


def test_a_resumed_run_keeps_its_milestones(tmp_path):
    def schedule(milestones):
        return lambda optimizer: torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones)

    _, rates = scheduled(schedule([3, 15]))
    with pytest.raises(StoppedError):
        scheduled(schedule([3, 15]), Checkpoint(tmp_path / "run", every=5), stop=9)
    _, later = scheduled(schedule([3, 18]), Checkpoint(tmp_path / "run", resume=True))
    assert later == rates[-len(later) :]
