"""Generated data with a known answer, for examples, tests and the tour.

    noisy_curve              a curve with noise:  y = 2 sin x + x^0.8 + ε
    planted_bags             bags whose targets come from a known attention model
    dates, held_out_dates    dates in words and in ISO 8601: "4 July 1976" → "1976-07-04"
    scenes                   images of two or three shapes, captioned: "a small red circle above a large blue square"

The same seed gives the same data.
"""

import datetime
import math
from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
_Booleans = NDArray[np.bool_]

_CURVE_END = 5.0
_SHARPNESS = 3.0
"""Log weight that an instance of softmax-planted bags gains per standard deviation along v."""

_FIRST_DAY, _DAYS = datetime.date(1900, 1, 1), 73_000
DATE_FORMATS = (
    "{0.day} {0:%B} {0.year}",
    "{0.day} {0:%b} {0.year}",
    "{0:%B} {0.day}, {0.year}",
    "{0:%b} {0.day}, {0.year}",
    "{0:%A}, {0.day} {0:%B} {0.year}",
    "{0:%A} {0:%B} {0.day} {0.year}",
    "{0.day}{th} of {0:%B} {0.year}",
    "the {0.day}{th} of {0:%B}, {0.year}",
    "{0:%B} {0.day}{th}, {0.year}",
    "{0:%d.%m.%Y}",
    "{0.day}. {0.month}. {0.year}",
    "{0.year}/{0.month}/{0.day}",
)
"""A date is 0; `th` is the ending of its day."""

PIXELS, _SQUARES, _SUBPIXELS = 64, 3, 4
"""Side of a scene in pixels, squares along a side of its board, and sample points along a side of a pixel."""
COLOURS = {"red": (214, 40, 40), "green": (40, 150, 60), "blue": (40, 80, 210), "yellow": (240, 200, 40)}
_SIZES = {"small": 5.5, "large": 9.0}
"""Half the height of an object, in pixels."""
_SIDES = {"left of": (0, 1), "right of": (0, -1), "above": (1, 0), "below": (-1, 0)}
"""Direction (down, right) from the first object to the other one, for each relation."""


def noisy_curve(n: int = 50, noise: float = 0.5, seed: int = 0) -> tuple[Floats, Floats, Callable[[ArrayLike], Floats]]:
    """Noisy samples of a curve: y = 2 sin x + x^0.8 + ε, with ε ~ N(0, noise²) and x uniform on [0, 5).

    Returns x [n], sorted, y [n], and the curve without noise. Average pooling misses the curve, kernel regression
    follows it, and a learned bandwidth follows it closely.

    >>> x, y, truth = noisy_curve()
    >>> x.shape, y.shape, round(float(truth(1.0)), 3)
    ((50,), (50,), 2.683)
    """
    if n < 1:
        raise ValueError(f"n must be at least 1, got {n}")
    _check_noise(noise)
    random = np.random.default_rng(seed)
    x = np.sort(random.uniform(0, _CURVE_END, n))
    return x, _true_curve(x) + noise * random.standard_normal(n), _true_curve


def _true_curve(x: ArrayLike) -> Floats:
    """2 sin x + x^0.8, for x ≥ 0."""
    x = np.asarray(x, dtype=np.float64)
    return np.asarray(2 * np.sin(x) + x**0.8)


def _check_noise(noise: float) -> None:
    """Raise unless the noise is a standard deviation."""
    if not (math.isfinite(noise) and noise >= 0):
        raise ValueError(f"noise must be a standard deviation, 0 or more, got {noise}")


class PlantedBags(NamedTuple):
    """Bags, their noisy targets, and the u and v that the targets come from.

    >>> planted_bags(60)._fields
    ('bags', 'y', 'u', 'v')
    """

    bags: Floats  # [count, size, features]
    y: Floats  # [count]
    u: Floats  # [features], scaled so that the formula gives y without noise
    v: Floats  # [features]


def planted_bags(
    count: int,
    features: int = 20,
    size: int = 5,
    attention: Literal["linear", "softmax"] = "linear",
    noise: float = 0.1,
    seed: int = 0,
) -> PlantedBags:
    """Bags X [size, features] of one size, with targets from a planted attention model.

        linear     y = tr(XᵀX vuᵀ) = Σᵢ (uᵀxᵢ)(vᵀxᵢ)             linear attention, a quadratic form of rank 2
        softmax    y = uᵀXᵀ softmax(sharpness Xv / ‖v‖)          softmax attention, not a quadratic form

    Instances xᵢ, u and v are drawn from N(0, I). The targets are y / sd(y) plus noise, so `noise` is in standard
    deviations of y.

    >>> import numpy as np
    >>> bags, y, u, v = planted_bags(7, features=3, noise=0.0)
    >>> bags.shape, np.allclose(y, [np.trace(X.T @ X @ np.outer(v, u)) for X in bags])
    ((7, 5, 3), True)
    """
    if min(count, features, size) < 1:
        raise ValueError(f"count, features and size must be at least 1, got {count}, {features} and {size}")
    if attention not in ("linear", "softmax"):
        raise ValueError(f"attention must be 'linear' or 'softmax', got {attention!r}")
    _check_noise(noise)
    random = np.random.default_rng(seed)
    u, v = random.normal(size=(2, features))
    bags = random.normal(size=(count, size, features))
    weight = bags @ v  # [count, size]
    if attention == "softmax":
        weight = np.exp(_SHARPNESS / np.linalg.norm(v) * (weight - weight.max(axis=1, keepdims=True)))
        weight /= weight.sum(axis=1, keepdims=True)
    y = (weight * (bags @ u)).sum(axis=1)
    spread = float(y.std()) or 1.0
    return PlantedBags(bags, y / spread + noise * random.normal(size=count), u / spread, v)


