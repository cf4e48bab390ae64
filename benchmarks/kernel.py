"""`NadarayaWatson` compared with KeOps, statsmodels, nearest neighbours and boosted trees, on the CPU.

    python -m benchmarks.kernel --data FOLDER             everything; about two hours and 8 GiB
    python -m benchmarks.kernel --only million            the rows with this text in their name
    python -m benchmarks.kernel --data FOLDER --json results.json

FOLDER contains uci/ and curves/, see `benchmarks/kernel_quality.py`; without it the rows that need them are not run.

Speed is measured on N(0, 1) points with Scott's bandwidth and as many queries as rows; y is a sum of waves plus noise.
KeOps gets float32 points in units of the bandwidth, is compiled beforehand, and runs the faster of two formulations; at
sizes that would take it days, its time is extrapolated from its time per pair at 20,000 points. Times are the best of
several. `benchmarks/harness.py` describes how memory is measured; here it covers `fit` and `predict`.
"""

import contextlib
import functools
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
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
    options_parser,
    print_memory,
    report,
    times,
    yes_no,
)
from benchmarks.kernel_quality import Floats, curves, left_out_average, statsmodels_fit, tables
from regard.engines.kernel_sums import pairs
from regard.engines.kernel_sums.problem import Points
from regard.estimators import NadarayaWatson

MODULE = "benchmarks.kernel"
REPEATS = 20
BASE = 20_000
"""Number of points at which KeOps is timed."""
FLOAT32_ROWS = 10_000
"""Number of points at which float32 and float64 loops are timed."""
WARM_UP = 40_000
"""Number of points that loads all code for large inputs: from here on three features use the Fourier transform."""
CHECKED = 1000
"""Number of queries compared with the definition: half random, half the farthest out."""
TOLERANCE = 1e-6
GIB = 2**30


@dataclass(frozen=True)
class Sample:
    X: Floats  # [n, d]
    y: Floats  # [n]
    query: Floats  # [n, d]
    bandwidth: float | None = None  # default: Scott's

    def scaled(self) -> tuple[Floats, Floats]:
        """Query and key in units of the bandwidth."""
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
    """All pairs in float32, none skipped."""
    return [torch.from_numpy(pairs.means(Points(*sample.scaled(), sample.y[:, None]), skip=False).mean)]


def by_keops(sample: Sample) -> Sequence[Tensor]:
    query, key, value = (torch.from_numpy(x).float() for x in (*sample.scaled(), sample.y[:, None]))
    return [faster_formulation(query.shape[1])(query, key, value)]


def lazy(x: Tensor) -> Any:
    os.environ.setdefault("PYKEOPS_VERBOSE", "0")
    with contextlib.redirect_stdout(sys.stderr):  # the import prints that there is no GPU
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
def faster_formulation(features: int) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """The faster of two KeOps formulations: a softmax reduction, or a product with [y, 1]. Both are compiled first."""
    note(f"KeOps, {features} features: compiling")
    query, key = torch.randn(2, BASE // 4, features)
    value = torch.randn(BASE // 4, 1)
    calls = {run: partial(run, query, key, value) for run in (keops_softmax, keops_product)}
    return min(calls, key=lambda run: best_seconds(calls[run], rounds=3, warm=1))


def best_seconds(run: Callable[[], object], rounds: int, warm: int = 0) -> float:
    for _ in range(warm):
        run()
    seconds = []
    for _ in range(rounds):
        begin = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - begin)
    return min(seconds)


def pair_case(features: int, bandwidth: float | None) -> Case[Sample]:
    build = partial(normal, features=features, bandwidth=bandwidth)
    name = f"all pairs, {BASE:,} × {features}, bandwidth {bandwidth or 'Scott'}"
    small = partial(build, rows=2000)
    return Case(name, partial(build, rows=BASE), by_pairs, by_keops, 1 / 25, warm_up=small)


def predict_case(rows: int, features: int, bound: float) -> Case[Sample]:
    build = partial(normal, features=features)
    name = f"predict, {rows:,} × {features}"
    return Case(name, partial(build, rows=rows), by_estimator, by_keops, bound, warm_up=partial(build, rows=WARM_UP))


EVIDENCE_ROWS = 100_000
PAIR_CASES = [pair_case(features, bandwidth) for features in (1, 3) for bandwidth in (None, 1.0)]
MILLIONS = {features: predict_case(10**6, features, 1 / 1000) for features in (1, 2, 3)}
TEN_MILLION, SIX = predict_case(10**7, 1, math.inf), predict_case(200_000, 6, 1 / 15)
CASES = [*PAIR_CASES, *MILLIONS.values(), TEN_MILLION, SIX]


@functools.cache
def both_seconds(features: int, bandwidth: float | None = None) -> tuple[float, float]:
    """Our time and KeOps' for all pairs of `BASE` points, measured alternately."""
    case = pair_case(features, bandwidth)
    note(case.name)
    return times(case, REPEATS)


def keops_seconds(rows: int, features: int) -> float:
    return both_seconds(features)[1] * (rows / BASE) ** 2


@functools.cache
def predict_seconds(rows: int, features: int) -> float:
    """Time of `predict` alone, after a small call has loaded the code."""
    note(f"predict, {rows:,} × {features}")
    by_estimator(normal(SEED, WARM_UP, features))
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
            yes_no(ours <= peer * case.time_bound),
            memory_of(case, MODULE, "ours"),
            {"ours_seconds": ours, "peer_seconds": peer},
        )


