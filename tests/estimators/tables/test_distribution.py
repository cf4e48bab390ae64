"""The conditional distribution of a target, compared with its definition and with statsmodels."""

import numpy as np
import pandas as pd
import pytest

from regard import NadarayaWatson, load
from regard.estimators.tables import binned_quantiles, distribution

LEVELS = [0.05, 0.31, 0.5, 0.95]


def curve(rows, columns=1, seed=0):
    random = np.random.default_rng(seed)
    x = random.uniform(-2, 2, size=(rows, columns))
    return x, np.sin(2 * x[:, 0]) + (0.1 + 0.2 * (x[:, 0] > 0)) * random.normal(size=rows)


def weights(query, key, width):
    """Those of a Gaussian, as a loop."""
    weight = np.array([[np.exp(-0.5 * np.sum(((q - k) / width) ** 2)) for k in key] for q in query])
    return weight / weight.sum(axis=1, keepdims=True)


def quantile(weight, value, level):
    """The least value at which the summed weight reaches the level."""
    total = 0.0
    for index in np.argsort(value):
        total += weight[index]
        if total >= level:
            return value[index]
    return value.max()


def test_quantiles_are_those_of_the_weighted_targets():
    x, y = curve(101)
    query = x[:7] + 0.05
    model = NadarayaWatson(bandwidth=0.2).fit(x, y)
    expected = [[quantile(weight, y, level) for level in LEVELS] for weight in weights(query, x, 0.2)]
    assert model.predict(query, quantiles=LEVELS).tolist() == expected
    assert model.predict(query, quantiles=0.31).tolist() == [row[1] for row in expected]


def test_lines_have_quantiles_of_left_out_residuals_about_them():
    x, y = curve(101)
    query = x[:7] + 0.05
    model = NadarayaWatson(order=1, bandwidth=0.2).fit(x, y)
    residual = np.array(
        [y[i] - NadarayaWatson(order=1, bandwidth=0.2).fit(np.delete(x, i, 0), np.delete(y, i)).predict(x[i : i + 1])[0]
         for i in range(len(x))]
    )  # fmt: skip
    near = weights(query, x, 0.2)
    expected = np.array([[quantile(weight, residual, level) for level in LEVELS] for weight in near])
    expected += model.predict(query)[:, None]
    np.testing.assert_allclose(model.predict(query, quantiles=LEVELS), expected, atol=1e-6)
    targets = residual + model.predict(query)[:, None]
    below = np.stack([(near * (targets <= t)).sum(axis=1) for t in (-0.5, 0.5)], axis=1)
    np.testing.assert_allclose(model.conditional_cdf(query, [-0.5, 0.5]), below, atol=1e-9)
    offset = (0.4 - model.predict(query)[:, None] - residual) / 0.1
    density = (near * np.exp(-0.5 * offset**2)).sum(axis=1) / (0.1 * np.sqrt(2 * np.pi))
    np.testing.assert_allclose(model.conditional_density(query, 0.4, bandwidth=0.1), density, atol=1e-6)


def test_quantiles_of_weighted_rows_several_targets_and_categories():
    x, y = curve(61, 2)
    frame = pd.DataFrame({"a": x[:, 0], "b": np.where(x[:, 1] > 0, "u", "v")})
    targets, times = np.stack([y, -y], axis=1), np.arange(61) % 3
    model = NadarayaWatson(bandwidth=[0.3, 0.2]).fit(frame, targets, sample_weight=times)
    repeated = NadarayaWatson(bandwidth=[0.3, 0.2]).fit(
        frame.loc[np.repeat(np.arange(61), times)], np.repeat(targets, times, 0)
    )
    found = model.predict(frame[:5], quantiles=LEVELS)
    assert found.shape == (5, 2, 4)
    np.testing.assert_array_equal(found, repeated.predict(frame[:5], quantiles=LEVELS))
    assert (np.diff(found, axis=2) >= 0).all()
    assert model.conditional_cdf(frame[:5], [0.0, 1.0]).shape == (5, 2, 2)
    assert model.mode(frame[:5]).shape == (5, 2)
    drawn = model.sample(frame[:5], 11)
    assert drawn.shape == (5, 11, 2)
    np.testing.assert_array_equal(drawn[..., 0], -drawn[..., 1])  # of one row


@pytest.mark.slow
@pytest.mark.parametrize("columns", [1, 2])
def test_bins_are_as_good_as_sorted_weights(columns, monkeypatch):
    x, y = curve(3000, columns)
    y[::3] = y[::3].round(1)  # many equal targets
    y[y < -0.8] = -0.8
    query = x[:60]
    model = NadarayaWatson(bandwidth=0.15).fit(x, y)
    monkeypatch.setattr(binned_quantiles, "_EXACT_PAIRS", 2000)
    monkeypatch.setattr(distribution, "_EXACT_PAIRS", 0)
    monkeypatch.setattr(distribution, "_MOST_EXACT_PAIRS", 0)
    levels = np.linspace(0.02, 0.98, 25)
    found = model.predict(query, quantiles=levels)
    assert (np.diff(found, axis=1) >= 0).all()
    near = weights(query, x, 0.15)
    reached = np.array([[weight[y <= q].sum() for q in row] for weight, row in zip(near, found, strict=True)])
    below = np.array([[weight[y < q].sum() for q in row] for weight, row in zip(near, found, strict=True)])
    error = np.maximum(np.maximum(below - levels, levels - reached), 0)
    assert error.max() < binned_quantiles._LARGEST_MASS
    assert error.mean() < 5e-3


