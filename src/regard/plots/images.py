"""Where on an image attention looks: a picture a word, bright where the weight is.

As in Xu et al. 2015, figure 2: the image, then for each word of its caption the same image with the word over it. What
is not looked at is dark and grey, and a line goes around what has half the largest weight or more: dark parts of a
photo stay dark in any light. Brightness and a line carry the weight, not hue, so every kind of eye sees the same.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from regard.plots.charts import INK, ORANGE, SKY

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Array = Any
ACROSS, PANEL = 7, 1.75
"""Pictures in a row at most, and how wide each is, in inches."""
DARK, HALF = 0.3, 0.5
"""How bright it stays where there is no weight, and where the line is drawn, as shares of the brightest."""
SOFT = 0.55
"""How far a cell shines, in cells: the standard deviation of a Gaussian."""
GREYS = np.array([0.299, 0.587, 0.114])


def image_strip(
    image: Array,
    words: Sequence[str],
    weights: Array,
    axes: "Sequence[Axes] | None" = None,
    marks: Array | None = None,
) -> "list[Axes]":
    """The image, and for each word where it looked: the axes, one more than there are words.

    image     [height, width, 3] or [height, width], uint8 or floats from 0 to 1
    words     what stands over each picture
    weights   [words, rows, columns]; the largest of each word is fully bright
    axes      to draw on, one more than words; else a figure of their own, with several rows where there are many
    marks     [words, 2] a row and column for each word, crossed: the cell that looks, where cells do

    >>> import numpy as np
    >>> image, weights = np.full((16, 16, 3), 0.8), np.eye(4).reshape(2, 2, 4) / 2
    >>> [axes.get_title() for axes in image_strip(image, ["a", "dog"], weights)]
    ['', 'a', 'dog']
    """
    image, weights = pixels(image), np.asarray(weights, dtype=float)
    if weights.ndim != 3 or len(weights) != len(words) or not all(weights.shape[1:]):
        raise ValueError(f"weights must be [{len(words)}, rows, columns] for the words, got {list(weights.shape)}")
    if not (np.isfinite(weights).all() and (weights >= 0).all()):
        raise ValueError(f"weights must be 0 or more, got {weights.min():g} to {weights.max():g}")
    if marks is not None and np.shape(marks) != (len(words), 2):
        raise ValueError(f"marks must be [{len(words)}, 2], a row and a column a word, got {list(np.shape(marks))}")
    axes = list(panels(len(words) + 1) if axes is None else axes)
    if len(axes) != len(words) + 1:
        raise ValueError(f"axes must be {len(words) + 1}, for the image and each word, got {len(axes)}")
    show(axes[0], image, "")
    for place, (word, weight) in enumerate(zip(words, weights, strict=True)):
        light = smooth(weight, image.shape[0], image.shape[1])
        light = light / (light.max() or 1.0)
        show(axes[place + 1], lit(image, light), word)
        if light.min() < HALF < light.max():
            axes[place + 1].contour(light, levels=[HALF], colors=[ORANGE], linewidths=1.2)
        if marks is not None:
            row, column = (np.asarray(marks[place]) + 0.5) / weight.shape * image.shape[:2] - 0.5
            axes[place + 1].plot(column, row, "X", color=SKY, markersize=10, markeredgecolor="white")
    return axes


def lit(image: Array, light: Array) -> Array:
    """An image that is bright, and has its colours, where the light [height, width] is 1."""
    grey = DARK * (image @ GREYS)[..., None]
    return grey + light[..., None] * (image - grey)


def smooth(weight: Array, height: int, width: int) -> Array:
    """Weights of cells as a surface over pixels, without steps: each pixel's mean of the cells, by nearness."""
    down, right = nearness(weight.shape[0], height), nearness(weight.shape[1], width)
    return down @ weight @ right.T


def nearness(cells: int, count: int) -> Array:
    """[count, cells]: what each cell in a row counts for, at each pixel in it; a pixel's add up to 1."""
    middle = (np.arange(count) + 0.5) * cells / count - 0.5
    near = np.exp(-0.5 * ((middle[:, None] - np.arange(cells)) / SOFT) ** 2)
    return near / near.sum(axis=1, keepdims=True)


def pixels(image: Array) -> Array:
    """Floats from 0 to 1, [height, width, 3]."""
    image = np.asarray(image)
    floats = image / 255.0 if image.dtype == np.uint8 else image.astype(float)
    floats = np.repeat(floats[..., None], 3, axis=-1) if floats.ndim == 2 else floats
    if floats.ndim != 3 or floats.shape[2] != 3 or not floats.size or not (floats.min() >= 0 and floats.max() <= 1):
        raise ValueError(
            "image must be [height, width, 3] or [height, width], uint8 or floats from 0 to 1,"
            f" got {image.dtype} {list(image.shape)}"
        )
    return floats


def panels(count: int) -> "list[Axes]":
    """So many axes on a figure of their own, in rows of about one length."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    rows = math.ceil(count / ACROSS)
    across = math.ceil(count / rows)
    close = ConstrainedLayoutEngine(w_pad=0.02, h_pad=0.03, wspace=0, hspace=0)
    figure = Figure(figsize=(PANEL * across, (PANEL + 0.3) * rows), layout=close, dpi=120)
    every = list(figure.subplots(rows, across, squeeze=False).flat)
    for spare in every[count:]:
        spare.remove()
    return every[:count]


def show(axes: "Axes", image: Array, word: str) -> None:
    """A picture with a word over it. Few pixels are drawn as squares, many as a photo."""
    axes.imshow(image, interpolation="nearest" if max(image.shape[:2]) < 32 else "antialiased", vmin=0, vmax=1)
    axes.set_title(word, fontsize=min(12.0, 150 / max(1, len(word))), color=INK, pad=3, parse_math=False)
    axes.set_axis_off()
