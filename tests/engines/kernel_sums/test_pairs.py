"""The fused loops over pairs, and the NumPy sums, against the definition: every kernel, every form of input."""

from dataclasses import replace

import numpy as np
import pytest
import reference

from regard.engines import dense
from regard.engines.kernel_sums import pairs
from regard.engines.kernel_sums.pairs import FLOAT32, FLOAT64
from regard.engines.kernel_sums.problem import Points
from regard.kernels import KERNELS, Boxcar, Gaussian, Laplace, Tricube

KEYS, QUERIES = 1201, 331  # several blocks and groups of keys; sorted, because queries are more than 256


def case(kernel=Gaussian, features=2, columns=0, spread=2.0, values=1, seed=0):
    """Most queries among the keys, some far from all of them."""
    random = np.random.default_rng(seed)
    key = spread * random.normal(size=(KEYS, features))
    query = spread * random.normal(size=(QUERIES, features))
    query[:20] *= 10
    value = np.sin(2 * key[:, :1] * np.arange(1, values + 1)) + 7.0
    points = Points(query, key, value, kernel)
    if not columns:
        return points
    codes = [random.integers(0, 3, size=(count, columns)).astype(float) for count in (QUERIES, KEYS)]
    return replace(
        points,
        query_code=codes[0],
        key_code=codes[1],
        per_step=np.linspace(0.0, 1.5, columns),
        per_change=np.linspace(2.0, 0.5, columns),
    )


def weights(seed=1):
    return np.random.default_rng(seed).lognormal(size=KEYS)


def left_out(seed=2):
    return np.random.default_rng(seed).integers(-1, KEYS, size=QUERIES)


def check(points, tolerance=1e-6, moments=False):
    """All sums of both engines against the definition; returns what `pairs` says it runs."""
    log_weight, mean, offset, square, product = reference.kernel_sums(points)
    sees = np.isfinite(log_weight)
    assert sees.sum() > 250
    deviation = points.value.std(axis=0)
    for engine, allowed in ((dense, 1e-12), (pairs, tolerance)):
        found = engine.moments(points, tolerance) if moments else engine.means(points, tolerance)
        assert (np.abs(found.mean - mean) <= allowed * deviation + 1e-13)[sees].all()
        assert (found.mean[~sees] == 0).all()
        error = np.abs(found.log_weight[sees] - log_weight[sees])
        assert (error <= allowed + 1e-14 * np.abs(log_weight[sees])).all()
        assert np.isneginf(found.log_weight[~sees]).all()
        if moments:
            size = (1 + np.abs(offset).max(axis=1))[sees, None]
            assert (np.abs(found.offset - offset)[sees] <= allowed * size).all()
            assert (np.abs(found.square - square)[sees] <= allowed * size[:, None] ** 2).all()
            scale = deviation + np.abs(points.value.mean(axis=0))
            assert (np.abs(found.product - product)[sees] <= allowed * size[:, None] * scale).all()
    return pairs.algorithm(points, tolerance, moments=moments)


@pytest.mark.parametrize("kernel", KERNELS.values())
@pytest.mark.parametrize(
    "spread", [pytest.param(0.3, marks=pytest.mark.slow), 0.6, pytest.param(3.0, marks=pytest.mark.slow)]
)
def test_every_kernel_in_float32_and_float64(kernel, spread):
    points = case(kernel, spread=spread)
    assert check(points) == (FLOAT32 if kernel.profile.float32 else FLOAT64)
    assert check(points, 1e-9) == FLOAT64


