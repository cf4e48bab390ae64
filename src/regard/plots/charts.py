"""Pictures of what attention does: fits, weight maps, evidence, errors.

Each function takes arrays, never models, draws on the `axes` given or on a figure of its own, and returns the
axes: `axes.figure.savefig("fit.png")`. No window is opened and pyplot is left alone, so it works without a
display, and in a notebook `axes.figure` shows the picture. Colours are Okabe and Ito's, and the maps' are even in
lightness: readers who confuse red and green see the same picture.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Array = Any
BLUE, ORANGE, GREEN, PURPLE, SKY, VERMILION = "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00"
CYCLE = (ORANGE, SKY, VERMILION, GREEN, PURPLE, BLUE)
GREY, INK = "#999999", "#333333"
MARKERS = "osD^vP"
LINE = 5.4
"""Inches that a title of a line needs, beside the names of rows."""
AS_IT_IS: dict[str, Any] = {"parse_math": False}
"""For what is read from a user's data: dollars in it are dollars."""
TICKS = 6


def numbers(given: Array) -> Array:
    """Numbers as an array, also of a tensor that knows its gradient."""
    return np.asarray(given.detach().cpu() if hasattr(given, "detach") else given, dtype=float)


def fit_curve(
    x: Array,
    y: Array,
    grid: Array,
    predictions: Mapping[str, Array],
    truth: Array | None = None,
    spread: Mapping[str, Array] | None = None,
    axes: "Axes | None" = None,
) -> "Axes":
    """Fits over the data they were made from.

    x, y         [n] the data
    grid         [m] where the fits were asked, in any order
    predictions  fits [m], by name
    truth        [m] the true function, where it is known
    spread       standard deviations [m] of fits, by name: drawn as a band of ± one

    >>> import numpy as np
    >>> x = np.linspace(0, 5, 40)
    >>> axes = fit_curve(x, np.sin(x), x, {"too flat": 0.5 * np.sin(x)}, truth=np.sin(x))
    >>> [text.get_text() for text in axes.get_legend().get_texts()]
    ['data', 'truth', 'too flat']
    """
    x, y, grid = flat(x, "x"), flat(y, "y"), flat(grid, "grid")
    same_length(y=y, x=x)
    axes = axes or fresh(7, 4.5)
    order = np.argsort(grid, kind="stable")
    unknown = set(spread or {}) - set(predictions)
    if unknown:
        raise ValueError(f"spread names {sorted(unknown)}, which are not among the predictions {list(predictions)}")
    axes.scatter(x, y, s=22, color=GREY, edgecolors="white", linewidths=0.6, zorder=2, label="data")
    if truth is not None:
        line = same_length(truth=flat(truth, "truth"), grid=grid)
        axes.plot(grid[order], line[order], color=INK, linestyle=(0, (5, 2)), linewidth=1.4, zorder=3, label="truth")
    for place, (name, fit) in enumerate(predictions.items()):
        colour = CYCLE[place % len(CYCLE)]
        line = same_length(**{name: flat(fit, name)}, grid=grid)
        axes.plot(grid[order], line[order], color=colour, linewidth=2.2, zorder=4, label=name)
        if spread is not None and name in spread:
            band = same_length(**{name: flat(spread[name], name)}, grid=grid)
            low, high = line - band, line + band
            axes.fill_between(grid[order], low[order], high[order], color=colour, alpha=0.18, linewidth=0, zorder=1)
    axes.set(xlabel="x", ylabel="y")
    axes.margins(x=0.02)
    axes.legend(frameon=False, fontsize="small")
    return bare(axes)


