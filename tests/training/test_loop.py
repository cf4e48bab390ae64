"""The training loop: it learns, keeps the best, stops in time, and says what went wrong."""

import io
import math

import pytest
import torch
from rich.console import Console
from torch import nn
from torch.testing import assert_close

from regard import progress
from regard.training import Checkpoint, Monitor, Recipe, train


class Number(nn.Module):
    """One number that learns, and a switch to see the mode by."""

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


def test_it_takes_the_optimizers_steps_and_records_the_mean_loss():
    model = Number()
    seen = []
    batches = {0: [1.0, 2.0], 1: [3.0]}

    def loss(batch):
        seen.append(batch)
        return (model.number - 1.0).square() * batch

    history = train(model, batches.__getitem__, loss, Recipe(descent(model), epochs=2))
    assert seen == [1.0, 2.0, 3.0]
    # Each step takes 1 - 0.2 · batch of the way that is left: 0.8, 0.6, 0.4.
    assert_close(model.number.item(), 1 - 0.8 * 0.6 * 0.4)
    assert_close(history.loss, ((1 + 2 * 0.8**2) / 2, 3 * (0.8 * 0.6) ** 2))
    assert history.validation == ()
    assert history.best_epoch == 1


def test_the_best_state_is_kept_and_given_back():
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


def test_it_stops_when_patience_ends():
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


def test_of_equal_validations_the_last_has_learned_most():
    model = Number()
    states = []

    def validate():
        states.append(model.number.item())
        return 0.0

    history = train(model, one_batch, towards(model, 9.0), Recipe(descent(model), epochs=3), validate=validate)
    assert history.best_epoch == 2
    assert model.number.item() == states[2] != states[0]


def test_an_infinite_validation_is_one_like_any_other():
    model = Number()
    history = train(model, one_batch, towards(model, 1.0), Recipe(descent(model), epochs=2), validate=lambda: math.inf)
    assert history.best_epoch == 1


def test_modes_and_gradients_are_those_of_the_phase():
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


def test_clip_does_not_count_what_the_optimizer_does_not_change():
    model = nn.ParameterList([torch.zeros(()), torch.zeros(())])
    optimizer = torch.optim.SGD([model[0]], lr=1.0)
    train(model, one_batch, lambda batch: model[0] + 1e6 * model[1], Recipe(optimizer, epochs=1, clip=1.0))
    assert_close(model[0].detach(), torch.tensor(-1.0))


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_loss_that_is_no_number_says_when_and_what_to_try(value):
    model = Number()

    def batches(epoch):
        return [1.0, value] if epoch == 2 else [1.0]

    with pytest.raises(
        FloatingPointError, match=rf"became {value} in epoch 2, batch 1: .*learning rate than 0.1, or look for NaN"
    ):
        train(model, batches, towards(model, 1.0), Recipe(descent(model), epochs=5))


def test_who_clips_is_told_to_clip_more():
    model = Number()
    with pytest.raises(FloatingPointError, match=r"learning rate than 0.1, clip=0.05, or look for NaN"):
        train(model, lambda epoch: [math.nan], towards(model, 1.0), Recipe(descent(model), epochs=1, clip=0.5))


def test_a_validation_that_is_nan_is_refused():
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
    """A terminal to look at, and a reader who does not wait."""
    screen = io.StringIO()
    monkeypatch.setattr(progress, "Console", lambda stderr: Console(file=screen, force_terminal=True, width=120))
    return screen


def watched(progress=True):
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
    monkeypatch.setattr(progress, "PATIENCE_OF_READER", -1.0)
    watched()
    shown = terminal.getvalue()
    assert "a number" in shown
    assert "loss 0.4096" in shown
    assert "best 0.25" in shown


def test_there_is_no_bar_for_what_is_soon_done(terminal):
    watched()
    assert terminal.getvalue() == ""


def test_there_is_no_bar_where_none_is_wanted(terminal, monkeypatch):
    monkeypatch.setattr(progress, "PATIENCE_OF_READER", -1.0)
    watched(progress=False)
    assert terminal.getvalue() == ""


def test_there_is_no_bar_in_a_file(capfd, monkeypatch):
    monkeypatch.setattr(progress, "PATIENCE_OF_READER", -1.0)
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    watched()
    captured = capfd.readouterr()
    assert captured.out + captured.err == ""


class Swing(nn.Module):
    """A number that each epoch throws to the other side of 0, and a count."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.tensor([1.0]))
        self.register_buffer("seen", torch.tensor(0))

    def loss(self, batch):
        self.seen += 1
        return (self.w * batch).sum()


def swung(validate, average, **more):
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
def test_the_mean_of_the_last_epochs_is_taken_where_it_is_better(average, expected):
    model, history = swung(abs, average)
    assert model.w.item() == pytest.approx(expected)
    assert history.averaged == min(average, 5)
    assert history.validation == (1.0,) * 5
    assert int(model.seen) == 5


@pytest.mark.parametrize("average", [1, 2])
def test_and_where_it_is_not_the_best_epoch_is(average):
    model, history = swung(lambda w: -abs(w), average)
    assert model.w.item() == -1
    assert history.averaged == 0
    assert history.best_epoch == 4


def test_a_run_that_goes_on_has_the_same_mean(tmp_path):
    whole, history = swung(abs, 4)

    def stopping(w):
        stopping.calls += 1
        if stopping.calls == 4:
            raise KeyboardInterrupt
        return abs(w)

    stopping.calls = 0
    with pytest.raises(KeyboardInterrupt):
        swung(stopping, 4, checkpoint=Checkpoint(tmp_path / "run"))
    again, gone_on = swung(abs, 4, checkpoint=Checkpoint(tmp_path / "run", resume=True))
    assert gone_on == history
    assert again.w.item() == whole.w.item()
