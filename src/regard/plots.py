"""Charts of what attention does: fits, weight maps, evidence, errors, and weights over an image.

Each function takes arrays, never models. It draws on the given `axes` or on a new figure, and returns the axes:
`axes.figure.savefig("fit.png")`. matplotlib is imported when a chart is drawn. pyplot is not used and no window is
opened, so a chart needs no display; in a notebook `axes.figure` shows it. The colours are those of Okabe and Ito, and
the colour maps have an even lightness, so that colour-blind readers see the same chart.
"""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from regard.checks import as_uint8

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

Floats = NDArray[np.float64]
_Data = tuple[ArrayLike, ArrayLike]
BLUE, _ORANGE, _GREEN, _PURPLE, _SKY, VERMILION = "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00"
CYCLE = (_ORANGE, _SKY, VERMILION, _GREEN, _PURPLE, BLUE)
GREY, _INK = "#999999", "#333333"
MARKERS = "osD^vP"
_EDGE = "#cccccc"
_TITLE_WIDTH = 5.4
"""Inches that a one-line title needs beside the labels of the rows."""
_TICKS = 6
"""Number of ticks on an axis with many labels."""
_PANELS_PER_ROW, _PANEL_WIDTH = 7, 1.75
"""The largest number of image panels in a row, and the width of each in inches."""
_DARK, _CONTOUR = 0.3, 0.5
"""Brightness where the weight is 0, and level of the contour line, as fractions of the maximum."""
SMOOTHING = 0.55
"""Standard deviation, in cells, of the Gaussian that smooths the weights over the pixels."""
_LUMA = np.array([0.299, 0.587, 0.114])


def fit_curve(
    x: ArrayLike,
    y: ArrayLike,
    grid: ArrayLike,
    predictions: Mapping[str, ArrayLike],
    truth: ArrayLike | None = None,
    spread: Mapping[str, ArrayLike] | None = None,
    axes: "Axes | None" = None,
) -> "Axes":
    """Fits over their training data.

    x, y         [n] the data
    grid         [m] where the fits are evaluated, in any order
    predictions  fits [m], by name
    truth        [m] the true function, if known
    spread       standard deviations [m] of fits, by name: drawn as a band of ± one

    >>> import numpy as np
    >>> x = np.linspace(0, 5, 40)
    >>> axes = fit_curve(x, np.sin(x), x, {"too flat": 0.5 * np.sin(x)}, truth=np.sin(x))
    >>> [text.get_text() for text in axes.get_legend().get_texts()]
    ['data', 'truth', 'too flat']
    """
    x, grid = _as_array("x", x, "n"), _as_array("grid", grid, "m")
    y = _as_array("y", y, len(x))
    axes = axes or new_axes(7, 4.5)
    order = np.argsort(grid, kind="stable")
    unknown = set(spread or {}) - set(predictions)
    if unknown:
        raise ValueError(f"spread names {sorted(unknown)}, which are not among the predictions {list(predictions)}")
    axes.scatter(x, y, s=22, color=GREY, edgecolors="white", linewidths=0.6, zorder=2, label="data")
    at = grid[order]
    if truth is not None:
        axes.plot(
            at,
            _as_array("truth", truth, len(grid))[order],
            color=_INK,
            linestyle=(0, (5, 2)),
            linewidth=1.4,
            zorder=3,
            label="truth",
        )
    for index, (name, fit) in enumerate(predictions.items()):
        colour, line = CYCLE[index % len(CYCLE)], _as_array(name, fit, len(grid))[order]
        axes.plot(at, line, color=colour, linewidth=2.2, zorder=4, label=name)
        if spread is not None and name in spread:
            band = _as_array(f"spread of {name}", spread[name], len(grid))[order]
            axes.fill_between(at, line - band, line + band, color=colour, alpha=0.18, linewidth=0, zorder=1)
    return _finish(axes, "x", "y")


