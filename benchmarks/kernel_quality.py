"""Accuracy of kernel regression compared with other methods: seven tables and four curves. Run by `benchmarks.kernel`.

    FOLDER/uci/NAME/data.csv.gz         the last column is y           github treforevans/uci_datasets
    FOLDER/uci/NAME/test_mask.csv.gz    one column per split, 1 = test row
    FOLDER/curves/mcycle.csv, cps71.csv, engel.csv, lidar.txt          Rdatasets; lidar: SemiPar

Tables: root mean squared error of the test rows, in standard deviations of the training rows' y. Scale, metric and
order are chosen by the leave-one-out error of the training rows, never by test rows.

Curves: every row is predicted by a model fitted to the others, with the bandwidth chosen by cross-validation on all
rows; ours and statsmodels', each with its own code.
"""

import itertools
import math
import multiprocessing
import warnings
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich import box
from rich.console import Console
from rich.table import Table
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.model_selection import GridSearchCV, KFold
from sklearn.neighbors import KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from benchmarks.harness import PROGRESS, SEED, Finding, missing_data, note, yes_no
from regard.estimators import NadarayaWatson
from regard.estimators.tables.bandwidth import leave_one_out_error

TABLES = ("airfoil", "concrete", "yacht", "wine", "elevators", "pol", "kin40k")
SPLITS = (0, 1, 2)
SMALL = ("yacht", "concrete")
"""Tables on which statsmodels runs, for at most `LIMIT` seconds."""
LIMIT = 60.0
OURS = {"scalar": ("scalar", 0), "diagonal": ("diagonal", 0), "full": ("full", 0), "full, order 1": ("full", 1)}
"""Metric and order of each model."""
PROTOTYPE = {
    "full": {"airfoil": 0.273, "concrete": 0.295, "elevators": 0.363, "kin40k": 0.325, "pol": 0.236},
    "full, order 1": {"kin40k": 0.267},
}
"""Test errors of a prototype on split 0, the targets."""
LEFT_OUT = 2048
"""Number of training rows in the leave-one-out error that chooses a model."""
NEIGHBOURS = {"n_neighbors": [1, 2, 3, 4, 5, 7, 10, 15, 20, 30, 50], "weights": ["uniform", "distance"]}
CURVES = {
    "mcycle": ("mcycle.csv", "times", "accel"),
    "lidar": ("lidar.txt", "range", "logratio"),
    "cps71": ("cps71.csv", "age", "logwage"),
    "engel": ("engel.csv", "income", "foodexp"),
}

Floats = NDArray[np.float64]
MODULE = "benchmarks/kernel_quality.py"


class Split(NamedTuple):
    """Training and test rows; y is standardised."""

    X: Floats
    y: Floats
    test_X: Floats  # noqa: N815
    test_y: Floats

    def error(self, predicted: Floats) -> float:
        return float(np.sqrt(np.square(predicted - self.test_y).mean()))


def read_split(folder: Path, split: int) -> Split:
    data = np.loadtxt(folder / "data.csv.gz", delimiter=",")
    test = np.loadtxt(folder / "test_mask.csv.gz", delimiter=",")[:, split] > 0
    X, y = data[:, :-1], data[:, -1]  # noqa: N806
    y = (y - y[~test].mean()) / y[~test].std()
    return Split(X[~test], y[~test], X[test], y[test])


def tables(data: Path | None) -> Iterator[Finding]:
    """Test errors per table, and their targets."""
    needed = [f"uci/{name}/{file}.csv.gz" for name in TABLES for file in ("data", "test_mask")]
    if missing := missing_data(data, needed, MODULE):
        yield Finding("test error of seven tables", "see --data", missing, "not run")
        return
    assert data is not None
    errors = {(name, split): table_errors(data / "uci" / name, split) for name in TABLES for split in SPLITS}
    mean = {name: means([errors[name, split] for split in SPLITS]) for name in TABLES}
    first = {name: errors[name, 0] for name in TABLES}
    Console(width=160).print(errors_table(mean, first))
    ahead = [name for name in TABLES if mean[name]["best by LOO"] < mean[name]["k-NN"]]
    yield Finding(
        "test error of seven tables, splits 0-2, learned metric / k-NN by CV",
        "better on at least 5 of 7",
        f"better on {len(ahead)}: {', '.join(ahead)}",
        yes_no(len(ahead) >= 5),
        None,
        {"mean": mean, "splits": {f"{name} {split}": one for (name, split), one in errors.items()}},
    )
    for model, (name, bound) in ((model, bound) for model, bounds in PROTOTYPE.items() for bound in bounds.items()):
        error = first[name][model]
        met = yes_no(round(error, 3) <= bound)
        yield Finding(f"test error of {name}, split 0, {model}", f"≤ {bound}", f"{error:.3f}", met)


def table_errors(folder: Path, split: int) -> dict[str, float]:
    """Test errors of all models; NaN if a model exceeded the time limit."""
    rows = read_split(folder, split)
    name = folder.name
    errors, criteria = {}, {}
    for model, (metric, order) in OURS.items():
        trials = [learned_error(rows, metric, order, scale) for scale in ("rank", "standard")]
        criteria[model], errors[model] = min(trials)
        note(f"{name} {split}, {model}: {errors[model]:.3f}")
    errors["best by LOO"] = errors[min(criteria, key=criteria.__getitem__)]
    errors["k-NN"] = rows.error(neighbours(rows.X, rows.y).predict(rows.test_X))
    errors["statsmodels"] = math.nan
    if name in SMALL:
        predicted = within(LIMIT, statsmodels_predict, rows.X, rows.y, rows.test_X)
        errors["statsmodels"] = math.nan if predicted is None else rows.error(predicted)
    boosted = HistGradientBoostingRegressor(random_state=SEED).fit(rows.X, rows.y)
    errors["HistGB"] = rows.error(boosted.predict(rows.test_X))
    note(f"{name} {split}: " + ", ".join(f"{model} {error:.3f}" for model, error in errors.items()))
    return errors