def weight_map(
    weights: Array,
    queries: Array | None = None,
    keys: Array | None = None,
    axes: "Axes | None" = None,
    title: str = "attention weights",
    most: float | None = None,
) -> "Axes":
    """The weights [queries, keys] as a heat map: a row is a query, and where it looks is dark.

    With `queries` [q] and `keys` [k] rows and columns are sorted by them, and labelled with them. `most` is the
    weight of the darkest colour, so that two maps can be compared.

    >>> import numpy as np
    >>> axes = weight_map([[0.9, 0.1], [0.2, 0.8]], queries=[5.0, 2.0], keys=[4.0, 3.0])
    >>> axes.images[0].get_array().tolist()  # rows and columns sorted
    [[0.8, 0.2], [0.1, 0.9]]
    """
    from matplotlib.ticker import MaxNLocator

    weights = numbers(weights)
    if weights.ndim != 2 or not weights.size:
        raise ValueError(f"weights must be [queries, keys], got shape {list(weights.shape)}")
    axes = axes or fresh(5.5, 4.5)
    rows, row_names = sorted_by(queries, weights.shape[0], "queries")
    columns, column_names = sorted_by(keys, weights.shape[1], "keys")
    top = float(np.abs(weights).max()) if most is None else most
    # Weights of a local line may be negative: then white is 0, and the signs have a colour each.
    signed = bool(weights.min() < 0)
    image = axes.imshow(
        weights[np.ix_(rows, columns)],
        cmap="PuOr_r" if signed else "Blues",
        vmin=-top if signed else 0.0,
        vmax=top or 1.0,
        aspect="auto",
        interpolation="nearest",
    )
    name_ticks(axes.yaxis, row_names, weights.shape[0])
    name_ticks(axes.xaxis, column_names, weights.shape[1])
    axes.set_title(title, loc="left")
    axes.set_xlabel("keys" if keys is None else "keys, sorted")
    axes.set_ylabel("queries" if queries is None else "queries, sorted")
    bar = axes.figure.colorbar(image, ax=axes, label="weight", pad=0.03)
    bar.locator = MaxNLocator(5)
    bar.outline.set_visible(False)
    for edge in axes.spines.values():
        edge.set_color("#cccccc")
    return axes


def alignment_map(
    weights: Array, keys: Sequence[str], queries: Sequence[str], axes: "Axes | None" = None, title: str = ""
) -> "Axes":
    """Which piece looked at which: weights [queries, keys], every row and column labelled with its piece.

    Keys stand above, in reading order; queries from top to bottom.

    >>> axes = alignment_map([[0.9, 0.1], [0.2, 0.8]], keys=["ein", "Hund"], queries=["a", "dog"])
    >>> [label.get_text() for label in axes.get_xticklabels()]
    ['ein', 'Hund']
    """
    weights = numbers(weights)
    if weights.shape != (len(queries), len(keys)) or not weights.size:
        raise ValueError(
            f"weights must be [{len(queries)}, {len(keys)}], queries by keys, and at least one, got"
            f" {list(weights.shape)}"
        )
    wide = max(LINE, 1.6 + 0.3 * len(keys))
    axes = axes or fresh(min(16, wide), min(16, 1.2 + 0.28 * len(queries)))
    axes.imshow(weights, cmap="Blues", vmin=0.0, vmax=1.0, aspect="auto", interpolation="nearest")
    small = "small" if max(len(keys), len(queries)) <= 40 else "xx-small"
    turned = 90 if max(map(len, keys)) > 1 else 0
    axes.set_xticks(range(len(keys)), list(keys), rotation=turned, fontsize=small, **AS_IT_IS)
    axes.set_yticks(range(len(queries)), list(queries), fontsize=small, **AS_IT_IS)
    axes.xaxis.tick_top()
    axes.xaxis.set_label_position("top")
    axes.tick_params(length=0)
    axes.set_title(title, loc="left")
    for edge in axes.spines.values():
        edge.set_color("#cccccc")
    return axes


