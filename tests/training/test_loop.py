"""The training loop: its steps, the best state, early stopping, torch's schedules, errors and the progress bar."""

import io
import math

import pytest
import torch
from helpers.small_runs import StoppedError, batches, same
from rich.console import Console
from torch import nn
from torch.testing import assert_close

from regard import progress
from regard.training import Checkpoint, Monitor, Recipe, train


class Number(nn.Module):
    """One parameter, and a module that shows the mode."""

    def __init__(self, start=0.0):
        super().__init__()
        self.number = nn.Parameter(torch.tensor(start))
        self.dropout = nn.Dropout()


def towards(model, goal):
    return lambda batch: (model.number - goal).square() * batch


def descent(model, rate=0.1):
    return torch.optim.SGD(model.parameters(), lr=rate)


def one_batch(epoch):
    return [torch.ones(())]


def test_the_optimizer_steps_on_each_batch_and_the_mean_loss_is_recorded():
    model = Number()
    batches_used = []
    batches = {0: [1.0, 2.0], 1: [3.0]}

    def loss(batch):
        batches_used.append(batch)
        return (model.number - 1.0).square() * batch

    history = train(model, batches.__getitem__, loss, Recipe(descent(model), epochs=2))
    assert batches_used == [1.0, 2.0, 3.0]
    # Each step leaves 1 - 0.2 · batch of the distance: 0.8, 0.6, 0.4.
    assert_close(model.number.item(), 1 - 0.8 * 0.6 * 0.4)
    assert_close(history.loss, ((1 + 2 * 0.8**2) / 2, 3 * (0.8 * 0.6) ** 2))
    assert history.validation == ()
    assert history.best_epoch == 1


def test_the_model_ends_with_the_state_of_the_best_epoch():
    model = Number()
    validations = iter([3.0, 1.0, 2.0, 5.0])
    states = []

    def validate():
        states.append(model.number.item())
        return next(validations)

    history = train(model, one_batch, towards(model, 9.0), Recipe(descent(model), epochs=4), validate=validate)
    assert history.validation == (3.0, 1.0, 2.0, 5.0)
    assert history.best_epoch == 1
    assert model.number.item() == states[1]
    assert len(set(states)) == 4


def test_patience_stops_the_training():
    model = Number()
    validations = iter([3.0, 1.0, 1.0, 2.0, 0.0])
    history = train(
        model,
        one_batch,
        towards(model, 9.0),
        Recipe(descent(model), epochs=5, patience=2),
        validate=lambda: next(validations),
    )
    assert history.validation == (3.0, 1.0, 1.0, 2.0)
    assert history.best_epoch == 2


def test_the_last_of_equal_epochs_is_the_best():
    model = Number()
    states = []

    def validate():
        states.append(model.number.item())
        return 0.0

    history = train(model, one_batch, towards(model, 9.0), Recipe(descent(model), epochs=3), validate=validate)
    assert history.best_epoch == 2
    assert model.number.item() == states[2] != states[0]


def test_a_validation_may_be_infinite():
    model = Number()
    history = train(model, one_batch, towards(model, 1.0), Recipe(descent(model), epochs=2), validate=lambda: math.inf)
    assert history.best_epoch == 1


def test_modes_and_gradients_in_training_and_validation():
    model = Number()
    model.dropout.eval()
    modes = []

    def loss(batch):
        modes.append(("loss", model.dropout.training, torch.is_grad_enabled()))
        return model.number.square()

    def validate():
        modes.append(("validate", model.dropout.training, torch.is_grad_enabled()))
        return 0.0

    train(model, one_batch, loss, Recipe(descent(model), epochs=2), validate=validate)
    assert modes == [("loss", True, True), ("validate", False, False)] * 2
    assert model.training
    assert not model.dropout.training


def test_the_schedule_is_stepped_after_every_batch():
    model = Number()
    optimizer = descent(model, rate=1.0)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    train(model, lambda epoch: [0.0] * 3, towards(model, 1.0), Recipe(optimizer, epochs=2, schedule=schedule))
    assert_close(optimizer.param_groups[0]["lr"], 0.5**6)


def test_clip_bounds_the_step():
    model = Number()
    train(model, one_batch, towards(model, 1e6), Recipe(descent(model, rate=1.0), epochs=3, clip=0.5))
    assert_close(model.number.item(), 1.5)


def test_clip_ignores_parameters_that_the_optimizer_does_not_have():
    model = nn.ParameterList([torch.zeros(()), torch.zeros(())])
    optimizer = torch.optim.SGD([model[0]], lr=1.0)
    train(model, one_batch, lambda batch: model[0] + 1e6 * model[1], Recipe(optimizer, epochs=1, clip=1.0))
    assert_close(model[0].detach(), torch.tensor(-1.0))


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_raises_and_says_when_and_what_to_try(value):
    model = Number()

    def batches(epoch):
        return [1.0, value] if epoch == 2 else [1.0]

    with pytest.raises(
        FloatingPointError, match=rf"became {value} in epoch 2, batch 1: .*learning rate than 0.1, or look for NaN"
    ):
        train(model, batches, towards(model, 1.0), Recipe(descent(model), epochs=5))