def dates(count: int, seed: int = 0) -> tuple[list[str], list[str]]:
    """Dates from 1900 to 2099 in words, and the same dates in ISO 8601: a translation with a known alignment.

    No date occurs twice. Lists of different seeds overlap only by chance; `held_out_dates` never overlap with them.

    >>> for words, iso in zip(*dates(3, seed=1)):
    ...     print(f"{words} → {iso}")
    15 Feb 2071 → 2071-02-15
    24th of July 2026 → 2026-07-24
    6 January 1942 → 1942-01-06
    """
    return _sample_dates(count, seed, held_out=False)


def held_out_dates(count: int, seed: int = 0) -> tuple[list[str], list[str]]:
    """Like `dates`, from every tenth day, which `dates` never returns.

    >>> _, iso = dates(2000)
    >>> set(held_out_dates(50)[1]) & set(iso)
    set()
    """
    return _sample_dates(count, seed, held_out=True)


def _sample_dates(count: int, seed: int, *, held_out: bool) -> tuple[list[str], list[str]]:
    """Dates of every tenth day, or of all other days, each in a random format."""
    random = np.random.default_rng(seed)
    days = np.arange(_DAYS)
    days = days[(days % 10 == 9) == held_out]
    if not 1 <= count <= len(days):
        raise ValueError(f"count must be between 1 and {len(days)}, the number of such days, got {count}")
    chosen = [_FIRST_DAY + datetime.timedelta(days=int(day)) for day in random.permutation(days)[:count]]
    formats = [DATE_FORMATS[index] for index in random.integers(len(DATE_FORMATS), size=count)]
    words = [format_date(day, form) for day, form in zip(chosen, formats, strict=True)]
    return words, [day.isoformat() for day in chosen]


def format_date(day: datetime.date, form: str) -> str:
    """A date in one of `DATE_FORMATS`."""
    th = "th" if 11 <= day.day <= 13 else {1: "st", 2: "nd", 3: "rd"}.get(day.day % 10, "th")
    return form.format(day, th=th)


_SHAPES: dict[str, Callable[[Floats, Floats], _Booleans]] = {
    "circle": lambda down, right: down**2 + right**2 <= 1,
    "square": lambda down, right: np.maximum(np.abs(down), np.abs(right)) <= 0.9,
    "triangle": lambda down, right: (down <= 0.9) & (down >= 2 * np.abs(right) - 0.9),
}
"""Which points (down, right) are in a shape, in coordinates from −1 to 1; all shapes look about as large."""


class Scenes(NamedTuple):
    """Images, their captions, and where in the image the objects of a caption are.

    >>> sample = scenes(1, seed=4)
    >>> words = sample.captions[0].split()
    >>> [words[noun] for noun in sample.nouns[0]], len(sample.boxes[0])
    (['circle', 'circle', 'square'], 3)
    >>> sample.cells(0, sample.nouns[0][0], grid=4).astype(int).tolist()  # where the first circle is
    [[0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 1]]
    """

    images: NDArray[np.uint8]  # [count, PIXELS, PIXELS, 3]
    captions: list[str]
    boxes: list[Floats]  # [objects, 4] each: left, top, right, bottom in pixels, in the order of the caption
    nouns: list[list[int]]  # for each object the index of the word that names its shape

    def cells(self, scene: int, word: int, grid: int) -> _Booleans:
        """Where the object is that a word names: [grid, grid], true for cells whose centre is in the object's box."""
        if word not in self.nouns[scene]:
            words = self.captions[scene].split()
            named = ", ".join(f"{index} ({words[index]})" for index in self.nouns[scene])
            raise ValueError(f"word {word} of scene {scene} names no object; the words that do are {named}")
        return cells_in_box(self.boxes[scene][self.nouns[scene].index(word)], grid)


