"""Kernel regression: training points are keys, what was seen there are values, and a new point is a query.

    f(x) = Σᵢ α(x, xᵢ) yᵢ        α = softmax(−½ ((x − xᵢ) w)²)

Average pooling gives every point the same weight; w = 1 is nonparametric; the third learns w. Then the same on a table.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from regard import plots
from regard.attend import look
from regard.data.samples import noisy_curve
from regard.estimators import NadarayaWatson
from regard.scores import Gaussian
from regard.tour.figures import tall_figure
from regard.tour.findings import Finding, Picture, Row, Saved, Station, command

Array = Any
AVERAGE, GIVEN, LEARNED = "average pooling", "kernel, bandwidth 1", "kernel, learned"


class Fits(NamedTuple):
    """Three ways to look at the same points, and what two of them look at."""

    x: Array  # [n]
    y: Array  # [n]
    grid: Array  # [m]  where the fits are asked
    truth: Array  # [m]
    fits: dict[str, Array]  # [m], by name
    errors: dict[str, float]  # root mean square against the truth, by name
    bandwidth: float  # the learned one, 1 / w
    before: Array  # [m, n]  weights with bandwidth 1
    after: Array  # [m, n]  weights with the learned one


def three_fits(n: int = 50, noise: float = 0.5, seed: int = 0) -> Fits:
    """Average pooling, a kernel of bandwidth 1 and a learned one on the sources' curve."""
    x, y, truth = noisy_curve(n, noise, seed)
    grid = np.linspace(0, 5, 200)
    models = {
        AVERAGE: NadarayaWatson(kernel="constant"),
        GIVEN: NadarayaWatson(bandwidth=1.0),
        LEARNED: NadarayaWatson(bandwidth="learn", random_state=seed),
    }
    fits = {name: model.fit(x[:, None], y).predict(grid[:, None]) for name, model in models.items()}
    errors = {name: float(np.sqrt(np.mean((fit - truth(grid)) ** 2))) for name, fit in fits.items()}
    bandwidth = float(models[LEARNED].bandwidth_[0])
    before, after = (
        look(torch.tensor(grid)[:, None], torch.tensor(x)[:, None], score=Gaussian(width)).numpy()
        for width in (1.0, bandwidth)
    )
    return Fits(x, y, grid, truth(grid), fits, errors, bandwidth, before, after)


def draw_fits(found: Fits, axes: Any = None) -> Any:
    """The three fits over their points."""
    axes = plots.fit_curve(found.x, found.y, found.grid, found.fits, truth=found.truth, axes=axes)
    axes.set_title("Attention over the training points is regression", loc="left")
    return axes


def draw_maps(found: Fits, left: Any, right: Any) -> None:
    """What two of the fits look at, each on its axes."""
    plots.weight_map(found.before, found.grid, found.x, left, "Bandwidth 1: every query looks at many points")
    title = f"Learned, bandwidth {found.bandwidth:.2f}: it looks at the nearest"
    plots.weight_map(found.after, found.grid, found.x, right, title)
    for axes in (left, right):
        axes.set(xlabel="training point, by its x", ylabel="query, by its x")


def visit(folder: Path, seed: int, quick: bool) -> Iterator[Finding]:
    """The sources' curve, then a table that comes with scikit-learn."""
    yield from curve(seed)
    yield from table(folder, seed)


