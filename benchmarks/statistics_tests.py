"""Tests of a kernel regression: time per bootstrap sample compared with statsmodels, and size and power by simulation.

    python -m benchmarks.statistics_tests --only speed
    python -m benchmarks.statistics_tests --only size --replications 1000

Size is the fraction of simulated tables without the effect, power of those with it, in which the test rejects at the
5 % level. Two standard errors of a size of 5 % are 1.9 points of 500 replications, 1.4 of 1,000. x₁ and x₂ are normal,
with correlation 0.6 where it says so; errors are normal, or exp(x₂/2) times as large; the category has four levels.
"""

import argparse
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

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
    "linear model": Case(linear_table(0.0), linear_p, SEARCHED),
    "linear model, unequal errors": Case(linear_table(0.5), linear_p, SEARCHED),
    "linear model, rule": Case(linear_table(0.5), linear_p, {"bandwidth": "scott"}),
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


ROWS = {"speed": speed, "size": size}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help=f"part of a name, of {', '.join(ROWS)}")
    parser.add_argument("--case", default="", help="part of the name of a simulated case")
    parser.add_argument("--replications", type=int, default=500)
    parser.add_argument("--rows", type=int, default=100)
    options = parser.parse_args()
    for name, row in ROWS.items():
        if options.only in name:
            for line in row(options):
                print(line, flush=True)


if __name__ == "__main__":
    main()
