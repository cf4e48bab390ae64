"""Several processes, or several batches to a step, train what one does."""

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
from regard.training.distributed import every_nth_row, rows


def test_accumulated_batches_are_one_large_batch():
    torch.manual_seed(0)
    parts = [torch.randn(n, 5) for n in (2, 3, 6)]

    def trained(batches, **settings):
        torch.manual_seed(1)
        model = nn.Linear(5, 1)
        train(
            model,
            lambda epoch: batches,
            lambda batch: (model(batch) - 1).square().mean(),
            Recipe(torch.optim.SGD(model.parameters(), lr=0.1), epochs=3, clip=0.5, **settings),
        )
        return model

    for one, two in zip(
        trained([torch.cat(parts)]).parameters(), trained(parts, accumulate=3).parameters(), strict=True
    ):
        assert_close(one, two)
    with pytest.raises(ValueError, match="accumulate must be at least 1, got 0"):
        trained(parts, accumulate=0)


def in_two_processes(path):
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1"}
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone", path]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]


def test_two_processes_train_what_one_does(tmp_path):
    """Rows of a batch are odd in number, so that the shares differ."""
    alone, history = run(dropout=0.0, accumulate=2)
    path = script(
        tmp_path,
        f"""
        from safetensors.torch import save_model
        group = ProcessGroup.from_environment()
        model, history = run(dropout=0.0, accumulate=2, group=group, checkpoint=Checkpoint({str(tmp_path / "run")!r}))
        save_model(model, {str(tmp_path)!r} + f"/{{group.rank}}.safetensors")
        assert group.size == 2
        """,
    )
    in_two_processes(path)
    first, second = (load_file(tmp_path / f"{rank}.safetensors") for rank in (0, 1))
    for name, tensor in alone.state_dict().items():
        assert torch.equal(first[name], second[name])
        assert_close(first[name], tensor, rtol=1e-5, atol=1e-6)
    kept = json.loads((tmp_path / "run" / saving.CONFIG).read_text())["checkpoint"]
    assert_close(tuple(map(float, kept["validations"])), history.validation, rtol=1e-5, atol=1e-6)


def test_a_running_mean_is_the_same_in_every_process(tmp_path):
    """No gradient makes it so: each has its own from its own rows, and the leader's is taken."""
    path = script(
        tmp_path,
        f"""
        from safetensors.torch import save_model
        group, model = ProcessGroup.from_environment(), nn.BatchNorm1d(5)
        train(
            model, batches, lambda batch: model(batch).square().mean(),
            Recipe(torch.optim.SGD(model.parameters(), lr=0.1), epochs=1), group=group,
        )
        save_model(model, {str(tmp_path)!r} + f"/{{group.rank}}.safetensors")
        """,
    )
    in_two_processes(path)
    first, second = (load_file(tmp_path / f"{rank}.safetensors") for rank in (0, 1))
    assert first["running_mean"].abs().max() > 0
    for name, tensor in first.items():
        assert torch.equal(tensor, second[name]), name


def test_every_process_draws_random_numbers_of_its_own(tmp_path):
    """Or dropout would hide the same places of the rows of all. What is drawn elsewhere, as a shuffle, is the same."""
    path = script(
        tmp_path,
        f"""
        from safetensors.torch import save_file
        group, model, hidden, seen = ProcessGroup.from_environment(), nn.Linear(64, 1), [], []

        def shuffled(epoch):
            for rows in torch.randperm(12).split(4):
                seen.append(rows)
                yield rows

        def loss(rows):
            hidden.append(nn.functional.dropout(torch.ones(64)))
            return model(rows[:, None] * hidden[-1]).square().mean()

        torch.manual_seed(3)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)
        train(model, shuffled, loss, Recipe(optimizer, epochs=2), group=group)
        train(model, shuffled, loss, Recipe(optimizer, epochs=1), group=group)
        found = {{"hidden": torch.stack(hidden), "seen": torch.stack(seen), "seed": torch.tensor(torch.initial_seed())}}
        save_file(found, {str(tmp_path)!r} + f"/{{group.rank}}.safetensors")
        """,
    )
    in_two_processes(path)
    first, second = (load_file(tmp_path / f"{rank}.safetensors") for rank in (0, 1))
    masks = torch.cat([first["hidden"][:6], second["hidden"][:6]])
    assert len(torch.unique(masks, dim=0)) == 12  # nor does one draw the same in each step
    assert torch.equal(first["seen"], second["seen"])
    assert int(first["seed"]) == int(second["seed"]) == 3


def test_two_processes_go_on_as_if_they_had_not_stopped(tmp_path):
    """What was kept are the leader's random numbers; the other's follow from them."""
    path = script(
        tmp_path,
        f"""
        from safetensors.torch import save_model
        group, forward, calls = ProcessGroup.from_environment(), nn.Sequential.forward, []

        def broken(*arguments):
            calls.append(arguments)
            if len(calls) == 10:
                raise InterruptedError
            return forward(*arguments)

        whole, _ = run(group=group, validate=False)
        nn.Sequential.forward = broken
        try:
            run(Checkpoint({str(tmp_path / "run")!r}, every=4), group=group, validate=False)
        except InterruptedError:
            pass
        nn.Sequential.forward = forward
        again, _ = run(Checkpoint({str(tmp_path / "run")!r}, resume=True), group=group, validate=False)
        assert len(calls) == 10
        save_model(nn.ModuleList([whole, again]), {str(tmp_path)!r} + f"/{{group.rank}}.safetensors")
        """,
    )
    in_two_processes(path)
    for rank in (0, 1):
        state = load_file(tmp_path / f"{rank}.safetensors")
        for name in (name for name in state if name.startswith("0.")):
            assert torch.equal(state[name], state[name.replace("0.", "1.", 1)]), name


def test_a_team_shares_every_row_once():
    batch = {"x": torch.arange(7), "y": (torch.arange(14).view(7, 2), [torch.arange(7)])}
    shares = [every_nth_row(batch, rank, 3) for rank in range(3)]
    assert sorted(torch.cat([share["x"] for share in shares]).tolist()) == list(range(7))
    assert rows(shares[1]) == 2
    assert (shares[1]["y"][0] == torch.tensor([[2, 3], [8, 9]])).all()
    with pytest.raises(TypeError, match="batches made of tensors, got str"):
        every_nth_row(("a",), 0, 2)
    assert ProcessGroup().shard("anything") == "anything"


def test_rows_are_those_of_the_first_tensor_wherever_it_is():
    assert rows(UserDict(names=["a"], x=torch.ones(5, 2))) == 5
    assert rows(([1, 2], {"x": np.ones((3, 2))})) == 3
    assert rows({"text": "abc"}) == rows(torch.tensor(1.0)) == 1


def test_arrays_in_a_state_are_nobody_elses(tmp_path):
    """Tensors are the leader's; what else a model keeps in its state stays its own."""
    path = script(
        tmp_path,
        f"""
        import numpy as np
        from safetensors.torch import save_file

        class Extra(nn.Linear):
            def get_extra_state(self):
                return np.ones(2)

            def set_extra_state(self, state):
                pass

        group, model = ProcessGroup.from_environment(), Extra(2, 1)
        nn.init.constant_(model.weight, group.rank + 5.0)
        group.copy_from_main(model)
        save_file({{"weight": model.weight.detach()}}, {str(tmp_path)!r} + f"/{{group.rank}}.safetensors")
        """,
    )
    in_two_processes(path)
    for rank in (0, 1):
        assert load_file(tmp_path / f"{rank}.safetensors")["weight"].tolist() == [[5.0, 5.0]]
