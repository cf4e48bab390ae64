"""`NadarayaWatson` beside KeOps, statsmodels, nearest neighbours and boosted trees, on the CPU.

    python -m benchmarks.kernel --data FOLDER             all; allow two hours and 8 GiB
    python -m benchmarks.kernel --only million            the rows with a word in their name
    python -m benchmarks.kernel --data FOLDER --json found.json

FOLDER holds uci/ and curves/, see `benchmarks/kernel_quality.py`; without it, what needs them is not run.

Speed is on points that are N(0, 1), with bandwidths by Scott's rule and as many queries as rows, y a sum of
waves and noise. KeOps gets float32 points in bandwidths, is compiled beforehand and run in the quicker of
two ways; at sizes that would take it days, it is given its seconds for each pair at 20,000 points. Times are
the best of several. How memory is taken: `benchmarks/harness.py`; here it is that of `fit` and `predict`.
"""

import argparse
import contextlib
import functools
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.harness import (
    SEED,
    THREADS,
    Case,
    Finding,
    machine,
    memory_of,
    note,
    peak_extra,
    report,
    said,
    times,
)
from benchmarks.kernel_quality import Array, curves, left_out_average, statsmodels_fit, tables
from regard.engines.kernel_sums import pairs
from regard.engines.kernel_sums.problem import Points
from regard.estimators import NadarayaWatson

MODULE = "benchmarks.kernel"
BASE = 20_000
"""Points at which KeOps is timed."""
SHORT = 40_000
"""Points that load all that many need: from so many on, three features go by Fourier transform."""
CHECKED = 1000
"""Queries that are checked against the definition: half of them drawn, half the farthest out."""
TOLERANCE = 1e-6
GIB = 2**30


@dataclass(frozen=True)
class Sample:
    X: Array  # [n, d]
    y: Array  # [n]
    query: Array  # [n, d]
    bandwidth: float | None = None  # Scott's, where it is not given

    def scaled(self) -> tuple[Array, Array]:
        """Query and key in bandwidths."""
        scott = self.X.std(axis=0) * len(self.X) ** (-1 / (self.X.shape[1] + 4))
        width = self.bandwidth or scott
        return self.query / width, self.X / width


def normal(seed: int, rows: int, features: int, bandwidth: float | None = None) -> Sample:
    random = np.random.default_rng(seed)
    X, query = (random.normal(size=(rows, features)) for _ in range(2))  # noqa: N806
    return Sample(X, np.sin(2 * X).sum(axis=1) + 0.5 * random.normal(size=rows), query, bandwidth)


def by_estimator(sample: Sample) -> Sequence[Tensor]:
    return [torch.from_numpy(fitted(sample).predict(sample.query))]


def fitted(sample: Sample) -> NadarayaWatson:
    return NadarayaWatson(bandwidth="scott", tol=TOLERANCE, verbose=False).fit(sample.X, sample.y)


def by_pairs(sample: Sample) -> Sequence[Tensor]:
    """All pairs in float32."""
    return [torch.from_numpy(pairs.pool(Points(*sample.scaled(), sample.y[:, None]), skip=False).mean)]


def by_keops(sample: Sample) -> Sequence[Tensor]:
    query, key, value = (torch.from_numpy(x).float() for x in (*sample.scaled(), sample.y[:, None]))
    return [quicker_way(query.shape[1])(query, key, value)]


def lazy(x: Tensor) -> Any:
    os.environ.setdefault("PYKEOPS_VERBOSE", "0")
    with contextlib.redirect_stdout(sys.stderr):  # on import it still says that there is no GPU
        from pykeops.torch import LazyTensor
    return LazyTensor(x)


def keops_scores(query: Tensor, key: Tensor) -> Any:
    return -0.5 * ((lazy(query[:, None]) - lazy(key[None])) ** 2).sum(-1)