def cells_in_box(box: ArrayLike, grid: int) -> _Booleans:
    """The cells of a grid × grid whose centre is in a box; if there is none, the cell nearest to the box's centre."""
    if grid < 1:
        raise ValueError(f"grid must be at least 1 cell wide, got {grid}")
    centre = (np.arange(grid) + 0.5) * PIXELS / grid

    def within(low: float, high: float) -> _Booleans:
        inside = (centre >= low) & (centre <= high)
        nearest = np.arange(grid) == np.abs(centre - (low + high) / 2).argmin()
        return inside if inside.any() else nearest

    left, top, right, bottom = np.asarray(box, dtype=np.float64)
    return within(top, bottom)[:, None] & within(left, right)[None, :]


def scenes(count: int, seed: int = 0) -> Scenes:
    """Images of two or three shapes, each with the one caption that follows from it.

        "a small red circle above a large blue square"
        "a large green triangle left of a small blue circle and below a large yellow square"

    An object stands in one of 3 × 3 squares, off its centre by a pixel or two. The rules of the caption:

    - an object is named by its size, colour and shape; no two objects of a scene have the same colour
    - objects are named in the order of `COLOURS`: red, green, blue, yellow
    - the first is related to each other one: left of or right of one in its row, above or below one in its column.
      Each other object is in one of these, and alone on its side

    >>> sample = scenes(2, seed=4)
    >>> sample.images.shape, sample.captions[1]
    ((2, 64, 64, 3), 'a large red triangle below a large yellow circle')
    """
    if count < 1:
        raise ValueError(f"count must be at least 1, got {count}")
    random = np.random.default_rng(seed)
    images, captions, boxes, nouns = zip(*(_sample_scene(random) for _ in range(count)), strict=True)
    return Scenes(np.stack(images), list(captions), list(boxes), list(nouns))


def _sample_scene(random: np.random.Generator) -> tuple[NDArray[np.uint8], str, Floats, list[int]]:
    """One image, its caption, the boxes of its objects, and the indices of the words that name them."""
    objects = int(random.integers(2, 4))
    colours = [tuple(COLOURS)[index] for index in sorted(random.permutation(len(COLOURS))[:objects])]
    first = random.integers(_SQUARES, size=2)
    free = [relation for relation, way in _SIDES.items() if _is_on_board(first + np.array(way))]
    relations = [free[index] for index in random.permutation(len(free))[: objects - 1]]
    canvas = np.full((PIXELS, PIXELS, 3), random.uniform(225, 250))
    words: list[str] = []
    boxes: list[list[float]] = []
    nouns: list[int] = []
    for colour, relation in zip(colours, ["", *relations], strict=True):
        size, shape = str(random.choice(list(_SIZES))), str(random.choice(list(_SHAPES)))
        square = first
        if relation:  # one square from the first object, or two if there is room
            way = np.array(_SIDES[relation])
            square = first + way * (2 if _is_on_board(first + 2 * way) and random.random() < 0.5 else 1)
        centre = (square + 0.5) * PIXELS / _SQUARES + random.uniform(-1.5, 1.5, size=2)
        _paint(canvas, shape, np.array(COLOURS[colour]) + random.uniform(-12, 12, 3), centre, _SIZES[size])
        conjunction = "and" if len(boxes) == 2 else ""
        words += f"{conjunction} {relation} a {size} {colour} {shape}".split()
        nouns.append(len(words) - 1)
        # centre is (down, right), a box is (left, top, right, bottom)
        boxes.append([*(centre[::-1] - _SIZES[size]), *(centre[::-1] + _SIZES[size])])
    noisy = canvas + random.normal(0, 4, canvas.shape)
    return noisy.round().clip(0, 255).astype(np.uint8), " ".join(words), np.array(boxes), nouns


def _is_on_board(square: NDArray[np.int64]) -> bool:
    """Whether a square (down, right) is on the board."""
    return bool(((square >= 0) & (square < _SQUARES)).all())


def _paint(canvas: Floats, shape: str, colour: Floats, centre: Floats, half: float) -> None:
    """Draw a shape on the canvas, in place and antialiased: a pixel takes the fraction of its points in the shape."""
    top, left = (int(start) for start in np.floor(centre - half).clip(0))
    window = canvas[top : top + int(2 * half) + 2, left : left + int(2 * half) + 2]

    def points(start: int, count: int, middle: float) -> Floats:
        """Sample points along a side of the window, in units of `half` from the centre."""
        return (start + (np.arange(count * _SUBPIXELS) + 0.5) / _SUBPIXELS - middle) / half

    height, width, _ = window.shape
    inside = _SHAPES[shape](points(top, height, centre[0])[:, None], points(left, width, centre[1])[None, :])
    # [height · subpixels, width · subpixels] → [height, subpixels, width, subpixels] → [height, width, 1]
    fraction = inside.reshape(height, _SUBPIXELS, width, _SUBPIXELS).mean((1, 3))[..., None]
    window += fraction * (colour - window)
