"""A scene's sentence follows from its picture, and its boxes hold what the words name."""

import re

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from regard.data.samples.scenes import COLOURS, PIXELS, cells, scenes

OBJECT = r"a (small|large) (red|green|blue|yellow) (circle|square|triangle)"
RELATION = r"(left of|right of|above|below)"
SENTENCE = re.compile(rf"{OBJECT} {RELATION} {OBJECT}(?: and {RELATION} {OBJECT})?")


def coloured(image):
    """Which colour each pixel has, or −1 where it has none: the background, and edges."""
    away = np.linalg.norm(image[:, :, None] - np.array([*COLOURS.values()], dtype=float), axis=-1)
    return np.where(away.min(-1) < 60, away.argmin(-1), -1)


def said_of(image):
    """The sentence, from the pixels alone: the rule of the module, by another way."""
    found = []
    for number, colour in enumerate(COLOURS):
        rows, columns = np.nonzero(coloured(image) == number)
        if len(rows) < 20:  # an edge may look like another colour
            continue
        middle = np.array([rows.min() + rows.max(), columns.min() + columns.max()]) / 2
        away = np.median(image, (0, 1)) - np.median(image[rows, columns], 0)
        share = (np.median(image, (0, 1)) - image) @ away / (away @ away)  # of the colour in each pixel
        near = np.abs(np.indices(share.shape) - middle[:, None, None]).max(0) < 10
        share = np.where(near & (share > 0.1), share, 0)
        height, width = share.sum(0).max(), share.sum(1).max()
        filled = share.sum() / (height * width)  # 1 of a square, π/4 of a circle, ½ of a triangle
        shape = "triangle" if filled < 0.64 else "circle" if filled < 0.89 else "square"
        found.append((f"a {'small' if height < 14 else 'large'} {colour} {shape}", middle))
    (sentence, first), *others = found
    parts = []
    for name, middle in others:
        down, right = middle - first
        side = (
            ("above" if down > 0 else "below") if abs(down) > abs(right) else ("left of" if right > 0 else "right of")
        )
        parts.append(f"{side} {name}")
    return f"{sentence} {' and '.join(parts)}"


def test_the_sentence_follows_from_the_picture():
    made = scenes(200, seed=3)
    assert (made.images.shape, made.images.dtype) == ((200, PIXELS, PIXELS, 3), np.uint8)
    assert [said_of(image) for image in made.images] == made.captions
    assert all(SENTENCE.fullmatch(caption) for caption in made.captions)


def test_every_word_is_said_and_both_numbers_of_objects():
    made = scenes(300, seed=1)
    words = set(" ".join(made.captions).split())
    assert words >= {
        *COLOURS,
        "small",
        "large",
        "circle",
        "square",
        "triangle",
        "left",
        "right",
        "above",
        "below",
        "and",
    }
    assert 90 < sum(len(boxes) == 3 for boxes in made.boxes) < 210


def test_boxes_hold_their_object_and_nothing_else():
    made = scenes(100, seed=5)
    for image, caption, boxes, nouns in zip(*made, strict=True):
        words, colours = caption.split(), coloured(image)
        for box, noun in zip(boxes, nouns, strict=True):
            left, top, right, bottom = box
            assert words[noun] in ("circle", "square", "triangle")
            number = list(COLOURS).index(words[noun - 1])
            rows, columns = np.nonzero(colours == number)
            inside = (rows + 1 >= top) & (rows <= bottom) & (columns + 1 >= left) & (columns <= right)
            assert inside.mean() > 0.95
            assert inside.sum() > 0.28 * (right - left) * (bottom - top)
        assert len(nouns) == len(boxes)


def test_cells_of_a_word_are_those_with_their_middle_in_its_box():
    made = scenes(20, seed=2)
    for grid in (1, 7, 8, 13):
        side = PIXELS / grid
        for scene in range(20):
            for box, word in zip(made.boxes[scene], made.nouns[scene], strict=True):
                expected = np.zeros((grid, grid), bool)
                for row in range(grid):
                    for column in range(grid):
                        x, y = (column + 0.5) * side, (row + 0.5) * side
                        expected[row, column] = box[0] <= x <= box[2] and box[1] <= y <= box[3]
                got = made.cells(scene, word, grid)
                assert (got.shape, got.dtype) == ((grid, grid), bool)
                if expected.any():
                    assert_array_equal(got, expected)
                assert got.any()


def test_a_box_between_the_middles_is_in_one_cell():
    assert_array_equal(np.argwhere(cells([17, 1, 19, 3], 4)), [[0, 1]])


def test_a_word_that_names_nothing_is_refused():
    made = scenes(1, seed=4)
    message = r"word 0 of scene 0 names no object; the words that do are 3 \(circle\), 8 \(circle\), 15 \(square\)"
    with pytest.raises(ValueError, match=message):
        made.cells(0, 0, 8)
    with pytest.raises(ValueError, match="grid must be at least 1 cell wide, got 0"):
        made.cells(0, 3, 0)
    with pytest.raises(ValueError, match="count must be at least 1, got 0"):
        scenes(0)


def test_seeds_are_kept_and_others_give_other_scenes():
    assert_array_equal(scenes(5, seed=2).images, scenes(5, seed=2).images)
    assert_array_equal(scenes(3, seed=2).images, scenes(5, seed=2).images[:3])
    seen, held = scenes(200, seed=0).captions, scenes(200, seed=1).captions
    assert len(set(held) - set(seen)) > 100
