"""A small training, for this process or as a script for others."""

import textwrap

import torch

# A model with dropout, so that it depends on random numbers; six batches per epoch, which differ between epochs.
SCRIPT = """
import sys, time
import torch
from torch import nn
from regard.training import Checkpoint, ProcessGroup, Recipe, train, warm_cosine

def batches(epoch):
    generator = torch.Generator().manual_seed(epoch)
    return [torch.randn(7, 5, generator=generator) for _ in range(6)]

def run(checkpoint=None, *, epochs=4, dropout=0.3, pause=0.0, group=None, accumulate=1, validate=True):
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(5, 11), nn.Dropout(dropout), nn.Tanh(), nn.Linear(11, 5))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)

    def loss(batch):
        time.sleep(pause)
        return (model(batch) - batch.flip(-1)).square().mean()

    history = train(
        model, batches, loss,
        Recipe(optimizer, epochs, warm_cosine(optimizer, epochs * 6, warm=3), clip=1.0, accumulate=accumulate),
        validate=(lambda: loss(batches(99)[0]).item()) if validate else None, checkpoint=checkpoint, group=group,
    )
    return model, history
"""
space: dict = {}
exec(SCRIPT, space)
run, batches = space["run"], space["batches"]


def script(tmp_path, last_line):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT + textwrap.dedent(last_line))
    return str(path)


def same(model, other):
    for (name, one), two in zip(model.state_dict().items(), other.state_dict().values(), strict=True):
        assert torch.equal(one, two), name


class StoppedError(Exception):
    """Raised by a test to stop a run."""
