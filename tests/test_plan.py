"""`plan` names what `attend` runs: the functions that really run are recorded, and compared with the plan."""

import math
import sys

import numpy as np
import pytest
import torch
from helpers.cases import rand

import regard
from regard import masks, scores, weighing
from regard.engines import Dense, Stream, dense, flash, fused, stream
from regard.engines.kernel_sums import gauss, pair_loops, pairs
from regard.engines.kernel_sums.problem import Points
from regard.kernels import Gaussian, Tricube

attending = sys.modules["regard.attend"]  # `regard.attend` is the function
OTHER_ENGINES = ["dense", "flash", "stream", Stream(64), "pairs", "gauss"]


@pytest.fixture
def ran(monkeypatch):
    """What runs, by the names that plans use, each once."""
    names = []

    def record(owner, function, name):
        real = getattr(owner, function)

        def recorded(*given, **named):
            algorithm = name(*given, **named) if callable(name) else name
            if algorithm not in names:
                names.append(algorithm)
            return real(*given, **named)

        monkeypatch.setattr(owner, function, recorded)

    record(Dense, "attend", dense.WHOLE_MATRIX)
    record(dense, "means", dense.WHOLE_MATRIX)
    record(dense, "moments", dense.WHOLE_MATRIX)
    record(flash, "torch_attention", flash.TORCH_KERNEL)
    record(stream, "attend_blocks", stream.RECOMPUTED)
    record(fused, "attend_heads", stream.FUSED)
    record(gauss, "transform", gauss.FOURIER)
    record(
        pairs,
        "sort_points",
        lambda points, heaviest, precise, moments, *, skip: pairs.FLOAT32 if precise[0] < math.inf else pairs.FLOAT64,
    )
    # Which loops run is known before they are compiled, which takes seconds.
    monkeypatch.setattr(pair_loops, "make_formulas", lambda kernel, features: None)
    monkeypatch.setattr(pair_loops, "compile_loops", lambda: lambda *given: None)
    # Few pairs count as many, so that all engines are chosen.
    monkeypatch.setattr(attending, "PAIRS_FROM", 2**9)
    monkeypatch.setattr(attending, "GAUSS_FROM", 2**12)
    monkeypatch.setattr(attending, "_DENSE_LIMIT", 2**14)
    torch.set_num_threads(2)
    return names


def check(ran, tensors, **given):
    """What ran is what the plan says; returns the plan."""
    plan = regard.plan(*tensors, **given)
    assert not ran
    regard.attend(*tensors, **given)
    if plan.algorithm == gauss.FOURIER:  # it says itself that some queries may go to pairs
        assert ran[0] == gauss.FOURIER
    else:
        assert ran == [plan.algorithm]
    ran.clear()
    return plan


SCORES = {
    "inner product": lambda: scores.scaled_dot,
    "gaussian": lambda: scores.Gaussian(3.0),
    "narrow gaussian": lambda: scores.Gaussian(0.1),
    "very narrow gaussian": lambda: scores.Gaussian(1e-4),
    "laplace": lambda: scores.Laplace(1.0),
    "boxcar": lambda: scores.Boxcar(1.0),
    "learned": lambda: scores.Additive(2, 2, 3),
}
MASKS = {
    "none": lambda queries, keys: None,
    "causal": lambda queries, keys: masks.causal,
    "per key": lambda queries, keys: torch.linspace(-1, 1, keys),
    "learned": lambda queries, keys: torch.zeros(queries, keys, requires_grad=True),
}
SHAPES = {"short heads": (2, 3, 5, 7), "one head": (33, 29), "long": (150, 130)}


@pytest.mark.parametrize("score_name", SCORES)
@pytest.mark.parametrize("mask_name", MASKS)
@pytest.mark.parametrize("shape_name", SHAPES)
def test_what_runs_is_what_the_plan_says(score_name, mask_name, shape_name, ran):
    *leading, queries, keys = SHAPES[shape_name]
    tensors = [rand(*leading, length, 2, seed=length, dtype=torch.float32) for length in (queries, keys, keys)]
    given = {"score": SCORES[score_name](), "mask": MASKS[mask_name](queries, keys)}
    check(ran, tensors, **given)
    check(ran, [x.requires_grad_() for x in tensors], **given)
    tensors = [x.detach() for x in tensors]
    check(ran, tensors, **given, dropout=0.2)
    for engine in OTHER_ENGINES:
        job = attending.make_job(*tensors, given["score"], given["mask"], weighing.softmax, 0.0)
        name = engine if isinstance(engine, str) else engine.name
        if not attending.ENGINES[name].refuses(job):
            plan = check(ran, tensors, **given, engine=engine)
            assert plan[:2] == (name, "it was requested")
    wide = given["score"].double() if score_name == "learned" else given["score"]
    check(ran, [x.double() for x in tensors], score=wide)


