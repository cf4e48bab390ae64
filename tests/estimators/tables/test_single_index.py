"""The single index: its direction against the truth, its standard errors by simulation, wrong input."""

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose

import regard
from regard import NadarayaWatson
from regard.estimators.tables.single_index import direction_of, index_bandwidth


def draw(seed, rows=150, scale=(1.0, 1.0, 1.0)):
    random = np.random.default_rng(seed)
    x = random.normal(size=(rows, 3))
    index = x @ [2 / 3, -2 / 3, 1 / 3]
    y = np.sin(2 * index) + index + 0.2 * random.normal(size=rows)
    return x * scale, y


def test_the_matrix_weighs_along_its_direction_only():
    theta = np.array([3.0, -4.0])
    inverse = np.linalg.inv(index_bandwidth(theta))
    assert_allclose(inverse @ inverse.T, np.outer(theta, theta), atol=1e-4)
    x, y = np.random.default_rng(0).normal(size=(30, 2)), np.arange(30.0)
    matrix = NadarayaWatson(bandwidth=index_bandwidth(theta)).fit(x, y)
    assert_allclose(matrix.predict(x), NadarayaWatson(1.0).fit(x @ theta[:, None], y).predict(x @ theta[:, None]))
    assert_allclose(direction_of(matrix.smoother_), [-0.6, 0.8])


@pytest.mark.slow
@pytest.mark.parametrize("order", [0, 1])
def test_the_direction_is_found_whatever_the_units(order, tmp_path):
    x, y = draw(0, scale=(1.0, 100.0, 0.01))
    frame = pd.DataFrame(x, columns=["a", "b", "c"])
    model = NadarayaWatson(bandwidth="learn", metric="index", order=order, scale="standard").fit(frame, y)
    found = model.index_summary().to_frame()
    assert found.index.tolist() == ["a", "b", "c"]
    assert_allclose(found["coef"] * np.sign(found["coef"].iloc[0]), [2 / 3, -2 / 3, 1 / 3], atol=0.06)
    assert model.left_out_score() > 0.95
    again = regard.load(model.save(tmp_path / "model"))
    assert str(again.index_summary()) == str(model.index_summary())
    assert again.summary().facts["Bandwidth"] == "by learn"


@pytest.mark.slow
def test_intervals_cover_the_direction():
    covered = []
    for seed in range(20):
        x, y = draw(seed, rows=100)
        model = NadarayaWatson(bandwidth="learn", metric="index", random_state=seed, verbose=False).fit(x, y)
        table = model.index_summary().to_frame()
        sign = np.sign(table["coef"].iloc[0])
        covered.append(np.abs(sign * table["coef"] - [2 / 3, -2 / 3, 1 / 3]) < 1.96 * table["std err"])
    assert 0.85 <= np.mean(covered) <= 1.0


@pytest.mark.slow
def test_weights_count_rows():
    x, y = draw(1, rows=60)
    weight = np.tile([1.0, 2.0], 30)
    model = NadarayaWatson(bandwidth="learn", metric="index").fit(x, y, sample_weight=weight)
    assert abs(direction_of(model.smoother_) @ [2 / 3, -2 / 3, 1 / 3]) > 0.95


def test_wrong_settings():
    x, y = draw(2, rows=30)
    with pytest.raises(ValueError, match="metric='index' is learned by gradient: it needs bandwidth='learn'"):
        NadarayaWatson(metric="index").fit(x, y)
    with pytest.raises(ValueError, match="metric='index' is learned by gradient: bandwidth='learn', got"):
        NadarayaWatson("cv", metric="index").fit(x, y)
    with pytest.raises(ValueError, match="metric='index' needs two numeric columns and no category"):
        NadarayaWatson("learn", metric="index").fit(x[:, :1], y)
    with pytest.raises(ValueError, match="index_summary is of metric='index', got metric='scalar'"):
        NadarayaWatson(0.5).fit(x, y).index_summary()
