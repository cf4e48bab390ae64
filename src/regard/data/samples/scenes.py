"""Generated scenes: two or three shapes on a canvas, and the one sentence that is said of them.

    "a small red circle above a large blue square"
    "a large green triangle left of a small blue circle and below a large yellow square"

The sentence follows from the picture:

- an object is named by its size, its colour and its shape; no two objects of a scene have the same colour
- objects are named in the order of `COLOURS`: red before green before blue before yellow
- the first is set in relation to each other one: left of or right of what stands in its row, above or below what stands
  in its column. Each other object does stand in one of them, and alone on its side

so that whoever sees the objects can write the sentence, letter for letter. The canvas is a board of 3 × 3 places, and
an object stands in the middle of its place, but for a pixel or two.
"""

from typing import Any, NamedTuple

import numpy as np

Array = Any
PIXELS, PLACES, FINE = 64, 3, 4
"""The side of the canvas, the places in it, and the points in a pixel at which a shape's edge is looked at."""
COLOURS = {"red": (214, 40, 40), "green": (40, 150, 60), "blue": (40, 80, 210), "yellow": (240, 200, 40)}
SIZES = {"small": 5.5, "large": 9.0}
"""Half the height of an object, in pixels."""
SIDES = {"left of": (0, 1), "right of": (0, -1), "above": (1, 0), "below": (-1, 0)}
"""For each relation, which way the other one is: down, right."""


def circle(down: Array, right: Array) -> Array:
    """Points in it, from −1 to 1 both ways."""
    return down**2 + right**2 <= 1


def square(down: Array, right: Array) -> Array:
    """Points in it; as large to the eye as the circle."""
    return np.maximum(np.abs(down), np.abs(right)) <= 0.9


def triangle(down: Array, right: Array) -> Array:
    """Points in it; it stands on a side."""
    return (down <= 0.9) & (down >= 2 * np.abs(right) - 0.9)


SHAPES = {"circle": circle, "square": square, "triangle": triangle}


class Scenes(NamedTuple):
    """Pictures, what is said of them, and where that is.

    >>> found = scenes(1, seed=4)
    >>> words = found.captions[0].split()
    >>> [words[noun] for noun in found.nouns[0]], len(found.boxes[0])
    (['circle', 'circle', 'square'], 3)
    >>> found.cells(0, found.nouns[0][0], grid=4).astype(int).tolist()  # where the first of them is
    [[0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 1]]
    """

    images: Array  # uint8 [count, PIXELS, PIXELS, 3]
    captions: list[str]
    boxes: list[Array]  # [objects, 4] each: left, top, right, bottom, in pixels, in the order of their naming
    nouns: list[list[int]]  # for each object, which word of the caption is its shape

    def cells(self, scene: int, word: int, grid: int) -> Array:
        """Where on a grid the object is that a word names: bool [grid, grid], the cells whose middle is in its box."""
        if word not in self.nouns[scene]:
            said = self.captions[scene].split()
            named = ", ".join(f"{place} ({said[place]})" for place in self.nouns[scene])
            raise ValueError(f"word {word} of scene {scene} names no object; the words that do are {named}")
        return cells(self.boxes[scene][self.nouns[scene].index(word)], grid)


def cells(box: Array, grid: int) -> Array:
    """The cells of a grid × grid whose middle is in a box; where there is none, that which the box's middle is in.

    >>> cells([0, 16, 32, 48], 4).astype(int).tolist()
    [[0, 0, 0, 0], [1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 0, 0]]
    """
    if grid < 1:
        raise ValueError(f"grid must be at least 1 cell wide, got {grid}")
    middle = (np.arange(grid) + 0.5) * PIXELS / grid

    def within(low: float, high: float) -> Array:
        inside = (middle >= low) & (middle <= high)
        nearest = np.arange(grid) == np.abs(middle - (low + high) / 2).argmin()
        return inside if inside.any() else nearest

    left, top, right, bottom = box
    return within(top, bottom)[:, None] & within(left, right)[None, :]


def scenes(count: int, seed: int = 0) -> Scenes:
    """So many scenes; another seed gives others.

    >>> found = scenes(2, seed=4)
    >>> found.images.shape, found.captions[1]
    ((2, 64, 64, 3), 'a large red triangle below a large yellow circle')
    """
    if count < 1:
        raise ValueError(f"count must be at least 1, got {count}")
    drawn = np.random.default_rng(seed)
    parts = [scene(drawn) for _ in range(count)]
    images, captions, boxes, nouns = map(list, zip(*parts, strict=True))
    return Scenes(np.stack(images), captions, boxes, nouns)


def scene(drawn: np.random.Generator) -> tuple[Array, str, Array, list[int]]:
    """One picture, its sentence, the objects' boxes, and which words name them."""
    objects = int(drawn.integers(2, 4))
    colours = [tuple(COLOURS)[which] for which in sorted(drawn.permutation(len(COLOURS))[:objects])]
    first = drawn.integers(PLACES, size=2)
    free = [relation for relation, way in SIDES.items() if on_board(first + way)]
    relations = [free[which] for which in drawn.permutation(len(free))[: objects - 1]]
    canvas = np.full((PIXELS, PIXELS, 3), drawn.uniform(225, 250))
    words: list[str] = []
    boxes: list[list[float]] = []
    nouns: list[int] = []
    for colour, relation in zip(colours, ["", *relations], strict=True):
        size, shape = str(drawn.choice(list(SIZES))), str(drawn.choice(list(SHAPES)))
        place = first + steps(drawn, first, relation) if relation else first
        middle = (place + 0.5) * PIXELS / PLACES + drawn.uniform(-1.5, 1.5, size=2)
        paint(canvas, shape, np.array(COLOURS[colour]) + drawn.uniform(-12, 12, 3), middle, SIZES[size])
        joined = "and" if len(boxes) == 2 else ""
        words += f"{joined} {relation} a {size} {colour} {shape}".split()
        nouns.append(len(words) - 1)
        boxes.append([*(middle[::-1] - SIZES[size]), *(middle[::-1] + SIZES[size])])
    noisy = canvas + drawn.normal(0, 4, canvas.shape)
    return noisy.round().clip(0, 255).astype(np.uint8), " ".join(words), np.array(boxes), nouns


def on_board(place: Array) -> bool:
    """Whether there is such a place."""
    return bool(((place >= 0) & (place < PLACES)).all())


def steps(drawn: np.random.Generator, first: Array, relation: str) -> Array:
    """From the first object to one on that side, next to it or, if there is room, one further."""
    way = np.array(SIDES[relation])
    far = 2 if on_board(first + 2 * way) and drawn.random() < 0.5 else 1
    return far * way


def paint(canvas: Array, shape: str, colour: Array, middle: Array, half: float) -> None:
    """Draws over the canvas, with smooth edges: a pixel has as much of the colour as it has points in the shape."""
    top, left = (int(start) for start in np.floor(middle - half).clip(0))
    window = canvas[top : top + int(2 * half) + 2, left : left + int(2 * half) + 2]

    def points(start: int, count: int, centre: float) -> Array:
        return (start + (np.arange(count * FINE) + 0.5) / FINE - centre) / half

    height, width, _ = window.shape
    inside = SHAPES[shape](points(top, height, middle[0])[:, None], points(left, width, middle[1])[None, :])
    share = inside.reshape(height, FINE, width, FINE).mean((1, 3))[..., None]
    window += share * (colour - window)