def evidence_bars(
    labels: Sequence[str],
    weights: Array,
    rest: float,
    values: Array | None = None,
    axes: "Axes | None" = None,
    of: str = "row",
) -> "Axes":
    """What is behind one prediction, training rows or `of` what: a bar each, largest first, and a grey one for others.

    Weights below 0, which a local line can give, have a colour of their own. With `values`, the targets of the
    rows stand at their bars.

    >>> axes = evidence_bars(["12", "7"], [0.5, 0.3], rest=0.2, values=[151.0, 75.0])
    >>> [text.get_text() for text in axes.texts]
    ['50.0%  →  151', '30.0%  →  75', '20.0%']
    """
    from matplotlib.ticker import PercentFormatter

    weights = flat(weights, "weights")
    if len(labels) != len(weights) or (values is not None and len(values) != len(weights)):
        counts = f"{len(labels)} labels, {len(weights)} weights" + ("" if values is None else f", {len(values)} values")
        raise ValueError(f"labels, weights and values must be of one length, got {counts}")
    axes = axes or fresh(6, 1.2 + 0.36 * (len(weights) + 1))
    sizes = np.append(weights, float(rest))
    colours = [*(BLUE if weight >= 0 else VERMILION for weight in weights), GREY]
    places = range(len(sizes))
    axes.barh(places, sizes, color=colours, height=0.72)
    notes = ["" if values is None else f"  →  {shown(value)}" for value in (values if values is not None else weights)]
    reach = max(float(np.abs(sizes).max()), 1e-300)
    for place, size, note in zip(places, sizes, [*notes, ""], strict=True):
        text = f"{size:.1%}{note}"
        axes.text(max(size, 0.0) + 0.015 * reach, place, text, va="center", fontsize="small", color=INK, **AS_IT_IS)
    axes.set_yticks(list(places), [*(f"{of} {label}" for label in labels), f"all other {of}s"], **AS_IT_IS)
    axes.invert_yaxis()
    left, right = min(0.0, float(sizes.min())), max(0.0, float(sizes.max()))
    axes.set_xlim(left - 0.02 * reach if left < 0 else 0.0, right + 0.35 * reach)
    axes.set_xticks([tick for tick in axes.get_xticks() if left <= tick <= max(right, min(1.0, right + 0.35 * reach))])
    axes.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=None))
    axes.set_xlabel("weight" if values is None else f"weight  →  the {of}'s target")
    if left < 0:
        axes.axvline(0, color=INK, linewidth=0.8)
    axes.tick_params(axis="y", length=0)
    return bare(axes)


def error_curves(
    counts: Array,
    errors: Mapping[str, Array],
    parameters: Mapping[str, int] | None = None,
    axes: "Axes | None" = None,
    title: str = "test error against the number of training examples",
    most: float = 2.0,
) -> "Axes":
    """How test errors fall with the number of training examples: a line is the median of repeats, a band their range.

    counts       [n] how many training examples
    errors       [repeats, n] by name, in standard deviations of what is predicted: 1 is no better than its mean
    parameters   how many each model has, by name: said in the legend, and drawn as a bar of its colour on the axis
    most         errors above this are cut off

    >>> axes = error_curves([10, 100], {"small": [[0.9, 0.3], [0.7, 0.1]]}, parameters={"small": 20})
    >>> axes.get_legend().get_texts()[0].get_text(), axes.lines[1].get_ydata().tolist()
    ('small: 20 parameters', [0.8, 0.2])
    """
    from matplotlib.ticker import NullLocator, ScalarFormatter

    counts = flat(counts, "counts")
    axes = axes or fresh(6.5, 4.5)
    unknown = set(parameters or {}) - set(errors)
    if unknown:
        raise ValueError(f"parameters names {sorted(unknown)}, which are not among the errors {list(errors)}")
    axes.axhline(1, color=INK, linestyle=(0, (5, 2)), linewidth=1.0, zorder=1)
    marks: list[int] = []
    for place, (name, repeats) in enumerate(errors.items()):
        found = np.asarray(repeats, dtype=float)
        if found.ndim != 2 or found.shape[1] != len(counts):
            raise ValueError(f"errors of {name!r} must be [repeats, {len(counts)}], got shape {list(found.shape)}")
        colour, size = CYCLE[place % len(CYCLE)], (parameters or {}).get(name)
        label = name if size is None else f"{name}: {size} parameters"
        axes.fill_between(counts, found.min(0), found.max(0), color=colour, alpha=0.15, linewidth=0, zorder=2)
        line = np.median(found, axis=0)
        axes.plot(counts, line, MARKERS[place % len(MARKERS)] + "-", color=colour, label=label, linewidth=2, zorder=3)
        if size is not None:
            low = 0.05 * most * marks.count(size)  # on top of those of the same size
            axes.plot(
                [size, size], [low, low + 0.05 * most], color=colour, linewidth=4, solid_capstyle="butt", zorder=4
            )
            marks.append(size)
    axes.set_xscale("log")
    axes.set_xticks(counts, [f"{count:g}" for count in counts])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(ScalarFormatter())
    axes.set_ylim(0, most)
    marked = "   (bars: parameters)" if marks else ""
    axes.set(xlabel=f"training examples{marked}", ylabel="test error, in standard deviations\n(1: predicting the mean)")
    axes.set_title(title, loc="left")
    axes.legend(frameon=False, fontsize="small")
    return bare(axes)


