"""A strip of panels is bright where the weights are large, with a word over each panel."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from regard.plots.images import image_strip, interpolation, smooth


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
        (photo(), ["a"], np.ones((2, 3, 3)), r"weights must be \[1, rows, columns\], one per word, got \[2, 3, 3\]"),
        (photo(), ["a"], np.ones((1, 9)), r"got \[1, 9\]"),
        (photo(), ["a"], -np.ones((1, 3, 3)), "weights must be finite and 0 or more, got -1 to -1"),
        (photo(), ["a"], np.full((1, 3, 3), np.nan), "weights must be finite and 0 or more, got nan"),
        (photo() * 1.0, ["a"], np.ones((1, 3, 3)), r"image must be .* floats from 0 to 1, got float64 \[30, 42, 3\]"),
        (np.zeros((4, 4, 2), np.uint8), ["a"], np.ones((1, 3, 3)), r"got uint8 \[4, 4, 2\]"),
    ],
)
def test_arrays_of_wrong_shape_raise(image, words, weights, message):
    with pytest.raises(ValueError, match=message):
        image_strip(image, words, weights)


def test_marks_need_one_cell_per_word():
    with pytest.raises(ValueError, match=r"marks must be \[1, 2\], a row and column per word, got \[2\]"):
        image_strip(photo(), ["a"], np.ones((1, 3, 3)), marks=[1, 2])


def test_dollar_signs_in_a_word_are_not_mathematics(tmp_path):
    axes = image_strip(photo(), ["$$"], one_hot(5, 7, (0, 0)))
    axes[0].figure.savefig(tmp_path / "strip.png")
    assert axes[1].get_title() == "$$"
