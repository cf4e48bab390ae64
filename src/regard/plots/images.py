"""Attention weights over an image: one panel per word, bright where its weights are large.

As in Xu et al. 2015, figure 2: first the image, then for each word of its caption the same image under that word. Where
the weight is small the image is dark and grey. A contour line marks half the largest weight, because dark parts of a
photo stay dark at any brightness. Brightness and the line show the weight, not hue, so colour-blind readers see it too.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from regard.plots.charts import INK, ORANGE, SKY

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Floats = NDArray[np.float64]
PANELS_PER_ROW, PANEL_WIDTH = 7, 1.75
"""At most so many panels in a row, each so many inches wide."""
DARK, CONTOUR = 0.3, 0.5
"""Brightness where the weight is 0, and level of the contour line, as fractions of the maximum."""
SMOOTHING = 0.55
"""Standard deviation, in cells, of the Gaussian that smooths the weights over the pixels."""
LUMA = np.array([0.299, 0.587, 0.114])


def image_strip(
    image: ArrayLike,
    words: Sequence[str],
    weights: ArrayLike,
    axes: "Sequence[Axes] | None" = None,
    marks: ArrayLike | None = None,
) -> "list[Axes]":
    """The image, and for each word the image lit by its weights. Returns the axes, one more than there are words.

    image     [height, width, 3] or [height, width], uint8 or floats from 0 to 1
    words     the title of each panel
    weights   [words, rows, columns]; the largest weight of each word has full brightness
    axes      where to draw, one more than words; the default is a new figure, with as many rows as needed
    marks     [words, 2] a cell (row, column) for each word, drawn as a cross: the cell whose weights are shown

    >>> import numpy as np
    >>> image, weights = np.full((16, 16, 3), 0.8), np.eye(4).reshape(2, 2, 4) / 2
    >>> [axes.get_title() for axes in image_strip(image, ["a", "dog"], weights)]
    ['', 'a', 'dog']
    """
    pixels, weights = as_pixels(image), np.asarray(weights, dtype=np.float64)
    if weights.ndim != 3 or len(weights) != len(words) or not all(weights.shape[1:]):
        raise ValueError(f"weights must be [{len(words)}, rows, columns], one per word, got {list(weights.shape)}")
    if not (np.isfinite(weights).all() and (weights >= 0).all()):
        raise ValueError(f"weights must be finite and 0 or more, got {weights.min():g} to {weights.max():g}")
    if marks is not None and np.shape(marks) != (len(words), 2):
        raise ValueError(f"marks must be [{len(words)}, 2], a row and column per word, got {list(np.shape(marks))}")
    panels = list(new_panels(len(words) + 1) if axes is None else axes)
    if len(panels) != len(words) + 1:
        raise ValueError(f"axes must be {len(words) + 1}, for the image and each word, got {len(panels)}")
    show(panels[0], pixels, "")
    for index, (panel, word, weight) in enumerate(zip(panels[1:], words, weights, strict=True)):
        brightness = smooth(weight, pixels.shape[0], pixels.shape[1])
        brightness = brightness / (brightness.max() or 1.0)
        show(panel, shade(pixels, brightness), word)
        if brightness.min() < CONTOUR < brightness.max():
            panel.contour(brightness, levels=[CONTOUR], colors=[ORANGE], linewidths=1.2)
        if marks is not None:
            row, column = (np.asarray(marks)[index] + 0.5) / weight.shape * pixels.shape[:2] - 0.5
            panel.plot(column, row, "X", color=SKY, markersize=10, markeredgecolor="white")
    return panels


def shade(image: Floats, brightness: Floats) -> Floats:
    """The image, in colour where brightness [height, width] is 1, and dark and grey where it is 0."""
    grey: Floats = DARK * (image @ LUMA)[..., None]
    return grey + brightness[..., None] * (image - grey)


def smooth(weight: Floats, height: int, width: int) -> Floats:
    """Weights of cells [rows, columns] as a smooth surface [height, width]."""
    return interpolation(weight.shape[0], height) @ weight @ interpolation(weight.shape[1], width).T


def interpolation(cells: int, pixels: int) -> Floats:
    """[pixels, cells]: the weight of each cell at each pixel along one side; each pixel's weights add up to 1."""
    position = (np.arange(pixels) + 0.5) * cells / pixels - 0.5
    near = np.exp(-0.5 * ((position[:, None] - np.arange(cells)) / SMOOTHING) ** 2)
    return np.asarray(near / near.sum(axis=1, keepdims=True))


def as_pixels(image: ArrayLike) -> Floats:
    """Floats from 0 to 1, [height, width, 3]."""
    array = np.asarray(image)
    floats = array / 255.0 if array.dtype == np.uint8 else array.astype(np.float64)
    # [height, width] → [height, width, 3]
    floats = np.repeat(floats[..., None], 3, axis=-1) if floats.ndim == 2 else floats
    if floats.ndim != 3 or floats.shape[2] != 3 or not floats.size or not (floats.min() >= 0 and floats.max() <= 1):
        raise ValueError(
            "image must be [height, width, 3] or [height, width], uint8 or floats from 0 to 1,"
            f" got {array.dtype} {list(array.shape)}"
        )
    return floats


def new_panels(count: int) -> "list[Axes]":
    """Axes on a new figure, in rows of about the same length."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    rows = math.ceil(count / PANELS_PER_ROW)
    columns = math.ceil(count / rows)
    layout = ConstrainedLayoutEngine(w_pad=0.02, h_pad=0.03, wspace=0, hspace=0)
    figure = Figure(figsize=(PANEL_WIDTH * columns, (PANEL_WIDTH + 0.3) * rows), layout=layout, dpi=120)
    panels = list(figure.subplots(rows, columns, squeeze=False).flat)
    for unused in panels[count:]:
        unused.remove()
    return panels[:count]


def show(axes: "Axes", image: Floats, title: str) -> None:
    """An image under a title. A few pixels are drawn as squares, many are interpolated."""
    axes.imshow(image, interpolation="nearest" if max(image.shape[:2]) < 32 else "antialiased", vmin=0, vmax=1)
    axes.set_title(title, fontsize=min(12.0, 150 / max(1, len(title))), color=INK, pad=3, parse_math=False)
    axes.set_axis_off()
