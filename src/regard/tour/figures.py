"""Pictures that only the tour needs: narrow and tall, so that a phone shows their letters at their size."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from regard.plots import BLUE, VERMILION, alignment_map, image_strip

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Array = NDArray[Any]
_WIDTH = 5.2
"""Inches."""


def tall_figure(height: float) -> "Figure":
    """A figure whose axes are below each other."""
    from matplotlib.figure import Figure

    return Figure(figsize=(_WIDTH, height), layout="constrained")


def _image_grid(rows: int, titles: Sequence[str], height: float) -> "tuple[Figure, NDArray[Any]]":
    """A figure, and its axes [rows, columns] without ticks, with a title above each column."""
    figure = tall_figure(height)
    grid = figure.subplots(rows, len(titles), squeeze=False, subplot_kw={"xticks": [], "yticks": []})
    for axes, title in zip(grid[0], titles, strict=True):
        axes.set_title(title, fontsize="medium")
    return figure, grid


def draw_bags(bags: Sequence[tuple[Array, Array]]) -> "Figure":
    """A row for each bag: its digits [n, 64], and below each its weight, of [n], as a bar."""
    figure, grid = _image_grid(len(bags), [""] * max(len(weights) for _, weights in bags), 0.95 * len(bags) + 0.4)
    for row, (pixels, weights) in zip(grid, bags, strict=True):
        for axes in row:
            axes.set_axis_off()
        for axes, image, weight in zip(row, pixels.reshape(-1, 8, 8), weights, strict=False):
            axes.imshow(image, cmap="Greys", extent=(0, 8, 0, 8))
            axes.barh(-1.2, 8, height=1.2, color="#e8e8e8")
            axes.barh(-1.2, 8 * weight, height=1.2, color=BLUE)
            axes.text(4, -2.2, f"{weight:.0%}", ha="center", va="top", fontsize="small")
            axes.set(xlim=(0, 8), ylim=(-5, 8))
    figure.supxlabel("bars: the weight of each digit in its bag", fontsize="medium")
    return figure


def draw_maps(
    maps: Mapping[str, tuple[Array, Sequence[str], Sequence[str]]],
    height: float,
    columns: int = 2,
    labels: tuple[str, str] = ("looked at", "looks"),
) -> "Figure":
    """By title, maps of weights [n, m] with the tokens [m] of their columns and [n] of their rows."""
    figure = tall_figure(height)
    panels = figure.subplots(-(-len(maps) // columns), columns, squeeze=False).flat
    for axes, (title, (weights, keys, queries)) in zip(panels, maps.items(), strict=False):
        keys, queries = ([token.replace(" ", "␣") for token in tokens] for tokens in (keys, queries))
        alignment_map(weights, keys, queries, axes)
        axes.set_title(title, loc="left", fontsize="medium")
        axes.set(xlabel=labels[0], ylabel=labels[1])
    for axes in list(panels):
        axes.set_axis_off()
    return figure


def draw_cells(images: Sequence[Array], looks: Sequence[Sequence[tuple[tuple[int, int], Array]]]) -> "Figure":
    """A row for each image [h, w]: itself, then each cell (y, x) that looks in a frame, and its weights [h, w]."""
    from matplotlib.patches import Rectangle

    titles = ["the digit", *(f"cell {number} looks" for number in range(1, 1 + max(map(len, looks))))]
    figure, grid = _image_grid(len(images), titles, 1.35 * len(images) + 0.3)
    for row, image, some in zip(grid, images, looks, strict=True):
        row[0].imshow(image, cmap="Greys")
        for axes, ((y, x), weights) in zip(row[1:], some, strict=True):
            axes.imshow(weights, cmap="Blues", vmin=0)
            axes.contour(image, levels=[0.5 * float(image.max())], colors="#666666", linewidths=0.8)
            axes.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, fill=False, edgecolor=VERMILION, linewidth=2))
    return figure


def draw_strips(image: Array, strips: dict[str, tuple[Sequence[str], Array]], across: int = 5) -> "Figure":
    """For each name a strip: the image, and for each of its words where it looked, `[words, rows, columns]`."""
    rows = [-(-(len(words) + 1) // across) for words, _ in strips.values()]
    figure = tall_figure(1.3 * sum(rows) + 0.4 * len(rows))
    parts = figure.subfigures(len(rows), 1, height_ratios=rows, squeeze=False)[:, 0]
    for part, (name, (words, weights)), high in zip(parts, strips.items(), rows, strict=True):
        places = list(part.subplots(high, across, squeeze=False).flat)
        for spare in places[len(words) + 1 :]:
            spare.set_axis_off()
        image_strip(image, words, weights, places[: len(words) + 1])
        part.suptitle(f"{name} attention", x=0.01, ha="left", fontsize="large", fontweight="bold")
    return figure


def draw_coverage(images: Array, sums: dict[str, Sequence[Array]]) -> "Figure":
    """A row for each image: itself, and under each name the weight that its cells had in all, `[rows, columns]`."""
    figure, grid = _image_grid(len(images), ["the scene", *sums], 1.62 * len(images) + 0.9)
    for row, image, maps in zip(grid, images, zip(*sums.values(), strict=True), strict=True):
        row[0].imshow(image)
        high, wide = image.shape[:2]
        for axes, cells in zip(row[1:], maps, strict=True):
            shown = axes.imshow(cells, cmap="Blues", vmin=0, vmax=1, extent=(0, wide, high, 0))
            coloured = image.max(axis=2).astype(float) - image.min(axis=2)
            axes.contour(coloured, levels=[60.0], colors="#666666", linewidths=0.8)
    label = "weight of a cell, all words together; the term asks for 1"
    figure.colorbar(shown, ax=grid, location="bottom", aspect=50, extend="max", label=label)
    return figure
