"""A metric is learned from the leave-one-out error."""

import math

import pytest
import torch
from torch.testing import assert_close

from regard import NadarayaWatson, scores
from regard.attend import attend
from regard.estimators.tables import metric_learning
from regard.estimators.tables.metric_learning import (
    Rows,
    Sample,
    Stretch,
    Trial,
    draw_trial,
    learn_metric,
    plan_stages,
)
from regard.kernels import KERNELS


@pytest.fixture(autouse=True)
def few_steps(monkeypatch):
    """The metrics of these tests need fewer steps."""
    for name, steps in {"STRETCH": 80, "MIXING": 100, "LINEAR": 40, "LAST": 20}.items():
        monkeypatch.setattr(metric_learning, f"{name}_STEPS", steps)


def table(rows, features, seed=0):
    return torch.rand(rows, features, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def learn(points, y, metric="full", order=0, kernel=scores.Gaussian, start=0.3, seed=0):
    settings = {"metric": metric, "order": order, "score": kernel(1.0), "seed": seed, "progress": False}
    learned = learn_metric(Rows(points / start, y), **settings)
    return learned._replace(bandwidth=start * learned.bandwidth)


def sample_of(points, y, weight=None, seed=0):
    return Sample.of(Rows(points, y, weight), torch.Generator().manual_seed(seed))


def stretch(size, start):
    model = Stretch(size)
    model.widen(start)
    return model


def stretched(bandwidth, points):
    return torch.linalg.solve(bandwidth, points.mT).mT


def wave_across(points):
    """Changes along (1, 1) only: no bandwidth for each feature can say so."""
    return (8 * (points[:, :1] + points[:, 1:2])).sin()


@pytest.mark.slow
@pytest.mark.parametrize("order", [0, 1])
def test_an_irrelevant_feature_gets_a_wide_bandwidth(order):
    points = table(400, 3)
    y = (7 * points[:, :1]).sin() + points[:, 1:2].square()
    bandwidth = learn(points, y, "diagonal", order).bandwidth
    assert bandwidth.shape == (3,)
    assert bandwidth.dtype == torch.float64
    assert bandwidth[2] > 5 * bandwidth[0]


@pytest.mark.slow
@pytest.mark.parametrize("order", [0, 1])
def test_a_matrix_beats_a_vector_beats_a_number_on_rotated_axes(order):
    points = table(500, 3)
    number, vector, matrix = (
        learn(points, wave_across(points), metric, order) for metric in ("scalar", "diagonal", "full")
    )
    assert number.bandwidth.tolist() == number.bandwidth[:1].tolist() * 3
    assert matrix.bandwidth.shape == (3, 3)
    assert vector.error < 0.8 * number.error
    assert matrix.error < 0.6 * vector.error


def test_the_kernels_take_the_bandwidth():
    """One lopsided matrix, one vector: the kernel's distance is that of the stretched points."""
    points = table(7, 3).float()
    for metric in ("full", "diagonal"):
        model, start = Stretch(3), 0.4 + torch.rand(3)
        model.log_stretch.data -= start.log()
        if metric == "full":
            model.mixing.data += 0.5 * torch.randn(3, 3)
        model.widen(2.0)
        kernel = scores.Gaussian(model.bandwidth(metric))
        assert_close(kernel.distance(points, points), torch.cdist(model(points), model(points)).detach())
        assert_close(model.log_stretch.exp().detach(), 1 / (2 * start))


@pytest.mark.slow
def test_the_error_is_that_of_new_rows():
    points = table(900, 2)
    y = wave_across(points) + 0.1 * torch.randn(900, 1, dtype=torch.float64)
    learned = learn(points[:600], y[:600])
    query, key = (stretched(learned.bandwidth, part) for part in (points[600:], points[:600]))
    level = attend(query, key, y[:600], score=scores.Gaussian(1.0))
    error = (level - y[600:]).square().mean().sqrt() / y[:600].std()
    assert 0.7 < learned.error / error < 1.4


@pytest.mark.slow
def test_the_same_seed_gives_the_same_bits():
    points = table(200, 2)
    first, second, other = (learn(points, wave_across(points), seed=seed) for seed in (3, 3, 4))
    assert first.bandwidth.equal(second.bandwidth)
    assert first.history == second.history
    assert not first.bandwidth.equal(other.bandwidth)


def test_learning_restores_the_state_of_torch():
    points = table(70, 2)
    threads = torch.get_num_threads()
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    learn(points, wave_across(points), "diagonal")
    assert torch.rand(3).equal(expected)
    assert torch.get_num_threads() == threads
    assert torch.tensor(1e-39) * 1.0 > 0


@pytest.mark.parametrize("rows", [20, 200])
def test_noise_is_not_overfitted(rows):
    """A row that saw itself would be predicted without error, by a bandwidth near 0."""
    noise = torch.randn(rows, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    learned = learn(table(rows, 2), noise, "diagonal")
    assert learned.error > 0.8
    assert learned.bandwidth.max() > 0.3


@pytest.mark.parametrize("order", [0, 1])
@pytest.mark.parametrize("weighted", [False, True])
def test_no_row_influences_its_own_prediction(order, weighted):
    points = table(31, 2)
    weight = table(31, 1, seed=2).squeeze() + 0.5 if weighted else None
    sample = sample_of(points, wave_across(points), weight)
    y = sample.y.requires_grad_()
    rows, everything = torch.tensor([3, 5, 28]), torch.arange(31).flip(0)
    trial = Trial(sample, rows, everything, None, order, overlap=True)
    level = trial.prediction(stretch(2, 0.3))
    for position, row in enumerate(rows):
        influence = torch.autograd.grad(level[position, 0], y, retain_graph=True)[0].squeeze(-1)
        assert influence[row] == 0
        assert_close(influence.sum(), torch.ones(()))
        if order == 0:
            logs = scores.Gaussian(0.3)(sample.points[row : row + 1], sample.points)[0] + sample.weight.log()
            assert_close(influence, logs.index_fill(0, row, -math.inf).softmax(dim=0))


@pytest.mark.parametrize("keys", ["some", "all"])
def test_a_drawn_row_does_not_see_itself(keys, monkeypatch):
    monkeypatch.setattr(metric_learning, "KEYS", 50)
    sample = sample_of(table(300, 2), table(300, 1))
    assert not set(sample.train.tolist()) & set(sample.validation.tolist())
    assert len(sample.train) + len(sample.validation) == 300
    stages = plan_stages("full", 0, len(sample.train))
    stage = {"some": stages[0], "all": stages[-1]}[keys]
    trial = draw_trial(sample, stage, torch.Generator().manual_seed(1))
    assert not set(trial.rows.tolist()) & set(sample.validation.tolist())
    if keys == "some":
        assert len(trial.keys) == 50
        assert not set(trial.rows.tolist()) & set(trial.keys.tolist())
    else:
        assert trial.keys.equal(sample.train)
        query_index, key_index = torch.arange(len(trial.rows)).unsqueeze(-1), torch.arange(len(trial.keys))
        hidden = ~trial.mask()(query_index, key_index)
        assert hidden.sum(dim=1).eq(1).all()
        assert trial.keys[hidden.int().argmax(dim=1)].equal(trial.rows)


@pytest.mark.slow
def test_with_many_rows_keys_are_drawn_and_the_last_stage_uses_all(monkeypatch):
    monkeypatch.setattr(metric_learning, "KEYS", 60)
    monkeypatch.setattr(metric_learning, "BATCH", 40)
    points = table(400, 2)
    learned = learn(points, wave_across(points))
    assert len(learned.history) == 3
    assert learned.error < 0.3


@pytest.mark.slow
@pytest.mark.parametrize("kernel", KERNELS.values())
@pytest.mark.parametrize("order", [0, 1])
def test_every_kernel_learns(kernel, order):
    points = table(300, 2)
    start = learn(points, wave_across(points), "scalar", order, kernel)
    learned = learn(points, wave_across(points), "full", order, kernel)
    assert learned.bandwidth.isfinite().all()
    assert learned.error < 0.7 * start.error


@pytest.mark.slow
def test_a_bad_start_does_not_matter():
    points = table(300, 2)
    errors = [learn(points, wave_across(points), start=start).error for start in (0.02, 0.3, 5.0)]
    assert max(errors) < 1.3 * min(errors)


def test_a_weight_of_2_is_a_repeated_row():
    points, y = table(60, 2), table(60, 1, seed=1)
    twice = torch.arange(60) % 3 == 0
    model, rows, keys = stretch(2, 0.2), torch.arange(40, 60), torch.arange(40)
    weighted = Sample(points.float(), y.float(), 1.0 + twice.float(), keys, rows)
    plain = weighted._replace(weight=torch.ones(60))
    repeated = torch.cat([keys, keys[twice[:40]]]), torch.cat([rows, rows[twice[40:]]])
    for order in (0, 1):
        loss = Trial(weighted, rows, keys, None, order, False).loss(model)
        assert_close(loss, Trial(plain, repeated[1], repeated[0], None, order, False).loss(model))


@pytest.mark.slow
def test_rows_of_weight_0_are_ignored():
    points = table(150, 2)
    y = wave_across(points)
    weight = torch.ones(150, dtype=torch.float64)
    weight[100:] = 0.0
    y[100:] = 1e6
    model = NadarayaWatson("learn", metric="diagonal")
    first = model.fit(points, y, weight).bandwidth_
    assert first.tolist() == model.fit(points[:100], y[:100]).bandwidth_.tolist()


@pytest.mark.slow
def test_a_constant_y_and_a_constant_feature_are_allowed():
    points = table(80, 2)
    points[:, 1] = 4.0
    for y in (torch.ones(80, 1).double(), wave_across(points)):
        learned = learn(points, y)
        assert learned.bandwidth.isfinite().all()
        assert math.isfinite(learned.error)