def learned_error(rows: Split, metric: str, order: int, scale: str) -> tuple[float, float]:
    """Leave-one-out error on the training rows, and error on the test rows."""
    model = NadarayaWatson(
        bandwidth="learn", metric=metric, order=order, scale=scale, random_state=SEED, verbose=PROGRESS.is_terminal
    ).fit(rows.X, rows.y)
    some = np.random.default_rng(SEED).permutation(len(rows.X))[:LEFT_OUT]
    return leave_one_out_error(model.smoother_, some), rows.error(model.predict(rows.test_X))


def neighbours(X: Floats, y: Floats) -> GridSearchCV:  # noqa: N803
    grid = {f"kneighborsregressor__{name}": values for name, values in NEIGHBOURS.items()}
    folds = KFold(5, shuffle=True, random_state=SEED)
    model = make_pipeline(StandardScaler(), KNeighborsRegressor())
    return GridSearchCV(model, grid, cv=folds, scoring="neg_mean_squared_error").fit(X, y)


def statsmodels_fit(X: Floats, y: Floats, form: str, bandwidth: Any = "cv_ls") -> Any:  # noqa: N803
    """A kernel regression of statsmodels. form: "lc" local constant, "ll" local linear."""
    from statsmodels.nonparametric.kernel_regression import KernelReg

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # from pandas, at every call
        return KernelReg(y, X, "c" * X.shape[1], reg_type=form, bw=bandwidth)


def statsmodels_predict(X: Floats, y: Floats, query: Floats) -> Floats:  # noqa: N803
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # divisions by an underflown sum: those rows are NaN
        return statsmodels_fit(X, y, "lc").fit(query)[0]


def within(seconds: float, run: Callable[..., Any], *arguments: Any) -> Any:
    """The result of a call in its own process; None if it takes longer."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=send, args=(sender, run, arguments), daemon=True)
    process.start()
    sender.close()
    result = receiver.recv() if receiver.poll(seconds) else None
    process.terminate()
    process.join()
    return result


def send(sender: Connection, run: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    sender.send(run(*arguments))


def means(errors: list[dict[str, float]]) -> dict[str, float]:
    return {model: float(np.mean([one[model] for one in errors])) for model in errors[0]}


def errors_table(mean: Mapping[str, Mapping[str, float]], first: Mapping[str, Mapping[str, float]]) -> Table:
    made = Table(box=box.MARKDOWN, title="test RMSE, mean of splits 0-2 (split 0)")
    made.add_column("table")
    for model in mean[TABLES[0]]:
        made.add_column(model, justify="right", no_wrap=True)
    for name in TABLES:
        cells = ("" if math.isnan(mean[name][m]) else f"{mean[name][m]:.3f} ({first[name][m]:.3f})" for m in mean[name])
        made.add_row(name, *cells)
    return made


def curves(data: Path | None) -> Iterator[Finding]:
    """Leave-one-out errors of both orders."""
    if missing := missing_data(data, [f"curves/{file}" for file, _, _ in CURVES.values()], MODULE):
        yield Finding("leave-one-out error of four curves", "see --data", missing, "not run")
        return
    assert data is not None
    for (name, (file, across, up)), (order, form) in itertools.product(CURVES.items(), enumerate(("lc", "ll"))):
        note(f"{name}, {form}")
        columns = np.genfromtxt(data / "curves" / file, names=True, delimiter="," if file.endswith("csv") else None)
        x, y = columns[across][:, None], columns[up]
        ours = NadarayaWatson(bandwidth="cv", order=order, verbose=False).fit(x, y).bandwidth_
        theirs = statsmodels_fit(x, y, form).bw
        error = without_each(x, y, lambda x, y, at, h=ours, o=order: NadarayaWatson(h, order=o).fit(x, y).predict(at))
        peer = without_each(x, y, lambda x, y, at, h=theirs, f=form: statsmodels_fit(x, y, f, h).fit(at)[0])
        yield Finding(
            f"leave-one-out error of {name}, order {order} / statsmodels {form}, cv_ls",
            "no worse, to 0.1 %",
            f"{error:.6g} and {peer:.6g} at {ours[0]:.4g} and {theirs[0]:.4g}",
            yes_no(error <= 1.001 * peer),
            None,
            {"ours": error, "peer": peer, "bandwidth": [float(ours[0]), float(theirs[0])]},
        )


def without_each(x: Floats, y: Floats, predict: Callable[[Floats, Floats, Floats], Floats]) -> float:
    """Mean squared error of all rows, each predicted by a model fitted to the others."""
    errors = []
    for row in range(len(y)):
        others = np.arange(len(y)) != row
        errors.append(float(predict(x[others], y[others], x[row : row + 1])[0] - y[row]))
    return float(np.square(errors).mean())


def left_out_average(x: Floats, y: Floats, bandwidth: float) -> Floats:
    """Gaussian kernel average of all other rows, for each row, by the definition."""
    weight = np.exp(-0.5 * np.square((x - x.T) / bandwidth))
    np.fill_diagonal(weight, 0.0)
    return weight @ y / weight.sum(axis=1)