def curve(seed: int) -> Iterator[Finding]:
    """Fits and weight maps of one curve."""
    found = three_fits(seed=seed)
    data = "y = 2 sin x + x^0.8 + ε"
    yield Row(data, GIVEN, "error", found.errors[GIVEN], AVERAGE, found.errors[AVERAGE], lower=True)
    yield Row(data, LEARNED, "error", found.errors[LEARNED], AVERAGE, found.errors[AVERAGE], lower=True)
    figure = tall_figure(3.6)
    axes = plots.hide_frame(figure.add_subplot())
    draw_fits(found, axes)
    yield Picture(
        "fits",
        figure,
        "A learned kernel follows the curve; an average is blind to it",
        f"50 points, seen through noise of 0.5. Average pooling gives each the same weight, whatever is asked, and is"
        f" off by {found.errors[AVERAGE]:.2f}. A Gaussian kernel of bandwidth 1 looks at points near the query:"
        f" {found.errors[GIVEN]:.2f}. Learning how near, leaving each point out in turn: {found.errors[LEARNED]:.2f}.",
        "Noisy points around a wave. A flat line is average pooling, a smooth curve that is too flat has bandwidth 1,"
        " and the learned one lies close to the true wave, which is dashed.",
    )
    figure = tall_figure(6.2)
    draw_maps(found, *figure.subplots(2, 1))
    yield Picture(
        "maps",
        figure,
        "Learning makes the look narrow",
        "A row is a query, a column a training point, and dark is much weight. Both maps are dark along the diagonal,"
        f" where points lie near the query. Training makes the bandwidth {found.bandwidth:.2f} instead of 1, and the"
        " band narrow: note the scales at the right.",
        "Two heat maps of attention weights, queries by training points: a wide pale diagonal band with bandwidth 1,"
        " and a narrow dark one after learning.",
    )


def table(folder: Path, seed: int) -> Iterator[Finding]:
    """A real table: one year of diabetes, by ten measurements."""
    from sklearn.datasets import load_diabetes
    from sklearn.linear_model import LinearRegression

    X, y = load_diabetes(return_X_y=True, as_frame=True, scaled=False)  # noqa: N806
    order = np.random.default_rng(seed).permutation(len(X))
    learned, asked = order[:342], order[342:]
    model = NadarayaWatson(bandwidth="cv", order=1, random_state=seed)
    model.fit(X.iloc[learned], y.iloc[learned])
    score = model.score(X.iloc[asked], y.iloc[asked])
    other = nearest_neighbours().fit(X.iloc[learned], y.iloc[learned])
    other_score = float(other.score(X.iloc[asked], y.iloc[asked]))
    plane = float(LinearRegression().fit(X.iloc[learned], y.iloc[learned]).score(X.iloc[asked], y.iloc[asked]))
    yield Row("diabetes, 100 new patients", "kernel, local lines", "R²", score, "k-NN by CV", other_score)
    new = X.iloc[asked].reset_index(drop=True)
    evidence = model.evidence(new[:1], top=5)
    figure = tall_figure(3.0)
    axes = plots.hide_frame(figure.add_subplot())
    evidence.plot(0, axes=axes)
    predicted, true = float(model.predict(new[:1])[0]), float(y.iloc[asked[0]])
    axes.set_title(f"Predicted {predicted:.0f}; a year later it was {true:.0f}", loc="left")
    yield Picture(
        "evidence",
        figure,
        "A prediction is training rows with weights, and can show them",
        "The five patients that count most for the prediction of a new one, what was seen of them a year later, and the"
        " weight of all others together. A local line can weigh rows below 0; all weights add up to 1. Linear"
        f" regression has an R² of {plane:.2f} on this table, kernels {score:.2f}: what they add is the evidence.",
        f"Bars of weights of five training rows with their targets, and a bar of all other rows. {predicted:.0f} was"
        f" predicted, {true:.0f} was seen.",
    )
    new.to_csv(folder / "new_patients.csv", index=False)
    place = model.save(folder / "diabetes")
    asking = place, folder / "new_patients.csv"
    yield Saved(
        place,
        (
            command("regard", "predict", *asking, "--std"),
            command("regard", "evidence", *asking, "--top", "3"),
            command("regard", "info", place),
        ),
    )


def nearest_neighbours() -> Any:
    """The mean of the k nearest rows, k by cross-validation: the same idea with weights of 0 and 1/k."""
    from sklearn.model_selection import GridSearchCV
    from sklearn.neighbors import KNeighborsRegressor
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    sizes = {"kneighborsregressor__n_neighbors": [3, 5, 10, 15, 20, 30, 50]}
    return GridSearchCV(make_pipeline(StandardScaler(), KNeighborsRegressor()), sizes)


STATIONS = (
    Station(
        "kernel",
        "Kernel regression",
        "Nadaraya and Watson, 1964: training points are the keys, their targets the values, a new point is the"
        " query. It is"
        " attention with nothing learned, or with one number, the bandwidth.",
        visit,
        findings=7,
        chapter=1,
    ),
)