def fit_band(
    grid: ArrayLike,
    prediction: ArrayLike,
    lower: ArrayLike,
    upper: ArrayLike,
    data: _Data | None = None,
    label: str = "95 % band",
    axes: "Axes | None" = None,
) -> "Axes":
    """A fit [m] over a grid [m], in any order, with a band about it, and the data (x [n], y [n]) if given.

    >>> axes = fit_band([0.0, 1.0], [1.0, 2.0], [0.0, 1.0], [2.0, 3.0], data=([0.5], [1.5]))
    >>> [text.get_text() for text in axes.get_legend().get_texts()]
    ['data', '95 % band', 'fit']
    """
    grid = _as_array("grid", grid, "m")
    order = np.argsort(grid, kind="stable")
    line, low, high = (_as_array("prediction and band", each, len(grid))[order] for each in (prediction, lower, upper))
    axes = axes or new_axes(7, 4.5)
    _scatter(axes, data)
    _shade(axes, grid[order], low, high, label, 0.22)
    axes.plot(grid[order], line, color=BLUE, linewidth=2.2, zorder=4, label="fit")
    return _finish(axes, "x", "y")


def quantile_fan(
    grid: ArrayLike, levels: ArrayLike, quantiles: ArrayLike, data: _Data | None = None, axes: "Axes | None" = None
) -> "Axes":
    """Quantiles [m, levels] over a grid [m]: the area between those as far from the middle, and the median as a line.

    >>> axes = quantile_fan([0.0, 1.0], [0.1, 0.5, 0.9], [[0.0, 1.0, 2.0], [1.0, 2.0, 5.0]])
    >>> [text.get_text() for text in axes.get_legend().get_texts()]
    ['10 % to 90 %', 'median']
    """
    grid, levels = _as_array("grid", grid, "m"), _as_array("levels", levels, "levels")
    quantiles = _as_array("quantiles", quantiles, len(grid), len(levels))
    across, along = np.argsort(levels), np.argsort(grid, kind="stable")
    levels, quantiles, at = levels[across], quantiles[along][:, across], grid[along]
    axes = axes or new_axes(7, 4.5)
    _scatter(axes, data)
    for index in range(pairs := len(levels) // 2):
        name = f"{100 * levels[index]:.3g} % to {100 * levels[-1 - index]:.3g} %"
        axes.fill_between(
            at,
            quantiles[:, index],
            quantiles[:, -1 - index],
            color=BLUE,
            alpha=0.14 + 0.12 * index,
            linewidth=0,
            zorder=3,
            label=name,
        )
    if len(levels) % 2:
        name = f"{100 * levels[pairs]:.3g} %".replace("50 %", "median")
        axes.plot(at, quantiles[:, pairs], color=BLUE, linewidth=2.2, zorder=4, label=name)
    return _finish(axes, "x", "y")


def density_curve(
    points: ArrayLike, density: ArrayLike, marks: Mapping[str, float] | None = None, axes: "Axes | None" = None
) -> "Axes":
    """A density [m] at points [m] in ascending order, with vertical lines at named numbers, such as the mean.

    >>> axes = density_curve([0.0, 1.0, 2.0], [0.0, 1.0, 0.0], marks={"mode": 1.0})
    >>> [text.get_text() for text in axes.get_legend().get_texts()]
    ['mode 1']
    """
    points, density = (_as_array("points and density", part, "m") for part in (points, density))
    axes = axes or new_axes(7, 3.5)
    _shade(axes, points, np.zeros(len(points)), density, None, 0.18)
    axes.plot(points, density, color=BLUE, linewidth=2.2)
    for index, (name, number) in enumerate((marks or {}).items()):
        axes.axvline(number, color=CYCLE[(index + 2) % 6], linewidth=1.4, label=f"{name} {number:.4g}")
    axes.set_ylim(bottom=0)
    return _finish(axes, "y", "density")


def _shade(axes: "Axes", x: Floats, low: Floats, high: Floats, label: str | None, alpha: float) -> None:
    axes.fill_between(x, low, high, color=BLUE, alpha=alpha, linewidth=0, zorder=3, label=label)


def _finish(axes: "Axes", x: str, y: str) -> "Axes":
    axes.set(xlabel=x, ylabel=y, xmargin=0.02)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, fontsize="small")
    return hide_frame(axes)


