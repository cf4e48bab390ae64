"""A resumed run ends as if it had never stopped."""

import json
import math
import os
import signal
import subprocess
import sys
import time

import pytest
import torch
from helpers.small_runs import StoppedError, batches, run, same, script
from torch import nn
from torch.testing import assert_close

from regard import saving
from regard.training import Checkpoint, Monitor, Recipe, train, warm_cosine
from regard.training.checkpoint import RunState, read_checkpoint, write_checkpoint


def stopped_after(steps, checkpoint, **settings):
    """A run that is stopped by an error after some steps."""
    calls = 0

    def stop(*arguments):
        nonlocal calls
        calls += 1
        if calls > steps:
            raise StoppedError
        return original(*arguments)

    original = nn.Sequential.forward
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nn.Sequential, "forward", stop)
        with pytest.raises(StoppedError):
            run(checkpoint, **settings)


@pytest.mark.slow
@pytest.mark.parametrize("steps", [4, 7, 9, 14, 20])
def test_a_resumed_run_is_bit_for_bit_the_run_that_was_not_stopped(tmp_path, steps):
    whole, history = run()
    stopped_after(steps, Checkpoint(tmp_path / "run", every=2))
    torch.manual_seed(99)
    model, resumed = run(Checkpoint(tmp_path / "run", every=2, resume=True))
    same(whole, model)
    assert resumed == history
    finished, unchanged = run(Checkpoint(tmp_path / "run", resume=True))
    same(whole, finished)
    assert unchanged == history


@pytest.mark.slow
def test_a_killed_run_leaves_its_last_whole_checkpoint_and_no_lock(tmp_path):
    whole, _ = run()
    path = script(tmp_path, f"run(Checkpoint({str(tmp_path / 'run')!r}, every=1), pause=0.2)\n")
    process = subprocess.Popen([sys.executable, path])
    deadline = time.monotonic() + 60
    while not (tmp_path / "run" / saving.CONFIG).exists():
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.02)
    with pytest.raises(BlockingIOError, match=rf"process {process.pid}\): wait for it"):
        run(Checkpoint(tmp_path / "run", every=1, resume=True))
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert (tmp_path / ".run.lock").exists()
    steps = json.loads((tmp_path / "run" / saving.CONFIG).read_text())["checkpoint"]["steps"]
    assert 0 < steps < 24
    resumed, _ = run(Checkpoint(tmp_path / "run", every=1, resume=True))
    same(whole, resumed)


def plain_run(folder, epochs, patience=None, validate=None, resume=True):
    """A run without a schedule: a schedule would depend on the number of epochs."""
    torch.manual_seed(3)
    model = nn.Linear(5, 5)
    history = train(
        model, batches, lambda batch: (model(batch) - batch.flip(-1)).square().mean(),
        Recipe(torch.optim.Adam(model.parameters(), lr=0.01), epochs, patience=patience), validate=validate,
        checkpoint=folder and Checkpoint(folder, resume=resume),
    )  # fmt: skip
    return model, history


def test_a_finished_run_continues_with_more_epochs(tmp_path):
    whole, history = plain_run(None, 5)
    plain_run(tmp_path / "run", 2)
    again, resumed = plain_run(tmp_path / "run", 5)
    same(whole, again)
    assert resumed == history
    assert plain_run(tmp_path / "run", 3)[1] == history  # they are done already


def test_a_run_that_stopped_by_patience_does_not_continue_without_more_patience(tmp_path):
    numbers = iter([3.0, 1.0, 2.0, 2.5, 0.5, 0.1])
    plain_run(tmp_path / "run", 9, patience=2, validate=lambda: next(numbers))
    _, history = plain_run(tmp_path / "run", 20, patience=2, validate=lambda: next(numbers))
    assert history.validation == (3.0, 1.0, 2.0, 2.5)
    _, history = plain_run(tmp_path / "run", 6, patience=4, validate=lambda: next(numbers))
    assert history.validation == (3.0, 1.0, 2.0, 2.5, 0.5, 0.1)


def test_bfloat16_weights_keep_their_type(tmp_path):
    def made(value):
        model = nn.ParameterDict({"small": torch.full((3,), value).bfloat16(), "large": torch.full((2,), value)})
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
        return model, optimizer

    model, optimizer = made(1.25)
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 0.375)
    optimizer.step()
    write_checkpoint(Checkpoint(tmp_path / "run"), RunState(best=dict(model.state_dict())), model, optimizer, None)
    other, again = made(0.0)
    at = read_checkpoint(Checkpoint(tmp_path / "run", resume=True), other, again, None)
    assert other["small"].dtype == at.best["small"].dtype == torch.bfloat16
    assert_close(dict(other.state_dict()), dict(model.state_dict()), rtol=0, atol=0)
    assert_close(at.best, dict(model.state_dict()), rtol=0, atol=0)
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        momentum = again.state[two]["momentum_buffer"]
        assert momentum.dtype == two.dtype
        assert_close(momentum, optimizer.state[one]["momentum_buffer"], rtol=0, atol=0)