def keops_softmax(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return keops_scores(query, key).sumsoftmaxweight(lazy(value[None]), dim=1)


def keops_product(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    both = keops_scores(query, key).exp() @ torch.hstack([value, torch.ones_like(value)])
    return both[:, :1] / both[:, 1:]


@functools.cache
def quicker_way(features: int) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Of KeOps: one pass that keeps the largest score, or the product with [y, 1]; each compiled first."""
    note(f"KeOps, {features} features: compiling")
    query, key = torch.randn(2, BASE // 4, features)
    value = torch.randn(BASE // 4, 1)
    ways = {way: partial(way, query, key, value) for way in (keops_softmax, keops_product)}
    return min(ways, key=lambda way: best_seconds(ways[way], rounds=3, warm=1))


def best_seconds(run: Callable[[], object], rounds: int, warm: int = 0) -> float:
    for _ in range(warm):
        run()
    found = []
    for _ in range(rounds):
        begin = time.perf_counter()
        run()
        found.append(time.perf_counter() - begin)
    return min(found)


def pair_case(features: int, bandwidth: float | None) -> Case[Sample]:
    build = partial(normal, features=features, bandwidth=bandwidth)
    name = f"all pairs, {BASE:,} × {features}, bandwidth {bandwidth or 'by Scott'}"
    brief = partial(build, rows=2000)
    return Case(name, partial(build, rows=BASE), by_pairs, by_keops, 1 / 25, short=brief)


def predict_case(rows: int, features: int, bound: float) -> Case[Sample]:
    build = partial(normal, features=features)
    name = f"predict, {rows:,} × {features}"
    return Case(name, partial(build, rows=rows), by_estimator, by_keops, bound, short=partial(build, rows=SHORT))


PAIR_CASES = [pair_case(features, bandwidth) for features in (1, 3) for bandwidth in (None, 1.0)]
MILLIONS = {features: predict_case(10**6, features, 1 / 1000) for features in (1, 2, 3)}
TEN_MILLION, SIX = predict_case(10**7, 1, math.inf), predict_case(200_000, 6, 1 / 15)
CASES = [*PAIR_CASES, *MILLIONS.values(), TEN_MILLION, SIX]


@functools.cache
def both_seconds(features: int, bandwidth: float | None = None) -> tuple[float, float]:
    """Of all pairs of the base size: ours and KeOps', in turns."""
    case = pair_case(features, bandwidth)
    note(case.name)
    return times(case, repeats=20)


def keops_seconds(rows: int, features: int) -> float:
    return both_seconds(features)[1] * (rows / BASE) ** 2


@functools.cache
def predict_seconds(rows: int, features: int) -> float:
    """Of `predict` alone, after a short one has loaded what it needs."""
    note(f"predict, {rows:,} × {features}")
    by_estimator(normal(SEED, SHORT, features))
    sample = normal(SEED, rows, features)
    model = fitted(sample)
    return best_seconds(lambda: model.predict(sample.query), rounds=1 if rows > 10**6 else 3)


def all_pairs() -> Iterator[Finding]:
    for case, (features, bandwidth) in zip(PAIR_CASES, [(1, None), (1, 1.0), (3, None), (3, 1.0)], strict=True):
        ours, peer = both_seconds(features, bandwidth)
        speeds = [BASE**2 / seconds / 1e9 for seconds in (ours, peer)]
        measured = f"{peer / ours:.1f} × ({speeds[0]:.2f} and {speeds[1]:.3f} Gpair/s)"
        yield Finding(
            f"{case.name} / KeOps",
            "≥ 25 × faster",
            measured,
            said(ours <= peer * case.time_bound),
            memory_of(case, MODULE, "ours"),
            {"ours_seconds": ours, "peer_seconds": peer},
        )


def million() -> Iterator[Finding]:
    for features, case in MILLIONS.items():
        ours, peer = predict_seconds(10**6, features), keops_seconds(10**6, features)
        error, peak = worst_error(case), memory_of(case, MODULE, "ours")
        yield Finding(
            f"{case.name} / KeOps, extrapolated",
            f"≥ 1000 × faster, error ≤ {TOLERANCE:.0e}, ≤ 2 GiB",
            f"{peer / ours:,.0f} × ({ours:.2f} s and {peer:,.0f} s), error {error:.1e}",
            said(ours <= peer * case.time_bound and error <= TOLERANCE and (peak or 0) <= 2 * GIB),
            peak,
            {"ours_seconds": ours, "peer_seconds": peer, "error": error},
        )


def worst_error(case: Case[Sample]) -> float:
    """Of some queries against the definition in float64, in standard deviations of y."""
    note(f"{case.name}: checking {CHECKED} queries")
    sample = case.build(SEED)
    far = np.argsort(np.square(sample.query).sum(axis=1))[-CHECKED // 2 :]
    drawn = np.random.default_rng(SEED).choice(len(sample.query), CHECKED // 2, replace=False)
    rows = np.concatenate([far, drawn])
    model = fitted(sample)
    found = model.predict(sample.query)[rows]
    key = (sample.X / model.bandwidth_).T.copy()  # [d, n]
    worst = 0.0
    for place, query in enumerate(sample.query[rows] / model.bandwidth_):
        score = -0.5 * sum(np.square(along - coordinate) for along, coordinate in zip(key, query, strict=True))
        weight = np.exp(score - score.max())
        worst = max(worst, abs(found[place] - weight @ sample.y / weight.sum()))
    return worst / float(sample.y.std())


def ten_million() -> Iterator[Finding]:
    seconds, peak = predict_seconds(10**7, 1), memory_of(TEN_MILLION, MODULE, "ours")
    reached = said(peak is None or peak <= 4 * GIB)
    yield Finding(TEN_MILLION.name, "≤ 4 GiB", f"{seconds:.1f} s", reached, peak, {"ours_seconds": seconds})


def six_features() -> Iterator[Finding]:
    ours, peer = predict_seconds(200_000, 6), keops_seconds(200_000, 6)
    yield Finding(
        f"{SIX.name} / KeOps, extrapolated",
        "≥ 15 × faster",
        f"{peer / ours:.1f} × ({ours:.1f} s and {peer:.0f} s)",
        said(ours <= peer * SIX.time_bound),
        memory_of(SIX, MODULE, "ours"),
        {"ours_seconds": ours, "peer_seconds": peer},
    )


def cross_validation() -> Iterator[Finding]:
    """Time at a hundred times the rows, and the least loss at the same rows."""
    few, many = normal(SEED, 1000, 1), normal(SEED, 100_000, 1)
    note("bandwidth by cross-validation: statsmodels, 1,000 rows")
    widths = {}

    def theirs() -> None:
        widths["statsmodels"] = float(statsmodels_fit(few.X, few.y, "lc").bw[0])

    peer = best_seconds(theirs, rounds=1)
    note("bandwidth by cross-validation: ours")
    search = NadarayaWatson(bandwidth="cv", verbose=False)
    widths["ours"] = float(search.fit(few.X, few.y).bandwidth_[0])  # loads what the many need too
    ours = best_seconds(lambda: search.fit(many.X, many.y), rounds=2)
    case = "bandwidth='cv', 100,000 × 1 / statsmodels cv_ls, 1,000 × 1"
    numbers = {"ours_seconds": ours, "peer_seconds": peer}
    yield Finding(case, "faster", f"{ours:.1f} s and {peer:.1f} s", said(ours < peer), None, numbers)
    loss = {name: float(np.square(few.y - left_out_average(few.X, few.y, h)).mean()) for name, h in widths.items()}
    yield Finding(
        "bandwidth='cv', 1,000 × 1, least loss / statsmodels cv_ls",
        "no more than 1 % above",
        f"{loss['ours']:.6f} and {loss['statsmodels']:.6f} at {widths['ours']:.4f} and {widths['statsmodels']:.4f}",
        said(loss["ours"] <= 1.01 * loss["statsmodels"]),
        None,
        {"bandwidth": widths, "loss": loss},
    )


def growth() -> Iterator[Finding]:
    sizes = (10**5, 10**6, 10**7)
    seconds = [predict_seconds(rows, 1) for rows in sizes]
    exponent = float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])
    yield Finding(
        "growth, 10⁵, 10⁶, 10⁷ × 1",
        "close to linear: exponent ≤ 1.1",
        f"{exponent:.2f} ({', '.join(f'{x:.2f}' for x in seconds)} s)",
        said(exponent <= 1.1),
        None,
        {"seconds": seconds, "exponent": exponent},
    )


SPEED = {
    "all pairs": all_pairs,
    "million": million,
    "ten million": ten_million,
    "six features": six_features,
    "cross-validation": cross_validation,
    "growth": growth,
}
QUALITY = {"tables": tables, "curves": curves}


def main() -> None:
    parser = argparse.ArgumentParser(prog=f"python -m {MODULE}")
    names = ", ".join([*SPEED, *QUALITY])
    parser.add_argument("--only", metavar="NAME", default="", help=f"rows whose name has this in it: {names}")
    parser.add_argument("--data", metavar="FOLDER", type=Path, help="with uci/ and curves/ in it")
    parser.add_argument("--json", metavar="FILE", type=Path, help="also write what was found to a file")
    parser.add_argument("--memory", nargs=2, metavar=("CASE", "SIDE"), help="peak extra bytes of one side, alone")
    options = parser.parse_args()
    torch.set_num_threads(THREADS)
    if options.memory:
        name, side = options.memory
        print(peak_extra(next(case for case in CASES if case.name == name), side))
        return
    rows = SPEED | {name: partial(row, options.data) for name, row in QUALITY.items()}
    chosen = {name: row for name, row in rows.items() if options.only in name}
    if not chosen:
        parser.error(f"--only must be part of a row's name, one of {names}")
    facts = machine()
    findings = [finding for row in chosen.values() for finding in row()]
    report(findings, facts, options.json)


if __name__ == "__main__":
    main()
