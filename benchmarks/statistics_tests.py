"""Tests of a kernel regression: time per bootstrap sample compared with statsmodels, and size and power by simulation.

    python -m benchmarks.statistics_tests --only speed
    python -m benchmarks.statistics_tests --only size --replications 1000
    python -m benchmarks.statistics_tests --only curves --data FOLDER

Size is the fraction of simulated tables without the effect, power of those with it, in which the test rejects at the
5 % level. Two standard errors of a size of 5 % are 1.9 points of 500 replications, 1.4 of 1,000. x₁ and x₂ are normal,
with correlation 0.6 where it says so; errors are normal, or exp(x₂/2) times as large; the category has four levels.

"curves" compares fits and degrees of freedom with R's locfit, KernSmooth and mgcv (Debian's r-cran-locfit,
r-cran-kernsmooth and r-cran-mgcv) on FOLDER/curves, whose files `benchmarks.kernel_quality` names. The bandwidth is
by cross-validation. Differences are the largest at the rows, in standard deviations of y.
"""

import argparse
import shutil
import subprocess
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.kernel_quality import CURVES
from regard.estimators import NadarayaWatson

Floats = NDArray[np.float64]
LEVEL = 0.05
EFFECTS = (0.0, 0.3)
"""Slope of the tested column, and size of what is not linear."""


class Case(NamedTuple):
    """Tables to draw, with an effect of a given size, and the p-value of the test of it."""

    draw: Callable[[np.random.Generator, int, float], tuple[Floats, Floats]]
    p_value: Callable[[NadarayaWatson], float]
    settings: dict[str, Any]


def column_table(correlation: float, scatter: float) -> Callable[[np.random.Generator, int, float], Any]:
    """y = sin(2 x₁) + effect · x₂ + error."""

    def draw(random: np.random.Generator, rows: int, effect: float) -> tuple[Floats, Floats]:
        x = random.normal(size=(rows, 2))
        x[:, 1] = correlation * x[:, 0] + np.sqrt(1 - correlation**2) * x[:, 1]
        error = 0.5 * random.normal(size=rows) * np.exp(scatter * x[:, 1])
        return x, np.sin(2 * x[:, 0]) + effect * x[:, 1] + error

    return draw


def category_table(random: np.random.Generator, rows: int, effect: float) -> tuple[Floats, Floats]:
    """y = sin(2 x₁) + effect · (level - 1.5) + error, more errors at higher levels."""
    x, level = random.normal(size=rows), random.integers(0, 4, rows)
    error = (0.4 + 0.1 * level) * random.normal(size=rows)
    return np.stack([x, level], axis=1), np.sin(2 * x) + effect * (level - 1.5) + error


def linear_table(scatter: float) -> Callable[[np.random.Generator, int, float], Any]:
    """y = x₁ + x₂ + 2 · effect · sin(2 x₁) + error."""

    def draw(random: np.random.Generator, rows: int, effect: float) -> tuple[Floats, Floats]:
        x = random.normal(size=(rows, 2))
        error = 0.7 * random.normal(size=rows) * np.exp(scatter * x[:, 1])
        return x, x.sum(axis=1) + 2 * effect * np.sin(2 * x[:, 0]) + error

    return draw


def column_p(model: NadarayaWatson) -> float:
    return float(model.significance_test([1], samples=199).table["p_value"][0])


def linear_p(model: NadarayaWatson) -> float:
    return float(model.specification_test(samples=199).p_value)


SEARCHED: dict[str, Any] = {"bandwidth": "cv", "metric": "diagonal"}
CASES = {
    "column": Case(column_table(0.0, 0.0), column_p, SEARCHED),
    "column, unequal errors": Case(column_table(0.0, 0.5), column_p, SEARCHED),
    "column, correlated": Case(column_table(0.6, 0.0), column_p, SEARCHED),
    "column, correlated, unequal errors": Case(column_table(0.6, 0.5), column_p, SEARCHED),
    "column, lines": Case(column_table(0.6, 0.0), column_p, {**SEARCHED, "order": 1}),
    "column, given bandwidth": Case(column_table(0.6, 0.0), column_p, {"bandwidth": 0.35}),
    "unordered category": Case(category_table, column_p, {"bandwidth": "cv", "categorical": [1]}),
    "ordered category": Case(category_table, column_p, {"bandwidth": "cv", "ordered": [1]}),
    "linear model": Case(linear_table(0.0), linear_p, {"bandwidth": "scott"}),
    "linear model, unequal errors": Case(linear_table(0.5), linear_p, {"bandwidth": "scott"}),
    "linear model, given bandwidth": Case(linear_table(0.5), linear_p, {"bandwidth": 0.35}),
}


def rejections(case: Case, rows: int, effect: float, replications: int) -> float:
    """The fraction of simulated tables in which the test rejects."""
    count = 0
    for seed in range(replications):
        x, y = case.draw(np.random.default_rng(seed), rows, effect)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = NadarayaWatson(**{"scale": None, "verbose": False, "random_state": seed} | case.settings).fit(x, y)
            count += case.p_value(model) <= LEVEL
    return count / replications


