"""Charts show the numbers they were given, and need no display; a strip of images is bright where weights are large."""

import io
import runpy
import subprocess
import sys
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest
import torch
from matplotlib.colors import same_color
from matplotlib.figure import Figure
from numpy.testing import assert_allclose, assert_array_equal

from regard import NadarayaWatson, plots
from regard.data.samples import noisy_curve
from regard.plots import image_strip, interpolation, smooth

ROOT = Path(__file__).parents[1]


def test_fit_curve_draws_fits_over_their_data():
    grid = np.array([3.0, 1.0, 2.0])
    axes = plots.fit_curve(
        [[0.0], [5.0]],
        [1.0, 2.0],
        grid,
        {"low": grid * 2, "high": grid * 3},
        truth=grid + 1,
        spread={"high": np.full(3, 0.5)},
    )
    lines = {line.get_label(): line for line in axes.lines}
    assert list(lines) == ["truth", "low", "high"]
    np.testing.assert_array_equal(lines["low"].get_xydata(), [[1, 2], [2, 4], [3, 6]])  # sorted for drawing
    np.testing.assert_array_equal(lines["truth"].get_ydata(), [2, 3, 4])
    points, band = axes.collections
    np.testing.assert_array_equal(points.get_offsets(), [[0, 1], [5, 2]])
    assert (band.get_datalim(axes.transData).ymin, band.get_datalim(axes.transData).ymax) == (2.5, 9.5)
    assert same_color(band.get_facecolor()[0][:3], lines["high"].get_color())
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("x", "y")
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["data", "truth", "low", "high"]


def test_weight_map_is_sorted_by_queries_and_keys():
    weights = np.arange(6.0).reshape(2, 3)
    axes = plots.weight_map(weights, queries=[2.0, 1.0], keys=["b", "c", "a"], title="mine")
    np.testing.assert_array_equal(axes.images[0].get_array(), [[5, 3, 4], [2, 0, 1]])
    assert [text.get_text() for text in axes.get_xticklabels()] == ["a", "b", "c"]
    assert axes.get_title(loc="left") == "mine"
    assert axes.images[0].get_clim() == (0, 5)
    assert axes.yaxis_inverted()  # the first query is on top
    assert axes.get_ylabel().startswith("queries")
    assert axes.get_xlabel().startswith("keys")
    assert len(axes.figure.axes) == 2  # the colour bar
    plain = plots.weight_map(weights, largest=10.0)
    np.testing.assert_array_equal(plain.images[0].get_array(), weights)
    assert plain.images[0].get_clim() == (0, 10)


def test_ticks_of_a_weight_map_are_at_their_values():
    axes = plots.weight_map(np.ones((3, 5)), keys=[0.0, 1.0, 2.0, 4.0, 8.0])
    ticks = dict(zip([text.get_text() for text in axes.get_xticklabels()], axes.get_xticks(), strict=True))
    assert ticks["0"] == 0
    assert ticks["2"] == 2
    assert ticks["4"] == 3
    assert ticks["6"] == 3.5
    assert ticks["8"] == 4


def test_negative_weights_use_another_colour_map():
    axes = plots.weight_map([[0.5, -2.0]])
    assert axes.images[0].get_clim() == (-2, 2)
    assert axes.images[0].get_cmap().name != plots.weight_map([[0.5, 2.0]]).images[0].get_cmap().name


def test_bars_show_weights_rest_and_targets():
    axes = plots.evidence_bars(["7", "3"], [0.75, -0.25], 0.5, values=["yes", "no"])
    assert [bar.get_width() for bar in axes.patches] == [0.75, -0.25, 0.5]
    more, less, rest = (bar.get_facecolor() for bar in axes.patches)
    assert len({more, less, rest}) == 3
    assert same_color(rest, plots.GREY)
    assert [text.get_text() for text in axes.get_yticklabels()] == ["row 7", "row 3", "all other rows"]
    assert [text.get_text() for text in axes.texts] == ["75.0%  →  yes", "-25.0%  →  no", "50.0%"]
    assert axes.yaxis_inverted()
    assert axes.get_xlabel()
    assert [text.get_text() for text in plots.evidence_bars(["7"], [1.0], 0.0).texts] == ["100.0%", "0.0%"]