def _scatter(axes: "Axes", data: _Data | None) -> None:
    if data is not None:
        x, y = (_as_array("data", part, "n") for part in data)
        size = 22 if len(x) < 300 else 6
        axes.scatter(x, y, s=size, color=GREY, edgecolors="white", linewidths=0.02 * size, zorder=2, label="data")


def weight_map(
    weights: ArrayLike | Tensor,
    queries: ArrayLike | None = None,
    keys: ArrayLike | None = None,
    axes: "Axes | None" = None,
    title: str = "attention weights",
    largest: float | None = None,
) -> "Axes":
    """The weights [queries, keys] as a heat map: a row is a query, and large weights are dark.

    `queries` [q] and `keys` [k] sort the rows and columns, and label them. `largest` is the weight of the darkest
    colour, to compare two maps; the default is the largest weight.

    >>> import numpy as np
    >>> axes = weight_map([[0.9, 0.1], [0.2, 0.8]], queries=[5.0, 2.0], keys=[4.0, 3.0])
    >>> axes.images[0].get_array().tolist()  # rows and columns sorted
    [[0.8, 0.2], [0.1, 0.9]]
    """
    from matplotlib.ticker import MaxNLocator

    weights = _as_array("weights", weights, "queries", "keys")
    axes = axes or new_axes(5.5, 4.5)
    rows, row_names = _sort_by(queries, weights.shape[0], "queries")
    columns, column_names = _sort_by(keys, weights.shape[1], "keys")
    top = float(np.abs(weights).max()) if largest is None else largest
    # Weights of a local linear fit may be negative: then white is 0 and each sign has its own colour.
    signed = bool(weights.min() < 0)
    image = axes.imshow(
        weights[np.ix_(rows, columns)],
        cmap="PuOr_r" if signed else "Blues",
        vmin=-top if signed else 0.0,
        vmax=top or 1.0,
        aspect="auto",
        interpolation="nearest",
    )
    _label_ticks(axes.yaxis, row_names)
    _label_ticks(axes.xaxis, column_names)
    axes.set_title(title, loc="left")
    axes.set_xlabel("keys" if keys is None else "keys, sorted")
    axes.set_ylabel("queries" if queries is None else "queries, sorted")
    bar = axes.figure.colorbar(image, ax=axes, label="weight", pad=0.03)
    bar.locator = MaxNLocator(5)
    bar.outline.set_visible(False)
    axes.spines[:].set_color(_EDGE)
    return axes


def alignment_map(
    weights: ArrayLike | Tensor,
    keys: Sequence[str],
    queries: Sequence[str],
    axes: "Axes | None" = None,
    title: str = "",
) -> "Axes":
    """The weights [queries, keys] between tokens, with every row and column labelled.

    Keys are above the map, in reading order; queries from top to bottom.

    >>> axes = alignment_map([[0.9, 0.1], [0.2, 0.8]], keys=["ein", "Hund"], queries=["a", "dog"])
    >>> [label.get_text() for label in axes.get_xticklabels()]
    ['ein', 'Hund']
    """
    weights = _as_array("weights", weights, len(queries) or "queries", len(keys) or "keys")
    width = max(_TITLE_WIDTH, 1.6 + 0.3 * len(keys))
    axes = axes or new_axes(min(16, width), min(16, 1.2 + 0.28 * len(queries)))
    axes.imshow(weights, cmap="Blues", vmin=0.0, vmax=1.0, aspect="auto", interpolation="nearest")
    size = "small" if max(len(keys), len(queries)) <= 40 else "xx-small"
    rotation = 90 if max(map(len, keys)) > 1 else 0
    # parse_math=False here and below: a dollar sign in a user's text is not mathematics.
    axes.set_xticks(range(len(keys)), list(keys), rotation=rotation, fontsize=size, parse_math=False)
    axes.set_yticks(range(len(queries)), list(queries), fontsize=size, parse_math=False)
    axes.xaxis.tick_top()
    axes.xaxis.set_label_position("top")
    axes.tick_params(length=0)
    axes.set_title(title, loc="left")
    axes.spines[:].set_color(_EDGE)
    return axes