def test_each_algorithm_is_chosen_somewhere(ran):
    few, many = ([rand(n, 2, seed=n, dtype=torch.float32) for n in (q, k, k)] for q, k in ((20, 30), (300, 130)))
    found = {
        check(ran, few).algorithm,
        check(ran, few, weigh=weighing.linear).algorithm,
        check(ran, many, dropout=0.1).algorithm,
        check(ran, many, score=scores.Laplace(1.0), mask=masks.causal).algorithm,
        check(ran, many, score=scores.Laplace(1.0)).algorithm,
        check(ran, many, score=scores.Boxcar(1.0)).algorithm,
        check(ran, many, score=scores.Gaussian(1.0)).algorithm,
    }
    pair_algorithms, stream_algorithms = (
        {pairs.FLOAT32, pairs.FLOAT64},
        {stream.FUSED, stream.RECOMPUTED},
    )
    assert found == {dense.WHOLE_MATRIX, flash.TORCH_KERNEL, gauss.FOURIER, *pair_algorithms, *stream_algorithms}


def test_columns_of_values_decide_between_pairs_and_stream(ran):
    query, key = (rand(n, 2, seed=n, dtype=torch.float32) for n in (100, 110))
    score = scores.Laplace(1.0)
    for columns, engine in ((attending.PAIRS_VALUES, "pairs"), (attending.PAIRS_VALUES + 1, "dense")):
        value = rand(110, columns, dtype=torch.float32)
        assert check(ran, (query, key, value), score=score).engine == engine


def test_flash_hands_over_to_stream_if_points_are_too_far_apart(ran):
    x = 1e4 * rand(20, 2, dtype=torch.float32)
    plan = check(ran, (x, x, x), score=scores.Gaussian(1.0), engine="flash")
    assert (plan.engine, plan.algorithm) == ("flash", stream.FUSED)


@pytest.mark.parametrize("wrong", [math.nan, math.inf, 1e30])
def test_rows_that_torchs_kernel_loses_are_computed_again_by_stream(wrong, ran):
    query, key, value = (rand(n, 8, seed=n, dtype=torch.float32) for n in (5, 7, 7))
    key[2], query[:] = wrong, query.abs() * min(wrong, 1e30)
    plan = regard.plan(query, key, value)
    assert plan.algorithm == f"{flash.TORCH_KERNEL}; then {stream.FUSED}, if a row is 0 or NaN"
    regard.attend(query, key, value)
    assert ran == [flash.TORCH_KERNEL, stream.FUSED]


def test_gauss_hands_over_to_pairs_if_its_grid_would_be_too_large(ran):
    x = 1e9 * rand(100, 2, dtype=torch.float32)
    plan = check(ran, (x, x, x), score=scores.Gaussian(1.0), engine="gauss")
    assert (plan.engine, plan.algorithm) == ("gauss", pairs.FLOAT32)


def test_the_empty_and_the_transformed_are_dense(ran):
    nothing = torch.zeros(0, 4)
    assert check(ran, (nothing, nothing, nothing)).why == "empty input: no queries or no keys"
    x, plans = torch.randn(2, 5, 4), []

    def attend(x):
        plans.append(regard.plan(x, x, x))
        return regard.attend(x, x, x)

    torch.func.vmap(attend)(x)
    assert (plans[0].engine, ran) == ("dense", [dense.WHOLE_MATRIX])


@pytest.mark.parametrize(("kernel", "features"), [(Gaussian, 2), (Gaussian, 9), (Tricube, 2)])
@pytest.mark.parametrize("given", ["plain", "exact", "very exact", "wide", "uneven", "few"])
def test_sums_run_what_their_plan_says(kernel, features, given, ran, monkeypatch):
    monkeypatch.setattr(attending, "DENSE_SUMS_LIMIT", 100)
    monkeypatch.setattr(gauss, "FEWEST_PAIRS", {1: 1000, 2: 1000, 3: 1000})
    random = np.random.default_rng(0)
    key = random.normal(size=(5 if given == "few" else 97, features)) * (1e12 if given == "wide" else 2.0)
    weight = np.where(np.arange(len(key)) == 3, 1e-40, 1.0) if given == "uneven" else None
    points = Points(key[:83], key, random.normal(size=(len(key), 1)).clip(-2, 2), kernel, weight)
    tolerance = {"exact": 1e-8, "very exact": 1e-10}.get(given, 1e-6)
    gaussian = kernel is Gaussian and features == 2 and given in ("plain", "exact")
    for moments, run in ((False, attending.kernel_means), (True, attending.kernel_moments)):
        plan = attending.plan_sums(points, tolerance, moments=moments)
        assert plan.engine == ("dense" if given == "few" else "gauss" if gaussian else "pairs")
        run(points, tolerance)
        assert ran[0] == plan.algorithm
        assert len(ran) == 1 or gaussian
        ran.clear()
