"""Statistics of kernel regression, by simulation and against other libraries, on the CPU.

    python -m benchmarks.statistics --only coverage                bands and intervals: 500 replications of each error
    python -m benchmarks.statistics --only pinball --data FOLDER   quantile loss on the 7 tables FOLDER/uci
    python -m benchmarks.statistics --only bands                   a simultaneous band, against a loop of refits
    python -m benchmarks.statistics --only quantiles               19 quantiles of a million rows at a million rows

Seconds are CPU of this process, unless they are named wall. One thread: OMP_NUM_THREADS=1 NUMBA_NUM_THREADS=1.
Coverage   f(x) = sin 6x, x uniform on (0, 1), 300 rows, bandwidth by cv; bands at 25 points from 0.02 to 0.98
Pinball    mean over the levels 0.05, 0.25, 0.5, 0.75, 0.95 of targets in deviations; split 0 of each table. The forest
           is scikit-learn's, with leaves of at least 5 rows: weights of rows that share leaves (Meinshausen 2006)
"""

import argparse
import resource
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import GradientBoostingRegressor, RandomForestRegressor
from sklearn.linear_model import QuantileRegressor
from sklearn.metrics import mean_pinball_loss
from sklearn.preprocessing import StandardScaler

from benchmarks.tables import UCI, read_rows
from regard import NadarayaWatson
from regard.estimators.tables.bands import error_sizes

Floats = NDArray[np.float64]
LEVELS = [0.05, 0.25, 0.5, 0.75, 0.95]
REPLICATIONS, ROWS = 500, 300
GRID = np.linspace(0.02, 0.98, 25)[:, None]


def errors(shape: str, x: Floats, random: np.random.Generator) -> Floats:
    """Errors of deviation 0.4: normal, skewed, or larger to the right."""
    if shape == "skewed":
        return 0.4 * (random.exponential(size=len(x)) - 1)
    return 0.4 * random.standard_normal(len(x)) * (0.2 + 1.6 * x if shape == "heteroscedastic" else 1)


def coverage() -> None:
    """The fraction of functions in 95 % bands and of new targets in 90 % intervals."""
    for order in (0, 1):
        for shape in ("normal", "skewed", "heteroscedastic"):
            random = np.random.default_rng(0)
            held: dict[str, list[float]] = {}
            for _ in range(REPLICATIONS):
                x, new = random.uniform(size=ROWS), random.uniform(size=ROWS)
                y, target = (np.sin(6 * each) + errors(shape, each, random) for each in (x, new))
                model = NadarayaWatson(order=order, bandwidth="cv", verbose=False).fit(x[:, None], y)
                for bias in ("corrected", "undersmoothed", "ignored"):
                    for kind in ("pointwise", "simultaneous"):
                        _, low, high = model.bands(GRID, bias=bias, kind=kind)
                        inside = (low <= np.sin(6 * GRID[:, 0])) & (np.sin(6 * GRID[:, 0]) <= high)
                        held.setdefault(f"{kind} {bias}", []).append(
                            float(inside.all() if kind == "simultaneous" else inside.mean())
                        )
                _, low, high = model.predict(new[:, None], interval=0.9)
                held.setdefault("interval", []).append(float(((low <= target) & (target <= high)).mean()))
            print(f"order {order} {shape}:", {name: round(float(np.mean(part)), 3) for name, part in held.items()})


def kernel_quantiles(x: Floats, y: Floats, new: Floats) -> Floats:
    return NadarayaWatson(order=1, random_state=0, verbose=False).fit(x, y).predict(new, quantiles=LEVELS)


def boosted_quantiles(x: Floats, y: Floats, new: Floats) -> Floats:
    models = [GradientBoostingRegressor(loss="quantile", alpha=level, random_state=0).fit(x, y) for level in LEVELS]
    return np.stack([model.predict(new) for model in models], axis=1)


def linear_quantiles(x: Floats, y: Floats, new: Floats) -> Floats:
    scale = StandardScaler().fit(x)
    models = [QuantileRegressor(quantile=level, alpha=0).fit(scale.transform(x), y) for level in LEVELS]
    return np.stack([model.predict(scale.transform(new)) for model in models], axis=1)