def evidence_bars(
    labels: Sequence[str],
    weights: ArrayLike,
    rest: float,
    values: Sequence[object] | NDArray[np.generic] | None = None,
    axes: "Axes | None" = None,
    noun: str = "row",
) -> "Axes":
    """The evidence of one prediction: a bar for each weight, and a grey bar for the rest.

    labels, weights   of the training rows, or of what `noun` says, largest first. Weights below 0, which a local
                      linear fit can give, have a colour of their own
    rest              the weight of all others
    values            the targets of the rows, written at the bars

    >>> axes = evidence_bars(["12", "7"], [0.5, 0.3], rest=0.2, values=[151.0, 75.0])
    >>> [text.get_text() for text in axes.texts]
    ['50.0%  →  151', '30.0%  →  75', '20.0%']
    """
    from matplotlib.ticker import PercentFormatter

    weights = _as_array("weights", weights, len(labels))
    if values is not None and len(values) != len(labels):
        raise ValueError(f"values must be [{len(labels)}], one per label, got {len(values)}")
    axes = axes or new_axes(6, 1.2 + 0.36 * (len(weights) + 1))
    sizes = np.append(weights, float(rest))
    colours = [*(BLUE if weight >= 0 else VERMILION for weight in weights), GREY]
    axes.barh(range(len(sizes)), sizes, color=colours, height=0.72)
    notes = [""] * len(weights) if values is None else [f"  →  {_as_text(value)}" for value in values]
    reach = max(float(np.abs(sizes).max()), 1e-300)
    for index, (size, note) in enumerate(zip(sizes, [*notes, ""], strict=True)):
        x = max(size, 0.0) + 0.015 * reach
        axes.text(x, index, f"{size:.1%}{note}", va="center", fontsize="small", color=_INK, parse_math=False)
    rows = [*(f"{noun} {label}" for label in labels), f"all other {noun}s"]
    axes.set_yticks(range(len(sizes)), rows, parse_math=False)
    axes.invert_yaxis()
    left, right = min(0.0, float(sizes.min())), max(0.0, float(sizes.max()))
    axes.set_xlim(left - 0.02 * reach if left < 0 else 0.0, right + 0.35 * reach)
    axes.set_xticks([tick for tick in axes.get_xticks() if left <= tick <= max(right, min(1.0, right + 0.35 * reach))])
    axes.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=None))
    axes.set_xlabel("weight" if values is None else f"weight  →  the {noun}'s target")
    if left < 0:
        axes.axvline(0, color=_INK, linewidth=0.8)
    axes.tick_params(axis="y", length=0)
    return hide_frame(axes)