@pytest.mark.parametrize("kernel", [Gaussian, pytest.param(Tricube, marks=pytest.mark.slow)])
@pytest.mark.parametrize("given", ["weights", "left_out", "weights and left_out", "two values", "no value"])
def test_weights_of_keys_keys_left_out_and_any_number_of_values(kernel, given):
    points = case(kernel, spread=0.5, values={"two values": 2, "no value": 0}.get(given, 1))
    points = replace(
        points, weight=weights() if "weights" in given else None, left_out=left_out() if "left_out" in given else None
    )
    # A light key may be the only one that a compact kernel sees: that needs float64.
    assert check(points) == (FLOAT64 if kernel is Tricube and "weights" in given else FLOAT32)
    check(points, 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("kernel", [Laplace, Tricube])
@pytest.mark.parametrize("columns", [1, 2])
def test_categorical_columns(kernel, columns):
    points = replace(case(kernel, columns=columns, spread=0.5), left_out=left_out())
    check(points)
    check(points, 1e-9)


@pytest.mark.parametrize("side", ["query_code", "key_code"])
def test_codes_that_float32_cannot_tell_apart_need_float64(side):
    points = case(Laplace, columns=1, spread=0.5)
    large = replace(points, query_code=points.query_code + 2.0**24, key_code=points.key_code + 2.0**24)
    assert check(large) == FLOAT64
    assert pairs.algorithm(points, 1e-6) == FLOAT32
    assert pairs.algorithm(replace(points, **{side: getattr(large, side)}), 1e-6) == FLOAT64


@pytest.mark.parametrize("kernel", [Gaussian, Tricube])
@pytest.mark.parametrize("columns", [0, 1])
def test_moments(kernel, columns):
    points = replace(case(kernel, columns=columns, spread=0.5, values=2), left_out=left_out(), weight=weights())
    assert check(points, moments=True) == FLOAT64


@pytest.mark.parametrize("features", [0, 1, 9])
def test_any_number_of_features(features):
    """None, one that is sorted by itself, and more than loops are unrolled for."""
    value = np.random.default_rng(0).normal(size=(KEYS, 1)).clip(-3, 3)
    points = replace(case(features=max(1, features), spread=0.7), value=value)
    points = replace(points, query=points.query[:, :features], key=points.key[:, :features])
    check(points)


@pytest.mark.parametrize("spread", [30.0, 3000.0])
def test_points_far_apart_keep_their_digits(spread):
    """A block of queries wider than `NARROW` bandwidths needs two float32 for a coordinate."""
    points = case(spread=spread, features=1)
    check(replace(points, query=points.query + 1e5, key=points.key + 1e5))


def test_values_far_from_the_mean_need_float64():
    points = case()
    value = points.value.copy()
    value[7] = 1000.0
    points = replace(points, value=value)
    assert check(points) == FLOAT64


def test_the_edge_of_a_kernel_that_jumps_is_exact():
    """On a lattice many distances are exactly 1, where a boxcar is 0."""
    random = np.random.default_rng(0)
    key = random.integers(-8, 9, size=(KEYS, 2)) / 4
    query = random.integers(-8, 9, size=(QUERIES, 2)) / 4
    points = Points(query, key, random.normal(size=(KEYS, 1)), Boxcar)
    log_weight = reference.kernel_sums(points)[0]
    for engine in (dense, pairs):
        np.testing.assert_array_equal(
            np.rint(np.exp(engine.means(points, 1e-6).log_weight)), np.rint(np.exp(log_weight))
        )


@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (0, 5), (5, 0), (1, 1201), (257, 3)])
def test_few_queries_and_few_keys(queries, keys):
    points = case()
    points = replace(points, query=points.query[:queries] / 10, key=points.key[:keys], value=points.value[:keys])
    found = pairs.means(points)
    if keys == 0:
        assert (found.mean == 0).all()
        assert np.isneginf(found.log_weight).all()
    else:
        log_weight, mean, *_ = reference.kernel_sums(points) if queries else (np.empty(0), np.empty((0, 1)))
        np.testing.assert_allclose(found.mean, mean, atol=1e-6)
        np.testing.assert_allclose(found.log_weight, log_weight, atol=1e-6)


def test_skipping_blocks_changes_nothing_but_the_time():
    points = case(features=1, spread=40.0)
    found, whole = pairs.means(points), pairs.means(points, skip=False)
    np.testing.assert_allclose(found.mean, whole.mean, atol=1e-6)
    np.testing.assert_allclose(found.log_weight, whole.log_weight, atol=1e-6)


@pytest.mark.parametrize("tolerance", [-0.1, 1.0, float("nan")])
def test_a_tolerance_outside_its_range_raises(tolerance):
    with pytest.raises(ValueError, match="tolerance must be at least 0 and below 1, got"):
        pairs.Pairs(tolerance)