def float32_loops() -> Iterator[Finding]:
    """The float32 loops of `pairs` compared with its float64 loops, on the same points, none skipped."""
    for features in (1, 3, 8):
        name = f"pairs in float32, {FLOAT32_ROWS:,} × {features} / in float64"
        note(name)
        sample = normal(SEED, FLOAT32_ROWS, features)
        points = Points(*sample.scaled(), sample.y.clip(-4, 4)[:, None])  # float32 is for values near the mean
        ours, peer = (
            best_seconds(partial(pairs.means, points, tolerance, skip=False), rounds=5, warm=1)
            for tolerance in (TOLERANCE, TOLERANCE / 1000)
        )
        numbers = {"ours_seconds": ours, "peer_seconds": peer}
        yield Finding(name, "≥ 1.1 × faster", f"{peer / ours:.1f} ×", yes_no(1.1 * ours <= peer), None, numbers)


def million() -> Iterator[Finding]:
    for features, case in MILLIONS.items():
        ours, peer = predict_seconds(10**6, features), keops_seconds(10**6, features)
        error, peak = worst_error(case), memory_of(case, MODULE, "ours")
        yield Finding(
            f"{case.name} / KeOps, extrapolated",
            f"≥ 1000 × faster, error ≤ {TOLERANCE:.0e}, ≤ 2 GiB",
            f"{peer / ours:,.0f} × ({ours:.2f} s and {peer:,.0f} s), error {error:.1e}",
            yes_no(ours <= peer * case.time_bound and error <= TOLERANCE and (peak or 0) <= 2 * GIB),
            peak,
            {"ours_seconds": ours, "peer_seconds": peer, "error": error},
        )