def fresh(width: float, height: float) -> "Axes":
    """Axes on a figure of their own, which nobody else holds on to."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained", dpi=120).add_subplot()


def bare(axes: "Axes") -> "Axes":
    """Without the frame on the sides that measure nothing."""
    axes.spines[["top", "right"]].set_visible(False)
    return axes


def flat(values: Array, name: str) -> Array:
    """Numbers [n]; a column [n, 1] is one too."""
    array = np.asarray(values, dtype=float)
    array = array[:, 0] if array.ndim == 2 and array.shape[1] == 1 else array
    if array.ndim != 1:
        raise ValueError(f"{name} must have one axis, got shape {list(array.shape)}")
    return array


def same_length(**arrays: Array) -> Array:
    """The first of two arrays, if they are of one length."""
    (name, array), (other, like) = arrays.items()
    if len(array) != len(like):
        raise ValueError(f"{name} and {other} must be of one length, got {len(array)} and {len(like)}")
    return array


def sorted_by(values: Array | None, count: int, name: str) -> tuple[Array, Array | None]:
    """The order of rows or columns, and what they are labelled with in that order."""
    if values is None:
        return np.arange(count), None
    values = np.asarray(values)
    values = values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values
    if values.shape != (count,):
        raise ValueError(f"{name} must be [{count}], one for each of the weights', got shape {list(values.shape)}")
    order = np.argsort(values, kind="stable")
    return order, values[order]


def name_ticks(axis: Any, names: Array | None, count: int) -> None:
    """Ticks at round values, where the sorted names are numbers; else some of the names, or all if they are few."""
    from matplotlib.ticker import MaxNLocator

    if names is None:
        return
    if np.issubdtype(names.dtype, np.number) and count > 1:
        values = MaxNLocator(TICKS, steps=[1, 2, 5, 10]).tick_values(names[0], names[-1])
        values = values[(values >= names[0]) & (values <= names[-1])]
        axis.set_ticks(np.interp(values, names, np.arange(count)), [shown(value) for value in values])
        return
    places = np.arange(count) if count <= 2 * TICKS else np.linspace(0, count - 1, TICKS).round().astype(int)
    axis.set_ticks(places, [shown(name) for name in names[places]], **AS_IT_IS)


def shown(value: Any) -> str:
    """A number in four digits, or in all that stand before the point; anything else as it is.

    >>> shown(0.123456), shown(442811.2), shown("a")
    ('0.1235', '442,811', 'a')
    """
    if not isinstance(value, float | np.floating):
        return str(value)
    return f"{value:,.0f}" if 9999.5 <= abs(float(value)) < 1e15 else f"{value:.4g}"
