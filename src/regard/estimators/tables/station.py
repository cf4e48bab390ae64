"""The tour's station for kernel regression: training points are keys, their targets values, a new point is a query.

f(x) = Σᵢ α(x, xᵢ) yᵢ        α = softmax(−½ ((x − xᵢ) w)²)
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from regard import plots
from regard.attend import look
from regard.data.columns import Floats
from regard.data.samples import noisy_curve
from regard.estimators import NadarayaWatson
from regard.scores import Gaussian
from regard.tour.figures import tall_figure
from regard.tour.findings import Finding, Picture, Row, Station, command

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_AVERAGE, _FIXED, _LEARNED = "average pooling", "kernel, bandwidth 1", "kernel, learned"


class _Fits(NamedTuple):
    """Three fits to the same points."""

    x: Floats  # [n]
    y: Floats  # [n]
    grid: Floats  # [m]  where the fits are evaluated
    truth: Floats  # [m]
    predictions: dict[str, Floats]  # [m], by name
    errors: dict[str, float]  # root mean squared error against the truth, by name
    bandwidth: float  # the learned one, 1 / w


def three_fits(n: int = 50, noise: float = 0.5, seed: int = 0) -> _Fits:
    """Average pooling, a kernel of bandwidth 1 and a learned one on a noisy curve."""
    x, y, truth = noisy_curve(n, noise, seed)
    grid = np.linspace(0, 5, 200)
    models = {
        _AVERAGE: NadarayaWatson(kernel="constant"),
        _FIXED: NadarayaWatson(bandwidth=1.0),
        _LEARNED: NadarayaWatson(bandwidth="learn", random_state=seed),
    }
    curves = {name: model.fit(x[:, None], y).predict(grid[:, None]) for name, model in models.items()}
    errors = {name: float(np.sqrt(np.mean((curve - truth(grid)) ** 2))) for name, curve in curves.items()}
    return _Fits(x, y, grid, truth(grid), curves, errors, float(models[_LEARNED].bandwidth_[0]))


def draw_fits(fits: _Fits, axes: "Axes") -> None:
    """Draw the three fits over their points."""
    plots.fit_curve(fits.x, fits.y, fits.grid, fits.predictions, truth=fits.truth, axes=axes)
    axes.set_title("Attention over the training points is regression", loc="left")


def draw_weights(fits: _Fits, left: "Axes", right: "Axes") -> None:
    """Draw the weights of the two kernels as heat maps."""
    titles = (
        "Bandwidth 1: every query looks at many points",
        f"Learned, bandwidth {fits.bandwidth:.2f}: it looks at the nearest",
    )
    query, key = torch.tensor(fits.grid)[:, None], torch.tensor(fits.x)[:, None]
    for axes, width, title in zip((left, right), (1.0, fits.bandwidth), titles, strict=True):
        plots.weight_map(look(query, key, score=Gaussian(width)), fits.grid, fits.x, axes, title)
        axes.set(xlabel="training point, by its x", ylabel="query, by its x")


def visit(folder: Path, seed: int, quick: bool) -> Iterator[Finding]:
    """A noisy curve, then a table that comes with scikit-learn."""
    yield from _visit_curve(seed)
    yield from _visit_table(folder, seed)


def _visit_curve(seed: int) -> Iterator[Finding]:
    """Fits and weight maps of one curve."""
    fits = three_fits(seed=seed)
    data = "y = 2 sin x + x^0.8 + ε"
    yield Row(data, _FIXED, "error", fits.errors[_FIXED], _AVERAGE, fits.errors[_AVERAGE], lower=True)
    yield Row(data, _LEARNED, "error", fits.errors[_LEARNED], _AVERAGE, fits.errors[_AVERAGE], lower=True)
    figure = tall_figure(3.6)
    draw_fits(fits, figure.add_subplot())
    yield Picture(
        "fits",
        figure,
        "A learned kernel follows the curve; an average cannot",
        "50 points with noise of 0.5. Average pooling gives each the same weight, whatever the query:"
        f" its error is {fits.errors[_AVERAGE]:.2f}. A Gaussian kernel of bandwidth 1 looks at points near the query:"
        f" {fits.errors[_FIXED]:.2f}. With a learned bandwidth it is {fits.errors[_LEARNED]:.2f}.",
        "Noisy points around a wave. A flat line is average pooling, a smooth curve that is too flat has bandwidth 1,"
        " and the learned one lies close to the true wave, which is dashed.",
    )
    figure = tall_figure(6.2)
    draw_weights(fits, *figure.subplots(2, 1))
    yield Picture(
        "maps",
        figure,
        "Learning narrows the attention",
        "A row is a query, a column a training point, and dark is a large weight. Both maps are dark along the"
        f" diagonal, where points lie near the query. The learned bandwidth is {fits.bandwidth:.2f} instead of 1, and"
        " the band narrower: note the scales at the right.",
        "Two heat maps of attention weights, queries by training points: a wide pale diagonal band with bandwidth 1,"
        " and a narrow dark one after learning.",
    )


def _visit_table(folder: Path, seed: int) -> Iterator[Finding]:
    """A real table: one year of diabetes, by ten measurements."""
    from sklearn.datasets import load_diabetes
    from sklearn.linear_model import LinearRegression
    from sklearn.model_selection import GridSearchCV
    from sklearn.neighbors import KNeighborsRegressor
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    X, y = load_diabetes(return_X_y=True, as_frame=True, scaled=False)  # noqa: N806
    order = np.random.default_rng(seed).permutation(len(X))
    train, test = order[:342], order[342:]
    model = NadarayaWatson(bandwidth="cv", order=1, random_state=seed)
    model.fit(X.iloc[train], y.iloc[train])
    score = model.score(X.iloc[test], y.iloc[test])
    sizes = {"kneighborsregressor__n_neighbors": [3, 5, 10, 15, 20, 30, 50]}
    # The mean of the k nearest rows, k by cross-validation: the same idea with weights of 0 and 1/k.
    others = (GridSearchCV(make_pipeline(StandardScaler(), KNeighborsRegressor()), sizes), LinearRegression())
    neighbours, linear = (
        float(other.fit(X.iloc[train], y.iloc[train]).score(X.iloc[test], y.iloc[test])) for other in others
    )
    yield Row("diabetes, 100 new patients", "kernel, local lines", "R²", score, "k-NN by CV", neighbours)
    new = X.iloc[test].reset_index(drop=True)
    evidence = model.evidence(new[:1], top=5)
    figure = tall_figure(3.0)
    axes = evidence.plot(0, axes=figure.add_subplot())
    predicted, true = float(model.predict(new[:1])[0]), float(y.iloc[test[0]])
    axes.set_title(f"Predicted {predicted:.0f}; a year later it was {true:.0f}", loc="left")
    yield Picture(
        "evidence",
        figure,
        "A prediction is training rows with weights, and can show them",
        "The five patients with the largest weights in the prediction for a new one, what was measured a year later,"
        " and the weight of all others together. A local line can have negative weights; all weights add up to 1."
        f" Linear regression has an R² of {linear:.2f} on this table, kernels {score:.2f}; kernels add the evidence.",
        f"Bars of weights of five training rows with their targets, and a bar of all other rows. {predicted:.0f} was"
        f" predicted, {true:.0f} was measured.",
    )
    new.to_csv(folder / "new_patients.csv", index=False)
    saved = model.save(folder / "diabetes")
    arguments = saved, folder / "new_patients.csv"
    yield command("regard", "predict", *arguments, "--std")
    yield command("regard", "evidence", *arguments, "--top", "3")
    yield command("regard", "info", saved)


STATIONS = (
    Station(
        "kernel",
        "Kernel regression",
        "Nadaraya and Watson, 1964: training points are the keys, their targets the values, a new point is the query."
        " It is attention with nothing learned, or with one number, the bandwidth.",
        visit,
        findings=9,
        chapter=1,
    ),
)