def worst_error(case: Case[Sample]) -> float:
    """Largest error of `CHECKED` queries compared with the definition in float64, in standard deviations of y."""
    note(f"{case.name}: checking {CHECKED} queries")
    sample = case.build(SEED)
    far = np.argsort(np.square(sample.query).sum(axis=1))[-CHECKED // 2 :]
    random = np.random.default_rng(SEED).choice(len(sample.query), CHECKED // 2, replace=False)
    rows = np.concatenate([far, random])
    model = fitted(sample)
    predicted = model.predict(sample.query)[rows]
    key = (sample.X / model.bandwidth_).T.copy()  # [d, n]
    worst = 0.0
    for index, query in enumerate(sample.query[rows] / model.bandwidth_):
        score = -0.5 * sum(np.square(along - coordinate) for along, coordinate in zip(key, query, strict=True))
        weight = np.exp(score - score.max())
        worst = max(worst, abs(predicted[index] - weight @ sample.y / weight.sum()))
    return worst / float(sample.y.std())


def ten_million() -> Iterator[Finding]:
    seconds, peak = predict_seconds(10**7, 1), memory_of(TEN_MILLION, MODULE, "ours")
    met = yes_no(peak is None or peak <= 4 * GIB)
    yield Finding(TEN_MILLION.name, "≤ 4 GiB", f"{seconds:.1f} s", met, peak, {"ours_seconds": seconds})


def six_features() -> Iterator[Finding]:
    ours, peer = predict_seconds(200_000, 6), keops_seconds(200_000, 6)
    yield Finding(
        f"{SIX.name} / KeOps, extrapolated",
        "≥ 15 × faster",
        f"{peer / ours:.1f} × ({ours:.1f} s and {peer:.0f} s)",
        yes_no(ours <= peer * SIX.time_bound),
        memory_of(SIX, MODULE, "ours"),
        {"ours_seconds": ours, "peer_seconds": peer},
    )


def cross_validation() -> Iterator[Finding]:
    """Time with a hundred times as many rows, and the minimal loss with the same rows."""
    few, many = normal(SEED, 1000, 1), normal(SEED, 100_000, 1)
    note("bandwidth by cross-validation: statsmodels, 1,000 rows")
    widths = {}

    def theirs() -> None:
        widths["statsmodels"] = float(statsmodels_fit(few.X, few.y, "lc").bw[0])

    peer = best_seconds(theirs, rounds=1)
    note("bandwidth by cross-validation: ours")
    search = NadarayaWatson(bandwidth="cv", verbose=False)
    widths["ours"] = float(search.fit(few.X, few.y).bandwidth_[0])  # also loads the code
    ours = best_seconds(lambda: search.fit(many.X, many.y), rounds=2)
    case = "bandwidth='cv', 100,000 × 1 / statsmodels cv_ls, 1,000 × 1"
    numbers = {"ours_seconds": ours, "peer_seconds": peer}
    yield Finding(case, "faster", f"{ours:.1f} s and {peer:.1f} s", yes_no(ours < peer), None, numbers)
    loss = {name: float(np.square(few.y - left_out_average(few.X, few.y, h)).mean()) for name, h in widths.items()}
    yield Finding(
        "bandwidth='cv', 1,000 × 1, minimal loss / statsmodels cv_ls",
        "at most 1 % above",
        f"{loss['ours']:.6f} and {loss['statsmodels']:.6f} at {widths['ours']:.4f} and {widths['statsmodels']:.4f}",
        yes_no(loss["ours"] <= 1.01 * loss["statsmodels"]),
        None,
        {"bandwidth": widths, "loss": loss},
    )


def growth() -> Iterator[Finding]:
    sizes = (10**5, 10**6, 10**7)
    seconds = [predict_seconds(rows, 1) for rows in sizes]
    exponent = float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])
    yield Finding(
        "growth, 10⁵, 10⁶, 10⁷ × 1",
        "near linear: exponent ≤ 1.1",
        f"{exponent:.2f} ({', '.join(f'{x:.2f}' for x in seconds)} s)",
        yes_no(exponent <= 1.1),
        None,
        {"seconds": seconds, "exponent": exponent},
    )


def evidence() -> Iterator[Finding]:
    """Rows a second and core, of predictions and of their evidence; where a tree does not help, of some queries."""
    cores = torch.get_num_threads()
    for features in (1, 2, 3, 5, 8):
        sample = normal(SEED, EVIDENCE_ROWS, features)
        query = sample.query if features < 5 else sample.query[: EVIDENCE_ROWS // 20]
        model = fitted(sample)
        model.evidence(query[:WARM_UP], top=5)
        predicted = EVIDENCE_ROWS / cores / predict_seconds(EVIDENCE_ROWS, features)
        shown = len(query) / cores / best_seconds(lambda m=model, q=query: m.evidence(q, top=5), rounds=3)  # type: ignore[misc]
        yield Finding(
            f"predict and evidence(top=5), {EVIDENCE_ROWS:,} × {features}",
            "≥ 100,000 and 50,000 rows a second and core",
            f"{predicted:,.0f} and {shown:,.0f}",
            yes_no(predicted >= 1e5 and shown >= 5e4),
            None,
            {"predicted": predicted, "shown": shown},
        )


SPEED = {
    "all pairs": all_pairs,
    "float32 loops": float32_loops,
    "million": million,
    "ten million": ten_million,
    "six features": six_features,
    "cross-validation": cross_validation,
    "growth": growth,
    "evidence": evidence,
}
QUALITY = {"tables": tables, "curves": curves}


def main() -> None:
    parser = options_parser(MODULE, data="contains uci/ and curves/")
    options = parser.parse_args()
    torch.set_num_threads(THREADS)
    if options.memory:
        print_memory(CASES, options.memory)
        return
    rows = SPEED | {name: partial(row, options.data) for name, row in QUALITY.items()}
    selected = [row for name, row in rows.items() if options.only in name]
    if not selected:
        parser.error(f"--only must be part of a row's name, one of {', '.join(rows)}")
    facts = machine()
    report([finding for row in selected for finding in row()], facts, options.json)


if __name__ == "__main__":
    main()
