"""Pictures of a kernel regression: what is drawn, and where."""

import numpy as np
import pandas as pd
import pytest

from regard import NadarayaWatson


@pytest.fixture(scope="module")
def model():
    random = np.random.default_rng(0)
    frame = pd.DataFrame({"size": random.uniform(10, 20, 60), "kind": list("aab") * 20})
    y = pd.Series(frame["size"] + (frame["kind"] == "b") + random.normal(size=60), name="price")
    return NadarayaWatson(order=1, bandwidth=[2.0, 0.1]).fit(frame, y), frame


def test_a_partial_effect_is_the_fit_with_the_others_at_their_middle(model):
    model, frame = model
    axes = model.plot_bands(kind="pointwise")
    grid, fit = axes.lines[0].get_data()
    assert (grid[0], grid[-1]) == (frame["size"].min(), frame["size"].max())
    bands = model.bands(pd.DataFrame({"size": grid, "kind": "a"}), method="bootstrap")
    np.testing.assert_allclose(fit, bands.prediction)
    edges = axes.collections[0].get_paths()[0].vertices
    assert edges[:, 1].max() == pytest.approx(bands.upper.max())
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("size", "price")


def test_the_fan_has_the_quantiles_and_the_data_of_one_column():
    x = np.linspace(0, 1, 40)
    model = NadarayaWatson(bandwidth=0.1).fit(x[:, None], np.sin(x))
    axes = model.plot_quantiles(quantiles=[0.9, 0.5, 0.1])
    grid, median = axes.lines[0].get_data()
    np.testing.assert_array_equal(median, model.predict(grid[:, None], quantiles=0.5))
    np.testing.assert_array_equal(axes.collections[0].get_offsets(), np.stack([x, np.sin(x)], axis=1))


def test_the_density_marks_prediction_median_and_mode(model):
    model, frame = model
    axes = model.plot_density(frame[:1])
    points, density = axes.lines[0].get_data()
    np.testing.assert_allclose(density, model.conditional_density(frame[:1], points)[0], rtol=1e-6)
    marks = [line.get_xdata()[0] for line in axes.lines[1:]]
    assert marks == pytest.approx(
        [model.predict(frame[:1])[0], model.predict(frame[:1], quantiles=0.5)[0], model.mode(frame[:1])[0]]
    )


def test_bad_input_raises(model):
    model, frame = model
    with pytest.raises(ValueError, match=r"column must be that of a numeric one, \[0\], got 1"):
        model.plot_bands(1)
    with pytest.raises(ValueError, match="target must be at least 0 and below 1, got 2"):
        model.plot_quantiles(target=2)
    with pytest.raises(ValueError, match="plot_density takes one row, got 60"):
        model.plot_density(frame)
    with pytest.raises(ValueError, match="level must be a number above 0 and below 1"):
        model.plot_bands(level=2)