def test_a_smaller_clip_is_suggested_to_those_who_clip():
    model = Number()
    with pytest.raises(FloatingPointError, match=r"learning rate than 0.1, clip=0.05, or look for NaN"):
        train(model, lambda epoch: [math.nan], towards(model, 1.0), Recipe(descent(model), epochs=1, clip=0.5))


def test_a_validation_that_is_nan_raises():
    model = Number()
    with pytest.raises(FloatingPointError, match="validation gave NaN after epoch 0"):
        train(model, one_batch, towards(model, 1.0), Recipe(descent(model), epochs=2), validate=lambda: math.nan)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"epochs": 0}, "epochs must be at least 1, got 0"),
        ({"patience": 2}, "patience needs validate, got patience=2"),
        ({"average": 2}, "average needs validate, got average=2"),
        ({"patience": 0}, "patience must be at least 1, got 0"),
        ({"average": 0}, "average must be at least 1, got 0"),
        ({"accumulate": 0}, "accumulate must be at least 1, got 0"),
        ({"clip": 0.0}, r"clip must be positive, got 0\.0"),
        ({"clip": math.nan}, "clip must be positive, got nan"),
    ],
)
def test_invalid_settings_raise_before_the_first_batch(settings, message):
    model = Number()
    with pytest.raises(ValueError, match=message):
        train(
            model,
            lambda epoch: pytest.fail("a batch"),
            loss=None,
            recipe=Recipe(descent(model), **{"epochs": 1} | settings),
        )


def test_an_epoch_without_batches_raises():
    model = Number()
    with pytest.raises(ValueError, match="batches must give at least one batch per epoch, got none in epoch 0"):
        train(model, lambda epoch: [], towards(model, 1.0), Recipe(descent(model), epochs=1))


@pytest.fixture
def terminal(monkeypatch):
    """The text that is written to a terminal."""
    screen = io.StringIO()
    monkeypatch.setattr(progress, "Console", lambda stderr: Console(file=screen, force_terminal=True, width=120))
    return screen


def train_with_bar(progress=True):
    model = Number()
    train(
        model,
        one_batch,
        towards(model, 1.0),
        Recipe(descent(model), epochs=3),
        validate=lambda: 0.25,
        monitor=Monitor("a number", progress),
    )


def test_the_bar_shows_loss_and_best_validation(terminal, monkeypatch):
    monkeypatch.setattr(progress, "DELAY", -1.0)
    train_with_bar()
    shown = terminal.getvalue()
    assert "a number" in shown
    assert "loss 0.4096" in shown
    assert "best 0.25" in shown


def test_there_is_no_bar_for_short_trainings(terminal):
    train_with_bar()
    assert terminal.getvalue() == ""


def test_there_is_no_bar_with_progress_false(terminal, monkeypatch):
    monkeypatch.setattr(progress, "DELAY", -1.0)
    train_with_bar(progress=False)
    assert terminal.getvalue() == ""


def test_there_is_no_bar_if_stderr_is_not_a_terminal(capfd, monkeypatch):
    monkeypatch.setattr(progress, "DELAY", -1.0)
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    train_with_bar()
    captured = capfd.readouterr()
    assert captured.out + captured.err == ""


class Swing(nn.Module):
    """A number whose sign changes each epoch, and a counter."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.tensor([1.0]))
        self.register_buffer("calls", torch.tensor(0))

    def loss(self, batch):
        self.calls += 1
        return (self.w * batch).sum()


def train_swing(validate, average, **more):
    model = Swing()
    sides = [torch.tensor([2.0]), torch.tensor([-2.0])]  # steps of 1 · 2: from 1 to -1, and back
    history = train(
        model,
        lambda epoch: [sides[epoch % 2]],
        model.loss,
        Recipe(descent(model, rate=1.0), epochs=5, average=average),
        validate=lambda: validate(model.w.item()),
        **more,
    )
    return model, history


@pytest.mark.parametrize(("average", "expected"), [(2, 0.0), (4, 0.0), (3, -1 / 3), (99, -1 / 5)])
def test_the_mean_of_the_last_epochs_is_used_if_it_is_better(average, expected):
    model, history = train_swing(abs, average)
    assert model.w.item() == pytest.approx(expected)
    assert history.averaged == min(average, 5)
    assert history.validation == (1.0,) * 5
    assert int(model.calls) == 5


@pytest.mark.parametrize("average", [1, 2])
def test_the_best_epoch_is_used_if_the_mean_is_not_better(average):
    model, history = train_swing(lambda w: -abs(w), average)
    assert model.w.item() == -1
    assert history.averaged == 0
    assert history.best_epoch == 4


def test_a_resumed_run_has_the_same_mean(tmp_path):
    whole, history = train_swing(abs, 4)

    def stopping(w):
        stopping.calls += 1
        if stopping.calls == 4:
            raise KeyboardInterrupt
        return abs(w)

    stopping.calls = 0
    with pytest.raises(KeyboardInterrupt):
        train_swing(stopping, 4, checkpoint=Checkpoint(tmp_path / "run"))
    model, resumed = train_swing(abs, 4, checkpoint=Checkpoint(tmp_path / "run", resume=True))
    assert resumed == history
    assert model.w.item() == whole.w.item()


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
