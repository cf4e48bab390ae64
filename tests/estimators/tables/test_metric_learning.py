"""What "near" means is learned from rows left out; local linear fits are weighted least squares."""

import math

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from regard import scores
from regard.attend import attend
from regard.estimators.tables import metric_learning as metric
from regard.estimators.tables.local_linear import local_linear
from regard.estimators.tables.metric_learning import Rounded, Stretch, drawn, learn, stages
from regard.estimators.tables.metric_trials import Sample, Trial, held_out, standardised
from regard.masks import both

KERNELS = [scores.Gaussian, scores.Laplace, scores.Epanechnikov, scores.Boxcar, scores.Tricube]


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    """What is learned here is found in fewer steps."""
    for name, steps in {"STRETCH": 80, "MIXING": 100, "LINEAR": 40, "LAST": 20}.items():
        monkeypatch.setattr(metric, f"{name}_STEPS", steps)


def table(rows, features, seed=0):
    return torch.rand(rows, features, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def learned(points, y, kind="full", order=0, **settings):
    settings = {"start": torch.tensor(0.3), "progress": False} | settings
    return learn(points, y, metric=kind, order=order, **settings)


def stretched(bandwidth, points):
    return points / bandwidth if bandwidth.ndim < 2 else torch.linalg.solve(bandwidth, points.mT).mT


def wave_across(points):
    """Changes along (1, 1) only: no bandwidth for each feature can say so."""
    return (8 * (points[:, :1] + points[:, 1:2])).sin()


@pytest.mark.parametrize("order", [0, 1])
def test_a_feature_that_says_nothing_gets_a_wide_bandwidth(order):
    points = table(400, 3)
    y = (7 * points[:, :1]).sin() + points[:, 1:2].square()
    bandwidth = learned(points, y, "diagonal", order).bandwidth
    assert bandwidth.shape == (3,)
    assert bandwidth.dtype == torch.float64
    assert bandwidth[2] > 5 * bandwidth[0]


@pytest.mark.parametrize("order", [0, 1])
def test_a_matrix_beats_a_vector_beats_a_number_on_turned_axes(order):
    points = table(500, 3)
    number, vector, matrix = (learned(points, wave_across(points), kind, order) for kind in metric.METRICS)
    assert number.bandwidth.shape == ()
    assert matrix.bandwidth.shape == (3, 3)
    assert vector.error < 0.8 * number.error
    assert matrix.error < 0.6 * vector.error


def test_the_bandwidth_is_the_one_that_the_kernels_read():
    """One lopsided matrix, one vector, one number: the kernel's distance is that of the stretched points."""
    points = table(7, 3).float()
    for kind, start in (
        ("full", 0.4 + torch.rand(3)),
        ("diagonal", 0.4 + torch.rand(3)),
        ("scalar", torch.tensor(0.7)),
    ):
        model = Stretch(3, start)
        if kind == "full":
            model.mixing.data += 0.5 * torch.randn(3, 3)
        model.widen(2.0)
        kernel = scores.Gaussian(model.bandwidth(kind, start))
        assert_close(kernel.distance(points, points), torch.cdist(model(points), model(points)).detach())
        assert_close(model.log_stretch.exp().detach(), (1 / (2 * start)).expand(3))


def test_the_error_is_what_rows_held_out_have():
    points = table(900, 2)
    y = wave_across(points) + 0.1 * torch.randn(900, 1, dtype=torch.float64)
    known = learned(points[:600], y[:600])
    query, key = (stretched(known.bandwidth, part) for part in (points[600:], points[:600]))
    level = attend(query, key, y[:600], score=scores.Gaussian(1.0))
    error = (level - y[600:]).square().mean().sqrt() / y[:600].std()
    assert 0.7 < known.error / error < 1.4


def test_the_same_seed_gives_the_same_bits():
    points = table(200, 2)
    first, second, other = (learned(points, wave_across(points), seed=seed) for seed in (3, 3, 4))
    assert first.bandwidth.equal(second.bandwidth)
    assert first.history == second.history
    assert not first.bandwidth.equal(other.bandwidth)


def test_learning_leaves_torch_as_it_was():
    points = table(70, 2)
    threads = torch.get_num_threads()
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    learned(points, wave_across(points), "diagonal")
    assert torch.rand(3).equal(expected)
    assert torch.get_num_threads() == threads
    assert torch.tensor(1e-39) * 1.0 > 0


@pytest.mark.parametrize("rows", [20, 200])
def test_noise_is_not_learned_by_heart(rows):
    """A row that saw itself would be predicted without error, by a bandwidth near 0."""
    noise = torch.randn(rows, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    known = learned(table(rows, 2), noise, "diagonal")
    assert known.error > 0.8
    assert known.bandwidth.max() > 0.3


@pytest.mark.parametrize("order", [0, 1])
@pytest.mark.parametrize("weighted", [False, True])
def test_no_row_has_a_part_in_its_own_prediction(order, weighted):
    points = table(31, 2)
    weight = table(31, 1, seed=2).squeeze() + 0.5 if weighted else None
    sample = standardised(points, wave_across(points), weight)
    y = sample.y.requires_grad_()
    rows, everything = torch.tensor([3, 5, 28]), torch.arange(31).flip(0)
    trial = Trial(sample, rows, everything, Rounded(scores.Gaussian(1.0)), order, overlap=True)
    level = trial.prediction(Stretch(2, torch.tensor(0.3)))
    for position, row in enumerate(rows):
        influence = torch.autograd.grad(level[position, 0], y, retain_graph=True)[0].squeeze(-1)
        assert influence[row] == 0
        assert_close(influence.sum(), torch.ones(()))
        if order == 0:
            logs = scores.Gaussian(0.3)(sample.points[row : row + 1], sample.points)[0] + sample.weight.log()
            assert_close(influence, logs.index_fill(0, row, -math.inf).softmax(dim=0))


@pytest.mark.parametrize("keys", ["some", "all"])
def test_rows_drawn_are_not_among_keys_that_they_may_see(keys, monkeypatch):
    monkeypatch.setattr(metric, "KEYS", 50)
    generator = torch.Generator().manual_seed(0)
    split = held_out(300, generator)
    assert not set(split.seen.tolist()) & set(split.held.tolist())
    assert len(split.seen) + len(split.held) == 300
    sample = standardised(table(300, 2), table(300, 1), None)
    stage = {"some": stages("full", 0, split)[0], "all": stages("full", 0, split)[-1]}[keys]
    trial = drawn(sample, split, scores.Gaussian(1.0), stage, generator)
    assert not set(trial.rows.tolist()) & set(split.held.tolist())
    if keys == "some":
        assert len(trial.keys) == 50
        assert not set(trial.rows.tolist()) & set(trial.keys.tolist())
    else:
        assert trial.keys.equal(split.seen)
        query_index, key_index = torch.arange(len(trial.rows)).unsqueeze(-1), torch.arange(len(trial.keys))
        hidden = ~trial.mask()(query_index, key_index)
        assert hidden.sum(dim=1).eq(1).all()
        assert trial.keys[hidden.int().argmax(dim=1)].equal(trial.rows)


def test_many_rows_go_by_keys_that_are_drawn_and_end_with_all(monkeypatch):
    monkeypatch.setattr(metric, "KEYS", 60)
    monkeypatch.setattr(metric, "BATCH", 40)
    points = table(400, 2)
    known = learned(points, wave_across(points))
    assert len(known.history) == 3
    assert known.error < 0.3


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("order", [0, 1])
def test_every_kernel_learns(kernel, order):
    points = table(300, 2)
    start = learned(points, wave_across(points), "scalar", order, make_score=kernel)
    known = learned(points, wave_across(points), "full", order, make_score=kernel)
    assert known.bandwidth.isfinite().all()
    assert known.error < 0.7 * start.error


def test_a_bad_start_does_not_matter():
    points = table(300, 2)
    errors = [learned(points, wave_across(points), start=torch.tensor(start)).error for start in (0.02, 0.3, 5.0)]
    assert max(errors) < 1.3 * min(errors)


def test_a_weight_is_a_row_repeated():
    points, y = table(60, 2), table(60, 1, seed=1)
    twice = torch.arange(60) % 3 == 0
    model, rows = Stretch(2, torch.tensor(0.2)), torch.arange(40, 60)
    kernel = Rounded(scores.Gaussian(1.0))
    weighted = Sample(points.float(), y.float(), 1.0 + twice.float())
    plain = Sample(points.float(), y.float(), torch.ones(60))
    keys = torch.arange(40)
    repeated = torch.cat([keys, keys[twice[:40]]]), torch.cat([rows, rows[twice[40:]]])
    for order in (0, 1):
        loss = Trial(weighted, rows, keys, kernel, order, False).loss(model)
        assert_close(loss, Trial(plain, repeated[1], repeated[0], kernel, order, False).loss(model))


def test_rows_of_no_weight_are_as_if_they_were_not_there():
    points = table(150, 2)
    y = wave_across(points)
    weight = torch.ones(150, dtype=torch.float64)
    weight[100:] = 0.0
    y[100:] = 1e6
    first = learned(points, y, "diagonal", sample_weight=weight)
    assert first.bandwidth.equal(learned(points[:100], y[:100], "diagonal").bandwidth)


def test_a_constant_y_and_a_constant_feature_are_no_obstacle():
    points = table(80, 2)
    points[:, 1] = 4.0
    for y in (torch.ones(80, 1).double(), wave_across(points)):
        known = learned(points, y)
        assert known.bandwidth.isfinite().all()
        assert math.isfinite(known.error)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kind": "round"}, "metric must be one of scalar, diagonal, full, got 'round'"),
        ({"order": 2}, "order must be 0"),
        ({"start": torch.tensor(-1.0)}, "start must be a positive number"),
        ({"start": torch.ones(3)}, "one for each of 2 features"),
        ({"sample_weight": torch.ones(9)}, r"sample_weight must be \[10\], got \[9\]"),
        ({"sample_weight": torch.arange(10) == 2}, "two rows with a weight above 0, got 1"),
        ({"y": torch.ones(10)}, r"y \[n, c\], got \[10, 2\] and \[10\]"),
    ],
)
def test_what_makes_no_sense_is_refused(settings, message):
    settings = {"points": table(10, 2), "y": table(10, 1)} | settings
    with pytest.raises(ValueError, match=message):
        learned(**settings)


