"""Pictures that only the tour needs: narrow and tall, so that a phone shows their letters at their size."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from numpy.typing import NDArray

from regard.plots import BLUE, VERMILION, alignment_map

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Array = NDArray[Any]
_WIDTH = 5.2
"""Inches."""


class Alignment(Protocol):
    """What each target token looked at."""

    @property
    def source(self) -> Sequence[str]: ...
    @property
    def target(self) -> Sequence[str]: ...
    @property
    def weight(self) -> Array: ...  # [target, source]


def tall_figure(height: float) -> "Figure":
    """A figure whose axes are below each other."""
    from matplotlib.figure import Figure

    return Figure(figsize=(_WIDTH, height), layout="constrained")


def draw_bags(bags: Sequence[tuple[Array, Array]]) -> "Figure":
    """A row for each bag: its digits [n, 64], and below each its weight, of [n], as a bar."""
    figure = tall_figure(0.95 * len(bags) + 0.4)
    wide = max(len(weights) for _, weights in bags)
    grid = figure.subplots(len(bags), wide, squeeze=False)
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


def draw_maps(maps: Sequence[tuple[str, Array, Sequence[str]]], height: float) -> "Figure":
    """Maps of pieces by pieces, two in a row, each a title, weights [n, n] and the pieces [n]."""
    figure = tall_figure(height)
    places = figure.subplots((len(maps) + 1) // 2, 2, squeeze=False).flat
    for axes, (title, weights, pieces) in zip(places, maps, strict=False):
        alignment_map(weights, pieces, pieces, axes)
        axes.set_title(title, loc="left", fontsize="medium")
        axes.set(xlabel="looked at", ylabel="looks")
    for axes in list(places):
        axes.set_axis_off()
    return figure


def draw_alignments(alignments: Mapping[str, Alignment]) -> "Figure":
    """Under each name an alignment of characters."""
    figure = tall_figure(0.3 + 3.15 * len(alignments))
    for axes, (name, one) in zip(
        figure.subplots(len(alignments), 1, squeeze=False)[:, 0], alignments.items(), strict=True
    ):
        alignment_map(one.weight, [character.replace(" ", "␣") for character in one.source], one.target, axes)
        axes.set_title(name, loc="left", fontsize="medium")
        axes.set(xlabel="looks at", ylabel="writes")
    return figure


def draw_cells(images: Sequence[Array], looks: Sequence[Sequence[tuple[tuple[int, int], Array]]]) -> "Figure":
    """A row for each image [h, w]: itself, then each cell (y, x) that looks in a frame, and its weights [h, w]."""
    from matplotlib.patches import Rectangle

    figure = tall_figure(1.35 * len(images) + 0.3)
    grid = figure.subplots(len(images), 1 + max(map(len, looks)), squeeze=False)
    for row, image, some in zip(grid, images, looks, strict=True):
        row[0].imshow(image, cmap="Greys")
        for axes, ((y, x), weights) in zip(row[1:], some, strict=True):
            axes.imshow(weights, cmap="Blues", vmin=0)
            axes.contour(image, levels=[0.5 * float(image.max())], colors="#666666", linewidths=0.8)
            axes.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, fill=False, edgecolor=VERMILION, linewidth=2))
        for axes in row:
            axes.set_xticks([])
            axes.set_yticks([])
    grid[0, 0].set_title("the digit", fontsize="medium")
    for number, axes in enumerate(grid[0, 1:], 1):
        axes.set_title(f"cell {number} looks", fontsize="medium")
    return figure


def draw_strips(image: Array, strips: dict[str, tuple[Sequence[str], Array]], across: int = 5) -> "Figure":
    """For each name a strip: the image, and for each of its words where it looked, `[words, rows, columns]`."""
    from regard.plots import image_strip

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
    figure = tall_figure(1.62 * len(images) + 0.9)
    grid = figure.subplots(len(images), 1 + len(sums), squeeze=False)
    for row, image, maps in zip(grid, images, zip(*sums.values(), strict=True), strict=True):
        row[0].imshow(image)
        high, wide = image.shape[:2]
        for axes, cells in zip(row[1:], maps, strict=True):
            shown = axes.imshow(cells, cmap="Blues", vmin=0, vmax=1, extent=(0, wide, high, 0))
            coloured = image.max(axis=2).astype(float) - image.min(axis=2)
            axes.contour(coloured, levels=[60.0], colors="#666666", linewidths=0.8)
        for axes in row:
            axes.set_xticks([])
            axes.set_yticks([])
    for axes, name in zip(grid[0], ("the scene", *sums), strict=True):
        axes.set_title(name, fontsize="medium")
    label = "weight of a cell, all words together; the term asks for 1"
    figure.colorbar(shown, ax=grid, location="bottom", aspect=50, extend="max", label=label)
    return figure