def test_a_query_that_sees_no_row_has_the_target_of_the_nearest():
    model = NadarayaWatson(bandwidth=0.5, kernel="boxcar").fit([[0.0], [1.0]], [3.0, 4.0])
    assert model.predict([[9.0]], quantiles=[0.1, 0.9]).tolist() == [[4.0, 4.0]]
    assert model.conditional_cdf([[9.0]], [3.5, 4.0]).tolist() == [[0.0, 1.0]]
    assert model.sample([[9.0]], 3).tolist() == [[4.0] * 3]


@pytest.mark.filterwarnings("ignore:After 0.17:FutureWarning")
def test_distribution_and_density_agree_with_statsmodels():
    from statsmodels.nonparametric.kernel_density import KDEMultivariateConditional

    x, y = curve(80, 2)
    query, t = x[:6] + 0.1, np.array([-0.7, 0.0, 0.4])
    model = NadarayaWatson(bandwidth=[0.3, 0.4]).fit(x, y)
    theirs = KDEMultivariateConditional(y, x, "c", "cc", bw=[0.2, 0.3, 0.4])
    steps = KDEMultivariateConditional(y, x, "c", "cc", bw=[1e-9, 0.3, 0.4])
    density, below = model.conditional_density(query, t, bandwidth=0.2), model.conditional_cdf(query, t)
    for index, point in enumerate(t):
        np.testing.assert_allclose(density[:, index], theirs.pdf(np.full(6, point), query), rtol=1e-5, atol=1e-8)
        np.testing.assert_allclose(below[:, index], steps.cdf(np.full(6, point), query), atol=1e-6)


def test_cdf_rises_and_is_the_inverse_of_the_quantiles():
    x, y = curve(300)
    model = NadarayaWatson(bandwidth=0.2).fit(x, y)
    t = np.linspace(-2, 2, 41)[::-1]
    below = model.conditional_cdf(x[:9], t)
    assert (np.diff(below, axis=1) <= 0).all()
    np.testing.assert_allclose(below[:, 0], 1, atol=1e-6)
    np.testing.assert_allclose(below[:, -1], 0, atol=1e-6)
    for row, found in zip(x[:9], model.predict(x[:9], quantiles=LEVELS), strict=True):
        reached = model.conditional_cdf([row], np.sort(found))[0]
        assert (reached >= np.array(LEVELS) - 1e-6).all()
        assert (reached < np.array(LEVELS) + 0.1).all()


def test_mode_is_where_the_density_is_largest():
    random = np.random.default_rng(0)
    x = random.uniform(size=(500, 1))
    y = np.where(random.random(500) < 0.7, 1.0, 5.0) + x[:, 0] + 0.2 * random.normal(size=500)
    for order in (0, 1):
        model = NadarayaWatson(order=order, bandwidth=0.3).fit(x, y)
        mode = model.mode([[0.3], [0.6]], bandwidth=0.3)
        t = np.linspace(0, 7, 1401)
        best = t[model.conditional_density([[0.3], [0.6]], t, bandwidth=0.3).argmax(axis=1)]
        np.testing.assert_allclose(mode, best, atol=0.03)


def test_samples_have_the_distribution_they_are_drawn_from():
    x, y = curve(200)
    model = NadarayaWatson(bandwidth=0.2).fit(x, y)
    drawn = model.sample([[0.5]], 20_000, random_state=3)
    assert set(drawn[0]) <= set(y)
    below = model.conditional_cdf([[0.5]], [0.6, 0.9])[0]
    np.testing.assert_allclose([(drawn <= t).mean() for t in (0.6, 0.9)], below, atol=0.012)
    np.testing.assert_array_equal(drawn, model.sample([[0.5]], 20_000, random_state=3))
    assert not np.array_equal(drawn, model.sample([[0.5]], 20_000, random_state=4))


def test_a_saved_model_and_another_fit_have_their_own_distribution(tmp_path):
    x, y = curve(60)
    model = NadarayaWatson(order=1, bandwidth=0.3).fit(x, y)
    found = model.predict(x, quantiles=[0.2])
    np.testing.assert_allclose(load(model.save(tmp_path / "model")).predict(x, quantiles=[0.2]), found)
    np.testing.assert_allclose(model.fit(x, -y).predict(x, quantiles=[0.8]), -found, atol=0.3)


@pytest.mark.parametrize("wrong", [0, 1, [], [0.5, 1.0], [np.nan], "half", [[0.5]]])
def test_levels_are_between_0_and_1(wrong):
    model = NadarayaWatson(bandwidth=1.0).fit([[0.0], [1.0]], [0.0, 1.0])
    with pytest.raises(ValueError, match="quantiles must be numbers above 0 and below 1"):
        model.predict([[0.0]], quantiles=wrong)


def test_other_bad_input_raises():
    model = NadarayaWatson(bandwidth=1.0).fit([[0.0], [1.0]], [0.0, 1.0])
    with pytest.raises(ValueError, match="thresholds must be finite numbers, one or a list, got nan"):
        model.conditional_cdf([[0.0]], np.nan)
    with pytest.raises(ValueError, match="points must be finite numbers"):
        model.conditional_density([[0.0]], [0.0, np.inf])
    with pytest.raises(ValueError, match="bandwidth must be a positive number, got 0"):
        model.conditional_density([[0.0]], 0.0, bandwidth=0)
    with pytest.raises(ValueError, match="n must be a positive whole number, got 0"):
        model.sample([[0.0]], 0)
    with pytest.raises(ValueError, match="one of return_std and quantiles at a time"):
        model.predict([[0.0]], return_std=True, quantiles=[0.5])