def slow_local_linear(query, key, value, log_weight, ridge):
    """Weighted least squares at one query after the other: the intercept is not penalised."""
    levels = []
    for point, logs in zip(query.numpy(), log_weight.numpy(), strict=True):
        weight = np.exp(logs - logs.max())
        weight = weight / weight.sum()
        design = np.column_stack([np.ones(len(key)), key.numpy() - point])
        penalty = ridge * np.diag([0.0] + [1.0] * key.shape[-1])
        normal = design.T @ (weight[:, None] * design) + penalty
        levels.append(np.linalg.solve(normal, design.T @ (weight[:, None] * value.numpy()))[0])
    return torch.tensor(np.array(levels))


@pytest.mark.parametrize("kernel", [scores.Gaussian, scores.Laplace])
@pytest.mark.parametrize("ridge", [1e-6, 0.01, 10.0])
def test_local_linear_is_weighted_least_squares(kernel, ridge):
    query, key, value = 3 * table(7, 3) + 50, 3 * table(41, 3, seed=1) + 50, table(41, 2, seed=2) + 100
    bias = table(1, 41, seed=3).log()
    hidden = torch.arange(41) % 5 != torch.arange(7).unsqueeze(-1) % 5
    expected = slow_local_linear(
        query, key, value, (kernel(1.0)(query, key) + bias).masked_fill(~hidden, -math.inf), ridge
    )
    for engine in (None, "stream", "dense"):
        mask = both(hidden, bias)
        level = local_linear(query, key, value, score=kernel(1.0), mask=mask, ridge=ridge, engine=engine)
        assert_close(level, expected, rtol=1e-9, atol=1e-9)
    # In float32 the covariance has digits to lose, and the ridge bounds what is made of them.
    rounded = local_linear(
        *(x.float() for x in (query, key, value)), score=kernel(1.0), mask=both(hidden, bias.float())
    )
    exact = local_linear(query, key, value, score=kernel(1.0), mask=both(hidden, bias))
    assert_close(rounded.double(), exact, rtol=1e-5, atol=0)