def error_curves(
    counts: ArrayLike,
    errors: Mapping[str, ArrayLike],
    parameters: Mapping[str, int] | None = None,
    axes: "Axes | None" = None,
    title: str = "test error against the number of training examples",
    limit: float = 2.0,
) -> "Axes":
    """Test errors against the number of training examples: a line for the median of repeats, a band for their range.

    counts       [n] numbers of training examples
    errors       [repeats, n] by name, in standard deviations of the target: 1 is no better than predicting its mean
    parameters   the number of parameters of each model, by name: written in the legend, and drawn as a bar on the axis
    limit        top of the axis; larger errors are cut off

    >>> axes = error_curves([10, 100], {"small": [[0.9, 0.3], [0.7, 0.1]]}, parameters={"small": 20})
    >>> axes.get_legend().get_texts()[0].get_text(), axes.lines[1].get_ydata().tolist()
    ('small: 20 parameters', [0.8, 0.2])
    """
    from matplotlib.ticker import NullLocator, ScalarFormatter

    counts, sizes = _as_array("counts", counts, "n"), dict(parameters or {})
    axes = axes or new_axes(6.5, 4.5)
    unknown = set(sizes) - set(errors)
    if unknown:
        raise ValueError(f"parameters names {sorted(unknown)}, which are not among the errors {list(errors)}")
    axes.axhline(1, color=_INK, linestyle=(0, (5, 2)), linewidth=1.0, zorder=1)
    bars: list[int] = []
    for index, (name, values) in enumerate(errors.items()):
        repeats = _as_array(f"errors of {name!r}", values, "repeats", len(counts))
        colour, marker = CYCLE[index % len(CYCLE)], MARKERS[index % len(MARKERS)]
        label = f"{name}: {sizes[name]} parameters" if name in sizes else name
        axes.fill_between(counts, repeats.min(0), repeats.max(0), color=colour, alpha=0.15, linewidth=0, zorder=2)
        axes.plot(counts, np.median(repeats, axis=0), marker + "-", color=colour, label=label, linewidth=2, zorder=3)
        if name in sizes:
            size = sizes[name]
            low = 0.05 * limit * bars.count(size)  # on top of the bars of the same size
            high = low + 0.05 * limit
            axes.plot([size, size], [low, high], color=colour, linewidth=4, solid_capstyle="butt", zorder=4)
            bars.append(size)
    axes.set_xscale("log")
    axes.set_xticks(counts, [f"{count:g}" for count in counts])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(ScalarFormatter())
    axes.set_ylim(0, limit)
    note = "   (bars: parameters)" if bars else ""
    axes.set(xlabel=f"training examples{note}", ylabel="test error, in standard deviations\n(1: predicting the mean)")
    axes.set_title(title, loc="left")
    axes.legend(frameon=False, fontsize="small")
    return hide_frame(axes)


def image_strip(
    image: ArrayLike,
    words: Sequence[str],
    weights: ArrayLike,
    axes: "Sequence[Axes] | None" = None,
    marks: ArrayLike | None = None,
) -> "list[Axes]":
    """The image, and for each word the image lit by its weights. Returns the axes, one more than there are words.

    As in Xu et al. 2015, figure 2, the image is dark and grey where the weight is small. A contour line marks half the
    largest weight, because dark parts of a photo stay dark at any brightness.

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
    pixels = as_uint8(np.asarray(image)) / 255.0
    if pixels.ndim == 2:
        pixels = np.repeat(pixels[..., None], 3, axis=-1)  # [height, width] → [height, width, 3]
    weights = _as_array("weights", weights, len(words), "rows", "columns")
    if not (np.isfinite(weights).all() and (weights >= 0).all()):
        raise ValueError(f"weights must be finite and 0 or more, got {weights.min():g} to {weights.max():g}")
    centres = None if marks is None else _as_array("marks", marks, len(words), 2) + 0.5
    panels = list(_new_panels(len(words) + 1) if axes is None else axes)
    if len(panels) != len(words) + 1:
        raise ValueError(f"axes must be {len(words) + 1}, for the image and each word, got {len(panels)}")
    show(panels[0], pixels, "")
    for index, (panel, word, weight) in enumerate(zip(panels[1:], words, weights, strict=True)):
        brightness = smooth(weight, pixels.shape[0], pixels.shape[1])
        brightness = brightness / (brightness.max() or 1.0)
        grey = _DARK * (pixels @ _LUMA)[..., None]  # [height, width, 1]
        show(panel, grey + brightness[..., None] * (pixels - grey), word)
        if brightness.min() < _CONTOUR < brightness.max():
            panel.contour(brightness, levels=[_CONTOUR], colors=[_ORANGE], linewidths=1.2)
        if centres is not None:
            row, column = centres[index] / weight.shape * pixels.shape[:2] - 0.5
            panel.plot(column, row, "X", color=_SKY, markersize=10, markeredgecolor="white")
    return panels


def new_axes(width: float, height: float) -> "Axes":
    """Axes on a new figure of this size in inches, which pyplot does not know."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained", dpi=120).add_subplot()


def hide_frame(axes: "Axes") -> "Axes":
    """Hide the top and right sides of the frame."""
    axes.spines[["top", "right"]].set_visible(False)
    return axes


