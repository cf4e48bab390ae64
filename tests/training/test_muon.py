"""Muon against a slow definition of its step by singular values, and AdamW's part against torch's."""

import pytest
import torch
from helpers.small_runs import StoppedError, batches, same
from torch import nn
from torch.testing import assert_close

from regard.models.recurrent import Bahdanau, RecurrentConfig
from regard.models.transformer import TransformerConfig, transformer
from regard.training import Checkpoint, Muon, Recipe, train, warm_cosine
from regard.training.muon import QUINTIC, STEP_RMS, matrices_of, orthogonal


def by_singular_values(matrix):
    """What five iterations make of a matrix: its singular vectors stay, its values go through the polynomial."""
    left, values, right = torch.linalg.svd(matrix, full_matrices=False)
    values = values / values.square().sum().sqrt()
    a, b, c = QUINTIC
    for _ in range(5):
        values = a * values + b * values**3 + c * values**5
    return left @ values.diag() @ right


def slow_step(matrix, gradients, *, rate, decay, momentum):
    """The result of some steps of a matrix that does not consist of squares."""
    mean = torch.zeros_like(matrix)
    for gradient in gradients:
        mean = momentum * mean + (1 - momentum) * gradient
        ahead = momentum * mean + (1 - momentum) * gradient
        step = by_singular_values(ahead) * max(matrix.shape) ** 0.5
        matrix = matrix - rate * decay * matrix - rate * STEP_RMS * step
    return matrix


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def take_steps(parameter, gradients, **settings):
    optimizer = Muon([parameter], [], **settings)
    for gradient in gradients:
        parameter.grad = gradient.clone()
        optimizer.step()
    return parameter.detach()


@pytest.mark.parametrize("shape", [(7, 7), (11, 7), (7, 11), (1, 1)])
def test_steps_agree_with_the_slow_definition(shape):
    start, gradients = normal(*shape), [normal(*shape, seed=seed) for seed in (1, 2, 3)]
    result = take_steps(nn.Parameter(start.clone()), gradients, lr=0.03, weight_decay=0.1, momentum=0.9)
    assert_close(result, slow_step(start, gradients, rate=0.03, decay=0.1, momentum=0.9))


@pytest.mark.parametrize("side", [0, 1])
def test_square_blocks_of_a_matrix_step_independently(side):
    """As queries, keys and values do, which are packed into one matrix."""
    start, gradients = [normal(5, 5, seed=seed) for seed in (1, 2, 3)], [normal(5, 5, seed=seed) for seed in (4, 5, 6)]
    result = take_steps(nn.Parameter(torch.cat(start, dim=side)), [torch.cat(gradients, dim=side)], lr=0.03)
    alone = [take_steps(nn.Parameter(one), [gradient], lr=0.03) for one, gradient in zip(start, gradients, strict=True)]
    assert_close(result, torch.cat(alone, dim=side))


@pytest.mark.parametrize("shape", [(3, 7, 7), (3, 13, 5), (3, 5, 13)])
def test_all_singular_values_become_about_one(shape):
    matrices = normal(*shape)
    left, _, right = torch.linalg.svd(matrices, full_matrices=False)
    values = left.mT @ orthogonal(matrices) @ right.mT
    lengths = values.diagonal(dim1=-2, dim2=-1)
    assert_close(values, torch.diag_embed(lengths), rtol=0, atol=1e-9)
    assert lengths.min() > 0.6
    assert lengths.max() < 1.25


def test_a_zero_gradient_is_no_step():
    assert orthogonal(torch.zeros(2, 3, 5)).eq(0).all()
    parameter = nn.Parameter(torch.ones(3, 5))
    assert take_steps(parameter, [torch.zeros(3, 5)], lr=1.0).eq(1).all()


