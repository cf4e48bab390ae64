"""Generated data: targets follow from the formulas, dates match their ISO form, captions follow from the images."""

import datetime
import re

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from regard.data.samples import (
    COLOURS,
    DATE_FORMATS,
    PIXELS,
    cells_in_box,
    dates,
    format_date,
    held_out_dates,
    noisy_curve,
    planted_bags,
    scenes,
)

OBJECT = r"a (small|large) (red|green|blue|yellow) (circle|square|triangle)"
RELATION = r"(left of|right of|above|below)"
SENTENCE = re.compile(rf"{OBJECT} {RELATION} {OBJECT}(?: and {RELATION} {OBJECT})?")


def test_curve_is_its_formula_plus_noise():
    x, y, truth = noisy_curve(n=20_000, noise=0.5, seed=3)
    assert (np.diff(x) >= 0).all()
    assert x[0] >= 0
    assert x[-1] < 5
    assert_allclose(truth(x), 2 * np.sin(x) + x**0.8)
    error = y - truth(x)
    assert abs(error.mean()) < 0.02
    assert abs(error.std() - 0.5) < 0.02
    assert abs(np.corrcoef(error, x)[0, 1]) < 0.03
    assert_array_equal(noisy_curve(seed=3)[1], noisy_curve(seed=3)[1])
    assert (noisy_curve(seed=3)[0] != noisy_curve(seed=4)[0]).all()
    assert_array_equal(noisy_curve(noise=0)[1], truth(noisy_curve(noise=0)[0]))


@pytest.mark.parametrize("attention", ["linear", "softmax"])
def test_planted_targets_are_the_formula(attention):
    bags, y, u, v = planted_bags(11, features=3, size=7, attention=attention, noise=0.0, seed=5)
    assert bags.shape == (11, 7, 3)
    for bag, target in zip(bags, y, strict=True):
        weight = bag @ v
        if attention == "softmax":
            weight = np.exp(3.0 * weight / np.linalg.norm(v))
            weight = weight / weight.sum()
        assert_allclose(sum(a * (u @ x) for a, x in zip(weight, bag, strict=True)), target, rtol=1e-10)
    assert_allclose(y.std(), 1)


def test_planted_noise_is_in_standard_deviations_and_follows_the_seed():
    clear, noisy = planted_bags(4000, noise=0.0, seed=2), planted_bags(4000, noise=0.3, seed=2)
    assert_array_equal(clear.bags, noisy.bags)
    assert_allclose((noisy.y - clear.y).std(), 0.3, rtol=0.05)
    assert_array_equal(planted_bags(9, seed=2).y, planted_bags(9, seed=2).y)
    assert np.abs(planted_bags(9, seed=2).y - planted_bags(9, seed=3).y).max() > 0.1


def test_one_bag_of_one_instance_and_one_feature():
    assert planted_bags(1, features=1, size=1, noise=0.0).y.shape == (1,)


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        (lambda: noisy_curve(n=0), "n must be at least 1, got 0"),
        (lambda: noisy_curve(noise=-1), "noise must be a standard deviation, 0 or more, got -1"),
        (lambda: planted_bags(0), "must be at least 1, got 0, 20 and 5"),
        (lambda: planted_bags(3, attention="hard"), "attention must be 'linear' or 'softmax', got 'hard'"),
        (lambda: planted_bags(3, noise=-1.0), "noise must be a standard deviation, 0 or more, got -1.0"),
        (lambda: planted_bags(3, noise=float("nan")), "noise must be .* got nan"),
        (lambda: held_out_dates(7301), "count must be between 1 and 7300, the number of such days, got 7301"),
        (lambda: scenes(0), "count must be at least 1, got 0"),
        (lambda: scenes(1, seed=4).cells(0, 3, 0), "grid must be at least 1 cell wide, got 0"),
        (
            lambda: scenes(1, seed=4).cells(0, 0, 8),
            r"word 0 of scene 0 names no object; the words that do are 3 \(circle\), 8 \(circle\), 15 \(square\)",
        ),
    ],
)
def test_bad_arguments_raise(sample, message):
    with pytest.raises(ValueError, match=message):
        sample()


def test_dates_follow_the_seed_and_occur_once():
    assert dates(50, seed=3) == dates(50, seed=3)
    assert dates(50, seed=3) != dates(50, seed=4)
    assert len(set(dates(5000)[1])) == 5000


@pytest.mark.slow
def test_held_out_dates_never_overlap_with_dates():
    assert not set(dates(60_000)[1]) & set(held_out_dates(7000)[1])


def test_the_words_of_a_date_are_its_iso_date_in_one_of_the_formats():
    for words, iso in zip(*dates(500), strict=True):
        day = datetime.date.fromisoformat(iso)
        assert words in {format_date(day, form) for form in DATE_FORMATS}
        assert str(day.year) in words


