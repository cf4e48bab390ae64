"""Several processes, or several batches to a step, train the same model as one."""

import json
import os
import subprocess
import sys
from collections import UserDict

import numpy as np
import pytest
import torch
from helpers.small_runs import run, script
from safetensors.torch import load_file
from torch import nn
from torch.testing import assert_close

from regard import saving
from regard.training import ProcessGroup, Recipe, train
from regard.training.distributed import rows

# Each case writes what its process has to CASE-RANK.safetensors.
CASES = """
import numpy as np
from safetensors.torch import save_file, save_model

group = ProcessGroup.from_environment()
assert group.size == 2

def path(name):
    return f"{FOLDER}/{name}-{group.rank}.safetensors"

# A training with an odd number of rows in each batch, so that the shards differ in size.
model, _ = run(dropout=0.0, accumulate=2, group=group, checkpoint=Checkpoint(f"{FOLDER}/run"))
save_model(model, path("trained"))

# Buffers: no gradient makes a running mean equal.
norm = nn.BatchNorm1d(5)
recipe = Recipe(torch.optim.SGD(norm.parameters(), lr=0.1), epochs=1)
train(norm, batches, lambda batch: norm(batch).square().mean(), recipe, group=group)
save_model(norm, path("norm"))

# Random numbers: masks of dropout, and a shuffle.
line, masks, shuffles = nn.Linear(64, 1), [], []

def shuffled(epoch):
    for indices in torch.randperm(12).split(4):
        shuffles.append(indices)
        yield indices

def loss(indices):
    masks.append(nn.functional.dropout(torch.ones(64)))
    return line(indices[:, None] * masks[-1]).square().mean()

torch.manual_seed(3)
optimizer = torch.optim.SGD(line.parameters(), lr=1e-5)
train(line, shuffled, loss, Recipe(optimizer, epochs=2), group=group)
train(line, shuffled, loss, Recipe(optimizer, epochs=1), group=group)
seed = torch.tensor(torch.initial_seed())
save_file({"masks": torch.stack(masks), "shuffles": torch.stack(shuffles), "seed": seed}, path("random"))

# A run that stops, and is resumed.
forward, calls = nn.Sequential.forward, []

def stopping(*arguments):
    calls.append(arguments)
    if len(calls) == 10:
        raise InterruptedError
    return forward(*arguments)

whole, _ = run(group=group, validate=False)
nn.Sequential.forward = stopping
try:
    run(Checkpoint(f"{FOLDER}/stopped", every=4), group=group, validate=False)
except InterruptedError:
    pass
nn.Sequential.forward = forward
resumed, _ = run(Checkpoint(f"{FOLDER}/stopped", resume=True), group=group, validate=False)
assert len(calls) == 10
save_model(nn.ModuleList([whole, resumed]), path("resumed"))

# A model whose state also has an array.
class Extra(nn.Linear):
    def get_extra_state(self):
        return np.ones(2)

    def set_extra_state(self, state):
        pass

extra = Extra(2, 1)
nn.init.constant_(extra.weight, group.rank + 5.0)
group.copy_from_main(extra)
save_file({"weight": extra.weight.detach()}, path("extra"))
"""


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory):
    """The folder in which two processes, started by torchrun, have written the results of all cases."""
    folder = tmp_path_factory.mktemp("processes")
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1"}
    path = script(folder, f"FOLDER = {str(folder)!r}\n{CASES}")
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone", path]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    return folder


def results(folder, name):
    return [load_file(folder / f"{name}-{rank}.safetensors") for rank in (0, 1)]


@pytest.mark.slow
def test_two_processes_train_the_same_model_as_one(two_processes):
    alone, history = run(dropout=0.0, accumulate=2)
    first, second = results(two_processes, "trained")
    for name, tensor in alone.state_dict().items():
        assert torch.equal(first[name], second[name])
        assert_close(first[name], tensor, rtol=1e-5, atol=1e-6)
    state = json.loads((two_processes / "run" / saving.CONFIG).read_text())["checkpoint"]
    assert_close(tuple(map(float, state["validations"])), history.validation, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_a_running_mean_is_the_same_in_every_process(two_processes):
    first, second = results(two_processes, "norm")
    assert first["running_mean"].abs().max() > 0
    for name, tensor in first.items():
        assert torch.equal(tensor, second[name]), name


@pytest.mark.slow
def test_every_process_draws_its_own_random_numbers_in_the_loss_and_the_same_elsewhere(two_processes):
    first, second = results(two_processes, "random")
    masks = torch.cat([first["masks"][:6], second["masks"][:6]])
    assert len(torch.unique(masks, dim=0)) == 12  # steps of one process differ too
    assert torch.equal(first["shuffles"], second["shuffles"])
    assert int(first["seed"]) == int(second["seed"]) == 3


@pytest.mark.slow
def test_a_run_of_two_processes_is_resumed_to_the_same_weights(two_processes):
    """The checkpoint has the random state of the main process; that of the other follows from it."""
    for state in results(two_processes, "resumed"):
        for name in (name for name in state if name.startswith("0.")):
            assert torch.equal(state[name], state[name.replace("0.", "1.", 1)]), name


@pytest.mark.slow
def test_only_tensors_of_a_state_are_copied_from_the_main_process(two_processes):
    for state in results(two_processes, "extra"):
        assert state["weight"].tolist() == [[5.0, 5.0]]


def test_accumulated_batches_are_one_large_batch():
    torch.manual_seed(0)
    parts = [torch.randn(n, 5) for n in (2, 3, 6)]

    def trained(batches, accumulate):
        torch.manual_seed(1)
        model = nn.Linear(5, 1)
        recipe = Recipe(torch.optim.SGD(model.parameters(), lr=0.1), epochs=3, clip=0.5, accumulate=accumulate)
        train(model, lambda epoch: batches, lambda batch: (model(batch) - 1).square().mean(), recipe)
        return dict(model.state_dict())

    assert_close(trained(parts, accumulate=3), trained([torch.cat(parts)], accumulate=1))


def test_shards_have_every_row_once():
    batch = {"x": torch.arange(7), "y": (torch.arange(14).view(7, 2), [torch.arange(7)])}
    shards = [ProcessGroup(rank, 3).shard(batch) for rank in range(3)]
    assert sorted(torch.cat([shard["x"] for shard in shards]).tolist()) == list(range(7))
    assert rows(shards[1]) == 2
    assert (shards[1]["y"][0] == torch.tensor([[2, 3], [8, 9]])).all()
    with pytest.raises(TypeError, match=r"batch must be made of tensors, .* got str"):
        ProcessGroup(0, 2).shard(("a",))
    with pytest.raises(ValueError, match=r"must have its 7 rows first, got shape \[3\]"):
        ProcessGroup(0, 2).shard((torch.arange(7), torch.arange(3)))
    assert ProcessGroup().shard("anything") == "anything"


def test_rows_are_counted_in_the_first_tensor_of_a_nested_batch():
    assert rows(UserDict(names=["a"], x=torch.ones(5, 2))) == 5
    assert rows(([1, 2], {"x": np.ones((3, 2))})) == 3
    assert rows({"text": "abc"}) == rows(torch.tensor(1.0)) == 1