def test_the_size_of_a_step_depends_on_the_rate_and_not_on_the_shape():
    for shape in ((64, 64), (192, 64), (64, 256), (60, 90)):
        step = take_steps(nn.Parameter(torch.zeros(shape)), [torch.randn(shape)], lr=0.5)
        assert 0.7 < step.square().mean().sqrt() / (0.5 * STEP_RMS) < 1.2, shape


def test_other_parameters_step_by_adamw():
    ours, theirs = ([nn.Parameter(normal(7, 3)), nn.Parameter(normal(11))] for _ in range(2))
    muon = Muon([], ours, lr=0.02, weight_decay=0.3, betas=(0.8, 0.9))
    groups = [{"params": theirs[:1], "weight_decay": 0.3}, {"params": theirs[1:], "weight_decay": 0.0}]
    adamw = torch.optim.AdamW(groups, lr=0.02, betas=(0.8, 0.9), fused=True)
    for seed in range(3):
        for some in (ours, theirs):
            some[0].grad, some[1].grad = normal(7, 3, seed=seed), normal(11, seed=seed)
        muon.step()
        adamw.step()
    for one, other in zip(ours, theirs, strict=True):
        assert_close(one, other, rtol=0, atol=0)


def test_what_has_no_gradient_stays_and_a_closure_is_called():
    still, moved = nn.Parameter(torch.ones(3, 3)), nn.Parameter(torch.ones(3, 3))
    optimizer = Muon([still, moved], [nn.Parameter(torch.ones(2))], lr=0.1)

    def closure():
        optimizer.zero_grad()
        loss = moved.square().sum()
        loss.backward()
        return loss

    assert optimizer.step(closure) == 9.0
    assert still.eq(1).all()
    assert moved.ne(1).all()


def run(checkpoint=None, stop=None):
    """A small training with Muon, which breaks off at a step."""
    torch.manual_seed(3)
    model, losses = nn.Sequential(nn.Linear(5, 11), nn.Dropout(0.3), nn.Linear(11, 5)), []
    optimizer = Muon.of(model, lr=0.02)

    def loss(batch):
        if len(losses) == stop:
            raise StoppedError
        losses.append((model(batch) - batch.flip(-1)).square().mean())
        return losses[-1]

    schedule = warm_cosine(optimizer, 24, warm=3)
    train(model, batches, loss, Recipe(optimizer, 4, schedule), checkpoint=checkpoint)
    return model


def test_a_resumed_run_ends_with_the_same_weights(tmp_path):
    with pytest.raises(StoppedError):
        run(Checkpoint(tmp_path / "run", every=5), stop=13)
    same(run(), run(Checkpoint(tmp_path / "run", resume=True)))


def test_matrices_of_a_model_are_the_weights_of_its_layers():
    model = transformer(50, 50, TransformerConfig(blocks=1, heads=2, size=8, hidden=12), shared=True)
    every = {name for name, parameter in model.named_parameters() if parameter.ndim == 2}
    matrices = matrices_of(model)
    names = {name for name, parameter in model.named_parameters() if any(parameter is one for one in matrices)}
    assert every - names == {"source.token.weight"}
    model = Bahdanau(50, 60, RecurrentConfig(size=8, hidden=12, tied=True))
    shapes = {tuple(matrix.shape) for matrix in matrices_of(model)}
    assert (36, 12) in shapes
    assert not shapes & {(50, 8), (60, 8)}


def test_frozen_parameters_are_left_out():
    model = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2)).requires_grad_(False)
    model[1].requires_grad_()
    matrices, gains = Muon.of(model, lr=0.1, weight_decay=0.2, momentum=0.8).param_groups
    assert matrices["params"] == [model[1].weight]
    assert gains["params"] == [model[1].bias]
    assert (matrices["turned"], gains["turned"], matrices["momentum"]) == (True, False, 0.8)


def test_a_vector_among_the_matrices_raises():
    with pytest.raises(ValueError, match=r"matrices must have two dimensions, got shape \[3\]"):
        Muon([nn.Parameter(torch.ones(3))], [], lr=0.1)