@pytest.mark.parametrize(("day", "words"), [(1, "1st"), (2, "2nd"), (3, "3rd"), (4, "4th"), (11, "11th"), (22, "22nd")])
def test_ordinals(day, words):
    assert format_date(datetime.date(2000, 1, day), "{0.day}{th}") == words


def colour_indices(image):
    """The index of each pixel's colour, or −1 for the background and for edges."""
    distance = np.linalg.norm(image[:, :, None] - np.array([*COLOURS.values()], dtype=float), axis=-1)
    return np.where(distance.min(-1) < 60, distance.argmin(-1), -1)


def caption_from_pixels(image):
    """The caption by its rules, computed in another way: from the pixels alone."""
    objects = []
    for index, colour in enumerate(COLOURS):
        rows, columns = np.nonzero(colour_indices(image) == index)
        if len(rows) < 20:  # an edge may look like another colour
            continue
        centre = np.array([rows.min() + rows.max(), columns.min() + columns.max()]) / 2
        contrast = np.median(image, (0, 1)) - np.median(image[rows, columns], 0)
        fraction = (np.median(image, (0, 1)) - image) @ contrast / (contrast @ contrast)  # of the colour in each pixel
        near = np.abs(np.indices(fraction.shape) - centre[:, None, None]).max(0) < 10
        fraction = np.where(near & (fraction > 0.1), fraction, 0)
        height, width = fraction.sum(0).max(), fraction.sum(1).max()
        area = fraction.sum() / (height * width)  # 1 for a square, π/4 for a circle, ½ for a triangle
        shape = "triangle" if area < 0.64 else "circle" if area < 0.89 else "square"
        objects.append((f"a {'small' if height < 14 else 'large'} {colour} {shape}", centre))
    (sentence, first), *others = objects
    parts = []
    for name, centre in others:
        down, right = centre - first
        side = (
            ("above" if down > 0 else "below") if abs(down) > abs(right) else ("left of" if right > 0 else "right of")
        )
        parts.append(f"{side} {name}")
    return f"{sentence} {' and '.join(parts)}"


def test_the_caption_follows_from_the_image():
    sample = scenes(200, seed=3)
    assert (sample.images.shape, sample.images.dtype) == ((200, PIXELS, PIXELS, 3), np.uint8)
    assert [caption_from_pixels(image) for image in sample.images] == sample.captions
    assert all(SENTENCE.fullmatch(caption) for caption in sample.captions)


def test_every_word_and_both_numbers_of_objects_occur():
    sample = scenes(300, seed=1)
    words = set(" ".join(sample.captions).split())
    sizes_and_shapes = {"small", "large", "circle", "square", "triangle"}
    assert words >= {*COLOURS, *sizes_and_shapes, "left", "right", "above", "below", "and"}
    assert 90 < sum(len(boxes) == 3 for boxes in sample.boxes) < 210


def test_boxes_contain_their_object_and_nothing_else():
    for image, caption, boxes, nouns in zip(*scenes(100, seed=5), strict=True):
        words, colours = caption.split(), colour_indices(image)
        for box, noun in zip(boxes, nouns, strict=True):
            left, top, right, bottom = box
            assert words[noun] in ("circle", "square", "triangle")
            rows, columns = np.nonzero(colours == list(COLOURS).index(words[noun - 1]))
            inside = (rows + 1 >= top) & (rows <= bottom) & (columns + 1 >= left) & (columns <= right)
            assert inside.mean() > 0.95
            assert inside.sum() > 0.28 * (right - left) * (bottom - top)
        assert len(nouns) == len(boxes)


def test_cells_of_a_word_have_their_centre_in_its_box():
    sample = scenes(20, seed=2)
    for grid in (1, 7, 8, 13):
        side = PIXELS / grid
        for scene in range(20):
            for box, word in zip(sample.boxes[scene], sample.nouns[scene], strict=True):
                expected = np.zeros((grid, grid), bool)
                for row in range(grid):
                    for column in range(grid):
                        x, y = (column + 0.5) * side, (row + 0.5) * side
                        expected[row, column] = box[0] <= x <= box[2] and box[1] <= y <= box[3]
                cells = sample.cells(scene, word, grid)
                assert (cells.shape, cells.dtype) == ((grid, grid), bool)
                if expected.any():
                    assert_array_equal(cells, expected)
                assert cells.any()


def test_a_box_between_the_centres_is_in_one_cell():
    assert_array_equal(np.argwhere(cells_in_box([17, 1, 19, 3], 4)), [[0, 1]])


def test_scenes_follow_the_seed():
    assert_array_equal(scenes(5, seed=2).images, scenes(5, seed=2).images)
    assert_array_equal(scenes(3, seed=2).images, scenes(5, seed=2).images[:3])
    one, other = scenes(200, seed=0).captions, scenes(200, seed=1).captions
    assert len(set(other) - set(one)) > 100