def test_a_second_run_in_the_same_folder_raises(tmp_path):
    def second():
        with pytest.raises(BlockingIOError, match=rf"run is in use by .*process {os.getpid()}\): wait for it"):
            plain_run(tmp_path / "run", 2)
        return 1.0

    plain_run(tmp_path / "run", 1, validate=second)
    assert os.listdir(tmp_path) == ["run"]
    plain_run(tmp_path / "run", 2)  # the lock is released
    (tmp_path / ".run.lock").write_text("123")  # as a killed run leaves it
    plain_run(tmp_path / "run", 3)
    assert os.listdir(tmp_path) == ["run"]


@pytest.mark.slow
def test_an_unfinished_run_is_not_overwritten_but_a_finished_one_is(tmp_path):
    stopped_after(5, Checkpoint(tmp_path / "run", every=2))
    with pytest.raises(FileExistsError, match=r"an unfinished run \(step 4\): resume it with resume=True"):
        run(Checkpoint(tmp_path / "run"))
    run(Checkpoint(tmp_path / "run", resume=True))
    run(Checkpoint(tmp_path / "run"))


def test_errors_say_why_a_run_cannot_be_resumed(tmp_path):
    stopped_after(5, Checkpoint(tmp_path / "run", every=2, settings={"size": 11}))
    with pytest.raises(ValueError, match=r"has size=11, got size=12"):
        run(Checkpoint(tmp_path / "run", resume=True, settings={"size": 12}))
    other = nn.Linear(2, 2)
    with pytest.raises(ValueError, match="a checkpoint of another model or optimizer"):
        train(
            other,
            lambda epoch: [torch.ones(2, 2)],
            lambda batch: other(batch).sum(),
            Recipe(torch.optim.SGD(other.parameters(), lr=0.1), epochs=1),
            checkpoint=Checkpoint(tmp_path / "run", resume=True, settings={"size": 11}),
        )
    (tmp_path / "run" / "model.safetensors").write_bytes(b"torn")
    (tmp_path / "run" / "model-2.safetensors").write_bytes(b"torn")
    with pytest.raises(ValueError, match="cannot be read"):
        run(Checkpoint(tmp_path / "run", resume=True, settings={"size": 11}))
    saving.write_folder(tmp_path / "model", {"estimator": "Other"}, {})
    with pytest.raises(ValueError, match="is a finished model, not a training checkpoint"):
        run(Checkpoint(tmp_path / "model", resume=True))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    with pytest.raises(FileExistsError, match="not empty and holds no model"):
        run(Checkpoint(tmp_path / "mine"))
    with pytest.raises(ValueError, match="every=0"):
        Checkpoint(tmp_path, every=0)


def test_the_best_state_from_before_the_stop_is_restored(tmp_path):
    """The first epoch is the best, and the run is stopped in the third."""

    def trained(checkpoint=None, stop=None):
        model = nn.Linear(1, 1)
        nn.init.zeros_(model.weight)
        nn.init.zeros_(model.bias)
        calls = []

        def loss(batch):
            calls.append(1)
            if len(calls) == stop:
                raise StoppedError
            return (model(batch) - 1).square().mean()

        def validate():
            return 1.0 + model.bias.item() if model.bias.item() < 0.45 else math.inf

        return model, train(
            model,
            lambda epoch: [torch.ones(2, 1)] * 2,
            loss,
            Recipe(torch.optim.SGD(model.parameters(), lr=0.1), epochs=4),
            validate=validate,
            checkpoint=checkpoint,
        )

    whole, history = trained()
    assert history.best_epoch == 0
    assert math.inf in history.validation
    with pytest.raises(StoppedError):
        trained(Checkpoint(tmp_path / "run", every=1), stop=6)
    again, resumed = trained(Checkpoint(tmp_path / "run", every=1, resume=True))
    same(whole, again)
    assert resumed == history