def _as_array(
    name: str, values: ArrayLike | Tensor, *shape: int | str, dtype: type | None = np.float64
) -> NDArray[Any]:
    """Values as an array of this shape, where a name stands for a size of at least 1.

    A column [n, 1] becomes [n], and a tensor may require a gradient.
    """
    array = np.asarray(values.detach().cpu() if isinstance(values, Tensor) else values, dtype=dtype)
    if len(shape) == 1 and array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    sizes = [max(1, size) if isinstance(must, str) else must for must, size in zip(shape, array.shape, strict=False)]
    if len(shape) != array.ndim or sizes != list(array.shape):
        raise ValueError(f"{name} must be [{', '.join(map(str, shape))}], got shape {list(array.shape)}")
    return array


def _sort_by(values: ArrayLike | None, count: int, name: str) -> tuple[NDArray[np.intp], NDArray[Any] | None]:
    """The order of rows or columns by their values, and the sorted values as labels."""
    if values is None:
        return np.arange(count), None
    labels = _as_array(name, values, count, dtype=None)
    order = np.argsort(labels, kind="stable")
    return order, labels[order]


def _label_ticks(axis: "Axis", labels: NDArray[Any] | None) -> None:
    """Ticks at round numbers if the sorted labels are numbers; else at all labels, or at some if there are many."""
    from matplotlib.ticker import MaxNLocator

    if labels is None:
        return
    count = len(labels)
    if np.issubdtype(labels.dtype, np.number) and count > 1:
        ticks = MaxNLocator(_TICKS, steps=[1, 2, 5, 10]).tick_values(labels[0], labels[-1])
        ticks = ticks[(ticks >= labels[0]) & (ticks <= labels[-1])]
        axis.set_ticks(np.interp(ticks, labels, np.arange(count)), [_as_text(tick) for tick in ticks])
        return
    chosen = np.arange(count) if count <= 2 * _TICKS else np.linspace(0, count - 1, _TICKS).round().astype(int)
    axis.set_ticks(chosen, [_as_text(label) for label in labels[chosen]], parse_math=False)


def _as_text(value: object) -> str:
    """A float with four digits, or with all digits before the point; anything else as `str` has it."""
    if not isinstance(value, float | np.floating):
        return str(value)
    return f"{value:,.0f}" if 9999.5 <= abs(float(value)) < 1e15 else f"{value:.4g}"


def smooth(weight: Floats, height: int, width: int) -> Floats:
    """Weights of cells [rows, columns] as a smooth surface [height, width]."""
    return interpolation(weight.shape[0], height) @ weight @ interpolation(weight.shape[1], width).T


def interpolation(cells: int, pixels: int) -> Floats:
    """[pixels, cells]: the weight of each cell at each pixel along one side; each pixel's weights add up to 1."""
    position = (np.arange(pixels) + 0.5) * cells / pixels - 0.5
    near = np.exp(-0.5 * ((position[:, None] - np.arange(cells)) / SMOOTHING) ** 2)
    return np.asarray(near / near.sum(axis=1, keepdims=True))


def _new_panels(count: int) -> "list[Axes]":
    """Axes on a new figure, in rows of about the same length."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    rows = math.ceil(count / _PANELS_PER_ROW)
    columns = math.ceil(count / rows)
    layout = ConstrainedLayoutEngine(w_pad=0.02, h_pad=0.03, wspace=0, hspace=0)
    figure = Figure(figsize=(_PANEL_WIDTH * columns, (_PANEL_WIDTH + 0.3) * rows), layout=layout, dpi=120)
    panels = list(figure.subplots(rows, columns, squeeze=False).flat)
    for unused in panels[count:]:
        unused.remove()
    return panels[:count]


def show(axes: "Axes", image: Floats, title: str) -> None:
    """An image under a title. A few pixels are drawn as squares, many are interpolated."""
    axes.imshow(image, interpolation="nearest" if max(image.shape[:2]) < 32 else "antialiased", vmin=0, vmax=1)
    axes.set_title(title, fontsize=min(12.0, 150 / max(1, len(title))), color=_INK, pad=3, parse_math=False)
    axes.set_axis_off()