def test_evidence_plot_draws_its_weights():
    x, y, _ = noisy_curve(20)
    evidence = NadarayaWatson(bandwidth=0.5).fit(x[:, None], y).evidence([[1.0], [4.0]], top=3)
    axes = evidence.plot(query=1)
    np.testing.assert_allclose([bar.get_width() for bar in axes.patches], [*evidence.weight[1], evidence.rest[1]])
    assert axes.get_yticklabels()[0].get_text() == f"row {evidence.index[1, 0]}"


def test_charts_draw_on_given_axes_and_are_saved_without_a_display(tmp_path):
    figure = Figure()
    first, second, third = figure.subplots(1, 3)
    assert plots.fit_curve([1.0], [1.0], [1.0, 2.0], {"f": [1.0, 2.0]}, axes=first) is first
    assert plots.weight_map([[1.0]], axes=second) is second
    assert plots.evidence_bars([], [], 1.0, axes=third) is third
    figure.savefig(tmp_path / "all.png")
    assert matplotlib.image.imread(tmp_path / "all.png").std() > 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: plots.fit_curve([1, 2], [1], [1], {}), r"y must be \[2\], got shape \[1\]"),
        (lambda: plots.fit_curve([1], [1], [1, 2], {"f": [1]}), r"f must be \[2\], got shape \[1\]"),
        (lambda: plots.fit_curve([[1, 2]], [1], [1], {}), r"x must be \[n\], got shape \[1, 2\]"),
        (lambda: plots.fit_curve([1], [1], [1], {"f": [1]}, spread={"g": [1]}), r"spread names \['g'\]"),
        (lambda: plots.weight_map([1.0, 2.0]), r"weights must be \[queries, keys\], got shape \[2\]"),
        (lambda: plots.weight_map([[1.0, 2.0]], keys=[1]), r"keys must be \[2\].*got shape \[1\]"),
        (lambda: plots.evidence_bars(["a"], [0.5, 0.5], 0), r"weights must be \[1\], got shape \[2\]"),
        (lambda: plots.evidence_bars(["a"], [0.5], 0, values=[1, 2]), r"values must be \[1\], one per label, got 2"),
        (lambda: plots.error_curves([1, 2], {"a": [[1.0, 2.0, 3.0]]}), r"'a' must be \[repeats, 2\], got .*\[1, 3\]"),
        (lambda: plots.error_curves([1], {"a": [[1.0]]}, {"b": 3}), r"parameters names \['b'\].*\['a'\]"),
    ],
)
def test_arrays_of_wrong_shape_raise(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_error_curves_draw_medians_and_ranges():
    errors = {"few": [[1.0, 0.5], [0.8, 0.1], [0.9, 0.3]], "many": [[1.5, 1.2]], "as few": [[0.1, 0.2]]}
    axes = plots.error_curves([10, 40], errors, {"few": 7, "as few": 7}, title="look", limit=3.0)
    lines = {line.get_label(): line for line in axes.lines}
    np.testing.assert_array_equal(lines["few: 7 parameters"].get_xydata(), [[10, 0.9], [40, 0.3]])
    np.testing.assert_array_equal(lines["many"].get_ydata(), [1.5, 1.2])
    band = axes.collections[0].get_datalim(axes.transData)
    assert (band.ymin, band.ymax) == (0.1, 1.0)
    bars = [line for line in axes.lines if list(line.get_xdata()) == [7, 7]]
    np.testing.assert_allclose([bar.get_ydata() for bar in bars], [[0, 0.15], [0.15, 0.3]])  # one on the other
    assert same_color(bars[0].get_color(), lines["few: 7 parameters"].get_color())
    assert (axes.get_xlabel(), axes.get_title("left")) == ("training examples   (bars: parameters)", "look")
    assert axes.get_ylim() == (0, 3)
    assert [text.get_text() for text in axes.get_xticklabels()] == ["10", "40"]


@pytest.mark.slow
def test_importing_plots_does_not_import_matplotlib_or_pandas():
    code = (
        "import sys, regard.plots, regard.data.tables; sys.exit('matplotlib' in sys.modules or 'pandas' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.slow
def test_the_example_draws_and_a_learned_bandwidth_helps(tmp_path, monkeypatch, capsys):
    out = tmp_path / "deep" / "curve.png"
    monkeypatch.setattr(sys, "argv", ["kernel_regression.py", str(out)])
    runpy.run_path(str(ROOT / "examples" / "kernel_regression.py"), run_name="__main__")
    errors = [float(line.rsplit(maxsplit=1)[1]) for line in capsys.readouterr().out.splitlines()[:3]]
    assert errors[0] > 1.5 * errors[1] > 1.5 * 2 * errors[2]
    assert matplotlib.image.imread(out).shape[1] > 1000


def test_weights_may_require_a_gradient():
    weights = torch.tensor([[0.9, 0.1], [0.2, 0.8]], requires_grad=True)
    assert plots.weight_map(weights).images[0].get_array().shape == (2, 2)
    assert plots.alignment_map(weights, ["a", "b"], ["c", "d"]).images[0].get_array()[1, 1] == pytest.approx(0.8)
    with pytest.raises(ValueError, match=r"weights must be \[queries, 2\], got shape \[0, 2\]"):
        plots.alignment_map(np.zeros((0, 2)), ["a", "b"], [])


def test_evidence_bars_show_rounded_values():
    axes = plots.evidence_bars(["1", "2"], [0.9, 0.1], rest=0.0, values=[442811.4, 0.00012345])
    assert [text.get_text() for text in axes.texts] == ["90.0%  →  442,811", "10.0%  →  0.0001234", "0.0%"]
    assert max(axes.get_xticks()) <= 1.0
    two = NadarayaWatson(bandwidth=1.0).fit([[0.0], [1.0]], [[1.0, 5.0], [2.0, 6.0]]).evidence([[0.0]])
    name = next(iter(two.table))
    assert two.plot().get_xlabel() == f"weight  →  the row's {name}"


def test_dollar_signs_in_labels_are_not_mathematics():
    marks = ["$$", "$a_$"]
    for axes in (
        plots.alignment_map(np.eye(2), marks, marks),
        plots.weight_map(np.eye(2), queries=np.array(marks), keys=np.array(marks)),
        plots.evidence_bars(marks, [0.5, 0.3], rest=0.2, values=marks),
    ):
        axes.figure.savefig(io.BytesIO())
        shown = [*axes.get_yticklabels(), *axes.texts]
        assert sum("$$" in label.get_text() for label in shown) >= 1


def photo(height=30, width=42):
    return np.random.default_rng(0).integers(60, 256, (height, width, 3), dtype=np.uint8)


def one_hot(rows, columns, *places):
    weights = np.zeros((len(places), rows, columns))
    for word, place in enumerate(places):
        weights[(word, *place)] = 1
    return weights


def test_the_image_comes_first_and_then_one_panel_per_word(tmp_path):
    axes = image_strip(photo(), ["a", "dog"], one_hot(5, 7, (0, 6), (4, 1)))
    assert [one.get_title() for one in axes] == ["", "a", "dog"]
    assert_allclose(axes[0].images[0].get_array(), photo() / 255)
    for one, (row, column) in zip(axes[1:], [(0, 6), (4, 1)], strict=True):
        shown, image = one.images[0].get_array(), photo() / 255
        bright = shown.sum(-1) / image.sum(-1)
        row_of, column_of = np.unravel_index(bright.argmax(), bright.shape)
        assert (row_of // 6, column_of // 6) == (row, column)
        assert_allclose(bright.max(), 1, atol=1e-6)
        far = bright[6 * ((row + 3) % 5) + 3, 6 * ((column + 3) % 7) + 3]
        assert far < 0.5
    axes[0].figure.savefig(tmp_path / "strip.png")
    assert (tmp_path / "strip.png").stat().st_size > 1000


def test_pixels_without_weight_are_grey():
    axes = image_strip(photo(), ["dog"], one_hot(5, 7, (0, 0)))
    corner = axes[1].images[0].get_array()[-1, -1]
    assert_allclose(corner, np.full(3, 0.3 * (photo()[-1, -1] / 255 @ [0.299, 0.587, 0.114])), rtol=1e-6)


def test_smoothing_keeps_even_weights_even_and_is_never_negative():
    assert_allclose(smooth(np.full((5, 7), 0.3), 31, 44), np.full((31, 44), 0.3))
    surface = smooth(one_hot(5, 7, (2, 3))[0], 50, 70)
    assert surface.min() >= 0
    assert np.unravel_index(surface.argmax(), surface.shape)[0] in (24, 25)
    assert_allclose(surface, surface[::-1, ::-1])
    assert np.abs(np.diff(surface[25])).max() < 0.2 * surface.max()  # smooth
    assert_allclose(interpolation(3, 8).sum(1), 1)
    assert_allclose(smooth(np.ones((1, 1)), 4, 5), np.ones((4, 5)))


@pytest.mark.slow
@pytest.mark.parametrize(("words", "rows", "across"), [(1, 1, 2), (6, 1, 7), (7, 2, 4), (20, 3, 7), (30, 5, 7)])
def test_many_words_are_in_several_rows(words, rows, across):
    axes = image_strip(photo(), ["word"] * words, np.ones((words, 3, 3)))
    assert len(axes) == words + 1 == len(axes[0].figure.axes)
    grid = axes[0].get_gridspec()
    assert (grid.nrows, grid.ncols) == (rows, across)


def test_a_contour_line_marks_half_the_largest_weight():
    axes = image_strip(photo(50, 70), ["dog", "everywhere"], np.stack([one_hot(5, 7, (2, 3))[0], np.ones((5, 7))]))
    (line,) = axes[1].collections
    (path,) = line.get_paths()
    surface = smooth(one_hot(5, 7, (2, 3))[0], 50, 70)
    for column, row in path.vertices:
        near = surface[round(row), round(column)] / surface.max()
        assert 0.4 < near < 0.6
    assert path.vertices[:, 0].min() < 34.5 < path.vertices[:, 0].max()
    assert not axes[0].collections
    assert not axes[2].collections  # equal weights have no contour


def test_marked_cells_have_a_cross():
    axes = image_strip(np.zeros((8, 8)), ["x", "y"], np.ones((2, 4, 2)), marks=[(0, 1), (3, 0)])
    assert_allclose([one.lines[0].get_xydata()[0] for one in axes[1:]], [(5.5, 0.5), (1.5, 6.5)])
    assert not axes[0].lines


def test_image_strip_draws_on_given_axes():
    from matplotlib.figure import Figure

    given = Figure().subplots(1, 3)
    axes = image_strip(photo(), ["a", "b"], np.ones((2, 3, 3)), axes=given)
    assert axes == list(given)
    with pytest.raises(ValueError, match="axes must be 2, for the image and each word, got 3"):
        image_strip(photo(), ["a"], np.ones((1, 3, 3)), axes=given)


def test_a_word_without_weight_is_dark():
    axes = image_strip(np.ones((4, 4)), ["a"], np.zeros((1, 2, 2)))
    assert_allclose(axes[1].images[0].get_array(), np.full((4, 4, 3), 0.3))
    assert_array_equal(axes[0].images[0].get_array(), np.ones((4, 4, 3)))


@pytest.mark.parametrize(
    ("image", "words", "weights", "message"),
    [
        (photo(), ["a"], np.ones((2, 3, 3)), r"weights must be \[1, rows, columns\], got shape \[2, 3, 3\]"),
        (photo(), ["a"], np.ones((1, 9)), r"got shape \[1, 9\]"),
        (photo(), ["a"], -np.ones((1, 3, 3)), "weights must be finite and 0 or more, got -1 to -1"),
        (photo(), ["a"], np.full((1, 3, 3), np.nan), "weights must be finite and 0 or more, got nan"),
        (
            photo() * 1.0,
            ["a"],
            np.ones((1, 3, 3)),
            r"image must be .* floats from 0 to 1, got float64 of shape \[30, 42, 3\]",
        ),
        (np.zeros((4, 4, 2), np.uint8), ["a"], np.ones((1, 3, 3)), r"got uint8 of shape \[4, 4, 2\]"),
    ],
)
def test_images_words_and_weights_of_wrong_shape_raise(image, words, weights, message):
    with pytest.raises(ValueError, match=message):
        image_strip(image, words, weights)


def test_marks_need_one_cell_per_word():
    with pytest.raises(ValueError, match=r"marks must be \[1, 2\], got shape \[2\]"):
        image_strip(photo(), ["a"], np.ones((1, 3, 3)), marks=[1, 2])


def test_dollar_signs_in_a_word_are_not_mathematics(tmp_path):
    axes = image_strip(photo(), ["$$"], one_hot(5, 7, (0, 0)))
    axes[0].figure.savefig(tmp_path / "strip.png")
    assert axes[1].get_title() == "$$"