def test_a_nan_gradient_raises_before_it_reaches_a_checkpoint(tmp_path):
    model = nn.Linear(1, 1)
    root = nn.Parameter(torch.zeros(1))

    def loss(batch):
        return model(batch).mean() + root.sqrt().sum() * 0  # 0, with a gradient of NaN

    with pytest.raises(FloatingPointError, match="the gradient became nan in epoch 0, batch 0"):
        train(
            model,
            lambda epoch: [torch.ones(1, 1)],
            loss,
            Recipe(torch.optim.SGD([*model.parameters(), root], lr=0.1), epochs=1),
            checkpoint=Checkpoint(tmp_path / "run", every=1),
        )
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "change",
    [
        {"checkpoint": None},
        {"checkpoint": {"steps": 1}},
        {"about": [1]},
        {"about": None},
    ],
)
def test_a_broken_checkpoint_raises(tmp_path, change):
    stopped_after(5, Checkpoint(tmp_path / "run", every=2))
    path = tmp_path / "run" / saving.CONFIG
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ValueError, match=r"a broken checkpoint, or one of another version|must keep its settings"):
        run(Checkpoint(tmp_path / "run", resume=True))


def test_numbers_are_logged_for_tensorboard(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(
        model,
        lambda epoch: [torch.ones(3, 1)] * 2,
        lambda batch: model(batch).square().mean(),
        Recipe(optimizer, 2, warm_cosine(optimizer, 4)),
        validate=lambda: 0.5,
        monitor=Monitor(unit="rows", tensorboard=tmp_path / "board"),
    )
    events = EventAccumulator(str(tmp_path / "board")).Reload()
    assert [event.step for event in events.Scalars("loss")] == [1, 2, 3, 4]
    assert [event.value for event in events.Scalars("validation")] == [0.5, 0.5]
    assert {"loss", "rate", "rows/s", "validation"} == set(events.Tags()["scalars"])


def test_the_mean_of_states_from_before_and_after_a_stop(tmp_path):
    """A weight without dimensions; some of its last states are from the file."""

    def trained(epochs, checkpoint=None):
        model = nn.Module()
        model.gain = nn.Parameter(torch.tensor(0.0))
        history = train(
            model,
            lambda epoch: [torch.ones(1)],
            lambda batch: -model.gain,
            Recipe(torch.optim.SGD(model.parameters(), lr=1.0), epochs, average=3),
            validate=lambda: abs(model.gain.item() - 3),
            checkpoint=checkpoint,
        )
        return model.gain.item(), history

    trained(2, Checkpoint(tmp_path / "run"))
    assert trained(4, Checkpoint(tmp_path / "run", resume=True)) == trained(4)


def test_settings_are_compared_as_json_gives_them_back(tmp_path):
    about = {"sizes": [(1, 2), (3,)], "by name": ("a", None)}
    run(Checkpoint(tmp_path / "run", settings=about))
    run(Checkpoint(tmp_path / "run", resume=True, settings=about))
    with pytest.raises(ValueError, match="sizes"):
        run(Checkpoint(tmp_path / "run", resume=True, settings=about | {"sizes": [(1, 2)]}))


@pytest.mark.slow
def test_epochs_of_a_finished_run_may_grow_and_those_of_an_unfinished_run_not(tmp_path):
    def checkpoint(epochs, **more):
        return Checkpoint(tmp_path / "run", every=2, settings={"epochs": epochs, "size": 5}, **more)

    stopped_after(3, checkpoint(4))
    with pytest.raises(ValueError, match="has epochs=4, got epochs=6; use the same settings"):
        run(checkpoint(6, resume=True), epochs=6)
    _, short = run(checkpoint(4, resume=True), epochs=4)
    _, longer = run(checkpoint(6, resume=True), epochs=6)
    assert longer.loss[:4] == short.loss
    assert len(longer.loss) == 6
    with pytest.raises(ValueError, match="has epochs=6, got epochs=5"):
        run(checkpoint(5, resume=True), epochs=5)
    with pytest.raises(ValueError, match="has size=5, got size=7"):
        run(Checkpoint(tmp_path / "run", resume=True, settings={"epochs": 8, "size": 7}), epochs=8)


def test_a_finished_run_that_continues_is_unfinished(tmp_path):
    def checkpoint(epochs, **more):
        return Checkpoint(tmp_path / "run", every=1, settings={"epochs": epochs, "steps": None}, **more)

    run(checkpoint(4), epochs=4)
    stopped_after(3, checkpoint(5, resume=True), epochs=5)
    with pytest.raises(FileExistsError, match=r"an unfinished run \(step 2\d\)"):
        run(checkpoint(5), epochs=5)
    with pytest.raises(ValueError, match="has epochs=5, got epochs=6"):
        run(checkpoint(6, resume=True), epochs=6)
    assert len(run(checkpoint(5, resume=True), epochs=5)[1].loss) == 5