def size(options: argparse.Namespace) -> Iterator[str]:
    """Size and power of each test."""
    yield f"{'rejected at 5 %':<36} {'rows':>5} {'replications':>13} {'size':>7} {'power':>7} {'seconds':>8}"
    for name, case in CASES.items():
        if options.case not in name:
            continue
        start = time.perf_counter()
        null, power = (rejections(case, options.rows, effect, options.replications) for effect in EFFECTS)
        seconds = time.perf_counter() - start
        yield f"{name:<36} {options.rows:>5} {options.replications:>13} {null:>7.1%} {power:>7.1%} {seconds:>8.0f}"


def speed(options: argparse.Namespace) -> Iterator[str]:
    """Time of a bootstrap sample at 1,000 rows and 3 columns: ours with 399 samples a column, statsmodels' with 5."""
    from statsmodels.nonparametric.kernel_regression import KernelReg

    random = np.random.default_rng(0)
    x = random.normal(size=(1000, 3))
    y = np.sin(x[:, 0]) + 0.5 * x[:, 1] + 0.5 * random.normal(size=1000)
    model = NadarayaWatson(bandwidth=0.4).fit(x, y)
    model.significance_test(samples=9)
    peer = KernelReg(y, x, "ccc", reg_type="lc", bw=np.full(3, 0.4), rng=0)
    for _ in range(3):
        start = time.perf_counter()
        model.significance_test(samples=399)
        ours = (time.perf_counter() - start) / (3 * 400)
        start = time.perf_counter()
        peer.sig_test([0], nboot=5)
        theirs = (time.perf_counter() - start) / 6
        yield f"a bootstrap sample: {1e3 * ours:.2f} ms, statsmodels {1e3 * theirs:.0f} ms, ratio {theirs / ours:.0f}"


R_SCRIPT = """
suppressMessages({library(locfit); library(KernSmooth); library(mgcv)})
folder <- commandArgs(TRUE)[1]; h <- as.numeric(commandArgs(TRUE)[2]); degree <- as.integer(commandArgs(TRUE)[3])
d <- read.csv(file.path(folder, "rows.csv"))
# The Gaussian of locfit is exp(-(2.5 u)^2 / 2).
f <- locfit(y ~ lp(x, h = 2.5 * h, deg = degree), data = d, kern = "gauss", ev = dat(), maxk = 20000)
k <- locpoly(d$x, d$y, degree = degree, bandwidth = h, gridsize = 4001, range.x = range(d$x))
g <- gam(y ~ s(x), data = d)
write.csv(data.frame(locfit = fitted(f), freedom = f$dp["df1"], binned = approx(k$x, k$y, d$x)$y, gam = fitted(g),
  gam_freedom = sum(g$edf)), file.path(folder, "fit.csv"))
"""


def curves(options: argparse.Namespace) -> Iterator[str]:
    """Fits and degrees of freedom of four curves compared with R."""
    import pandas as pd

    if options.data is None or shutil.which("Rscript") is None:
        yield "curves needs --data FOLDER and R, see --help"
        return
    yield f"{'':<8} {'order':>5} {'width':>7} {'df':>7} {'locfit df':>10} {'gam df':>7}" + "".join(
        f" {name:>11}" for name in ("locfit", "KernSmooth", "gam")
    )
    for name, (file, x_name, y_name) in CURVES.items():
        frame = pd.read_csv(options.data / "curves" / file, sep=r"\s+" if file.endswith(".txt") else ",")
        x, y = (frame[column].to_numpy(dtype=float) for column in (x_name, y_name))
        for order in (0, 1):
            width = float(NadarayaWatson("cv", order=order, verbose=False).fit(x[:, None], y).bandwidth_[0])
            model = NadarayaWatson(width, order=order, tol=1e-9).fit(x[:, None], y)
            fit, freedom = model.predict(x[:, None]), model.summary().facts["Degrees of freedom, exact"]
            with tempfile.TemporaryDirectory() as folder:
                pd.DataFrame({"x": x, "y": y}).to_csv(f"{folder}/rows.csv", index=False)
                words = ["Rscript", "-e", R_SCRIPT, folder, repr(width), str(order)]
                subprocess.run(words, check=True, capture_output=True)
                peer = pd.read_csv(f"{folder}/fit.csv")
            yield (
                f"{name:<8} {order:>5} {width:>7.3g} {freedom:>7} {peer.freedom[0]:>10.4g} {peer.gam_freedom[0]:>7.3g}"
                + "".join(f" {np.abs(fit - peer[of]).max() / y.std():>11.1e}" for of in ("locfit", "binned", "gam"))
            )


ROWS = {"speed": speed, "size": size, "curves": curves}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help=f"part of a name, of {', '.join(ROWS)}")
    parser.add_argument("--case", default="", help="part of the name of a simulated case")
    parser.add_argument("--replications", type=int, default=500)
    parser.add_argument("--rows", type=int, default=100)
    parser.add_argument("--data", type=Path, help="folder that contains curves/")
    options = parser.parse_args()
    for name, row in ROWS.items():
        if options.only in name:
            for line in row(options):
                print(line, flush=True)


if __name__ == "__main__":
    main()