def forest_quantiles(x: Floats, y: Floats, new: Floats) -> Floats:
    forest = RandomForestRegressor(min_samples_leaf=5, random_state=0).fit(x, y)
    leaves, order = forest.apply(x), np.argsort(y)
    found = np.empty((len(new), len(LEVELS)))
    for row, leaf in enumerate(forest.apply(new)):
        same = leaves == leaf
        reached = np.cumsum((same / same.sum(axis=0)).mean(axis=1)[order])
        index = np.searchsorted(reached, np.array(LEVELS) * reached[-1])
        found[row] = y[order][np.minimum(index, len(y) - 1)]
    return found


PEERS: dict[str, Callable[[Floats, Floats, Floats], Floats]] = {
    "NadarayaWatson(order=1)": kernel_quantiles,
    "GradientBoosting": boosted_quantiles,
    "quantile forest": forest_quantiles,
    "QuantileRegressor": linear_quantiles,
}


def pinball(data: Path) -> None:
    """The quantile loss of each method on each table."""
    for table in UCI:
        rows = read_rows(data, table, 0)
        x, y, new, target = (np.asarray(part, dtype=float) for part in rows[1:])
        for name, predict in PEERS.items():
            start = time.process_time()
            found = predict(x, y, new)
            loss = np.mean([mean_pinball_loss(target, found[:, i], alpha=level) for i, level in enumerate(LEVELS)])
            print(f"{table:10} {len(x):6,} × {x.shape[1]:2} {name:24} {loss:.4f} {time.process_time() - start:7.1f} s")


def seconds(work: Callable[[], Any]) -> float:
    """The CPU time of a call, after one that compiles."""
    work()
    start = time.process_time()
    work()
    return time.process_time() - start


def bands() -> None:
    """A simultaneous band of 399 samples, and 399 refits to samples of the same errors."""
    random = np.random.default_rng(0)
    x = random.uniform(size=(100_000, 1))
    y = np.sin(12 * x[:, 0]) + 0.3 * random.standard_normal(len(x))
    grid = np.linspace(0, 1, 200)[:, None]
    model = NadarayaWatson(random_state=0, verbose=False).fit(x, y)
    ours = {
        bias: seconds(lambda bias=bias: model.bands(grid, kind="simultaneous", bias=bias))
        for bias in ("corrected", "ignored")
    }
    size, fit = error_sizes(model.smoother_, 0)[:, 0], model.predict(x)

    def refit(bandwidth: float | None) -> Floats:
        sample = fit + size * random.choice([-1.0, 1.0], len(x))
        return NadarayaWatson(bandwidth=bandwidth, random_state=0, verbose=False).fit(x, sample).predict(grid)

    fixed, chosen = seconds(lambda: refit(float(model.bandwidth_[0]))), seconds(lambda: refit(None))
    print({name: round(value, 2) for name, value in ours.items()}, "s for the band")
    print(f"399 refits: {399 * fixed:.1f} s with the same bandwidth, {399 * chosen:.0f} s with its own (of one, × 399)")


def quantiles() -> None:
    """19 quantiles at a million rows, 1 to 3 columns."""
    levels = np.linspace(0.05, 0.95, 19)
    for columns in (1, 2, 3):
        random = np.random.default_rng(0)
        x, new = random.standard_normal((2, 10**6, columns))
        y = np.sin(2 * x[:, 0]) + 0.5 * (1 + 0.5 * np.abs(x[:, -1])) * random.standard_normal(len(x))
        model = NadarayaWatson(bandwidth="scott", verbose=False).fit(x, y)
        model.predict(new[:1000], quantiles=[0.5])
        start, wall = time.process_time(), time.perf_counter()
        model.predict(new, quantiles=levels)
        used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        print(
            f"{columns}: {time.process_time() - start:.1f} s, wall {time.perf_counter() - wall:.1f} s, {used:.2f} GiB"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only", choices=("coverage", "pinball", "bands", "quantiles"), help="one part, instead of all"
    )
    parser.add_argument("--data", type=Path, default=Path(), help="folder that contains uci/")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    parts = {
        "coverage": coverage,
        "pinball": lambda: pinball(options.data),
        "bands": bands,
        "quantiles": quantiles,
    }
    for name, run in parts.items():
        if options.only in (None, name):
            run()


if __name__ == "__main__":
    main()