def test_local_linear_reproduces_a_linear_function_beyond_the_keys():
    query, key = 4 * table(5, 3) - 1, 2 * table(37, 3, seed=1)
    slope = torch.tensor([[1.0, -2.0], [0.5, 3.0], [7.0, 0.0]]).double()
    level = local_linear(query, key, key @ slope + 5, score=scores.Gaussian(0.7), ridge=1e-12)
    assert_close(level, query @ slope + 5, rtol=1e-6, atol=1e-6)


def test_local_linear_without_a_slope_is_attention():
    query, key, value = table(5, 3), table(37, 3, seed=1), table(37, 2, seed=2)
    level = local_linear(query, key, value, score=scores.Gaussian(0.4), ridge=1e12)
    assert_close(level, attend(query, key, value, score=scores.Gaussian(0.4)))


def test_local_linear_has_gradients():
    query, key, value = (x.requires_grad_() for x in (2 * table(3, 2), 2 * table(11, 2, seed=1), table(11, 2, seed=2)))
    assert torch.autograd.gradcheck(
        lambda *tensors: local_linear(*tensors, score=scores.Gaussian(1.0), engine="dense"), (query, key, value)
    )


def test_who_sees_nobody_is_given_the_mean():
    key, value = table(11, 2), table(11, 1, seed=2)
    level = local_linear(key[:1] + 100, key, value, score=scores.Epanechnikov(1.0))
    assert_close(level, value.mean(dim=0, keepdim=True))


def test_local_linear_says_which_shapes_it_takes():
    with pytest.raises(ValueError, match=r"must be \[length, size\], got \[1, 3, 2\], \[5, 2\], \[5, 1\]"):
        local_linear(torch.ones(1, 3, 2), torch.ones(5, 2), torch.ones(5, 1), score=scores.Gaussian(1.0))
