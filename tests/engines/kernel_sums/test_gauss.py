"""The Gauss transform against all pairs in float64: the tolerance holds for every query, whatever the data."""

from dataclasses import replace

import numpy as np
import pytest
import reference

from regard.engines import dense
from regard.engines.kernel_sums import gauss, pairs
from regard.engines.kernel_sums.problem import Moments, Points
from regard.kernels import Laplace

KEYS, QUERIES, VALUES = 1201, 331, 3
COMPILED = {"means": pairs.means, "moments": pairs.moments}
CASES = ["normal", "clusters", "cauchy", "duplicates", "line", "shifted", "lattice", "tiny", "huge"]


@pytest.fixture(autouse=True)
def small_grids(monkeypatch):
    """Fast in three dimensions too; boxes are cut then."""
    monkeypatch.setattr(gauss, "FEWEST_MODES", 2**18)


@pytest.fixture(autouse=True)
def numpy_pairs(monkeypatch):
    """The NumPy sums stand in for the loops of `pairs`, which take half a minute to compile, but for one slow test."""
    monkeypatch.setattr(pairs, "means", dense.means)
    monkeypatch.setattr(pairs, "moments", dense.moments)


def brute(points: Points) -> Moments:
    return Moments(*reference.kernel_sums(points))


def case(name: str, features: int, weighted: bool = False, left_out: bool = False) -> Points:
    """Keys, and queries of which most are keys, the others between and beyond them; three columns of values."""
    random = np.random.default_rng(len(name) + features)
    spread = (40.0, 6.0, 1.0)[features - 1]
    key = spread * random.normal(size=(KEYS, features))
    if name == "clusters":
        key = 0.01 * random.normal(size=(KEYS, features))
        key[: KEYS // 3, 0] += 13.0
    elif name == "cauchy":
        key = random.standard_cauchy(size=(KEYS, features))
    elif name == "duplicates":
        key = key[random.integers(0, 20, size=KEYS)]
    elif name == "line":
        key = random.normal(size=(KEYS, 1)) * spread * np.arange(1, features + 1) / features
    elif name == "lattice":
        key = random.integers(-6, 7, size=(KEYS, features)).astype(float)
    elif name == "tiny":
        key = 1e-3 * key
    elif name == "huge":
        key = 1e3 * key
    chosen = random.permutation(KEYS)[: QUERIES - 60]
    low, high = key.min(axis=0), key.max(axis=0)
    between = random.uniform(low - 12, high + 12, size=(30, features))
    along = low + (high - low) * np.linspace(-1, 2, 30)[:, None]
    query = np.concatenate([key[chosen], between, along])
    shift = 1e6 if name == "shifted" else 0.0
    value = np.stack([np.sin(key[:, 0]), 1e3 + random.standard_t(2, size=KEYS), np.full(KEYS, 0.1)], axis=1)
    return Points(
        query + shift,
        key + shift,
        value,
        weight=random.lognormal(sigma=2, size=KEYS) if weighted else None,
        left_out=np.concatenate([chosen, np.full(60, -1)]) if left_out else None,
    )


def count_pairs(monkeypatch):
    """The number of queries that go to `pairs`, call by call."""
    counts = []
    for name in ("means", "moments"):
        exact = getattr(pairs, name)

        def counted(points, tolerance, exact=exact):
            counts.append(len(points.query))
            return exact(points, tolerance)

        monkeypatch.setattr(pairs, name, counted)
    return counts


def check(points, tolerance, moments=True):
    """Means and moments of all queries are within the tolerance of the definition, which is slow and computed once."""
    wanted = brute(points)
    assert_means(gauss.means(points, tolerance), points, tolerance, wanted)
    if moments:
        assert_moments(gauss.moments(points, tolerance), points, tolerance, wanted)


def assert_means(got, points, tolerance, wanted):
    deviation = points.value.std(axis=0)
    deviation[points.value.min(axis=0) == points.value.max(axis=0)] = 0
    # What float64 itself cannot hold of a large mean or a far query's log weight.
    rounding = 1e-13 * np.abs(points.value).max(axis=0)
    assert (np.abs(got.mean - wanted.mean) <= tolerance * deviation + rounding).all()
    seen = np.isfinite(wanted.log_weight)
    assert np.isneginf(got.log_weight[~seen]).all()
    error = np.abs(got.log_weight - wanted.log_weight)[seen]
    assert (error <= tolerance + 1e-14 * np.abs(wanted.log_weight[seen])).all()


def assert_moments(got, points, tolerance, wanted):
    assert_means(got, points, tolerance, wanted)
    # Of far queries u is large, and only its relative error can be small.
    size = 1 + np.abs(wanted.offset).max(axis=1)
    scale = points.value.std(axis=0) + np.abs(points.value.mean(axis=0))
    assert (np.abs(got.offset - wanted.offset) <= tolerance * size[:, None]).all()
    assert (np.abs(got.square - wanted.square) <= tolerance * size[:, None, None] ** 2).all()
    assert (np.abs(got.product - wanted.product) <= tolerance * size[:, None, None] * scale).all()


@pytest.mark.slow
@pytest.mark.parametrize("features", [1, 2, 3])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("more", [False, True])
def test_every_query_is_within_the_tolerance(name, features, more):
    points = case(name, features, weighted=more, left_out=more)
    check(points, 1e-6, moments=more)


@pytest.mark.slow
@pytest.mark.parametrize("tolerance", [1e-2, 1e-4, 1e-9])
@pytest.mark.parametrize("features", [1, 2, 3])
def test_other_tolerances(features, tolerance):
    points = case("normal", features, weighted=True, left_out=True)
    check(points, tolerance)


@pytest.mark.parametrize("features", [1, 2, 3])
def test_one_key_errs_within_the_measured_bound(features):
    """The bound on any data follows from it; it must hold for a new release of finufft too."""
    random = np.random.default_rng(features)
    for _ in range(5):
        high = random.uniform(4, 9, size=features)
        corners = np.stack([np.zeros(features), high])
        key = random.uniform(0, high)
        query = np.concatenate([random.uniform(0, high, size=(500, features)), corners])
        points = Points(query, np.concatenate([key[None], corners]), np.zeros((3, 0)))
        box = gauss.fit_box(points)
        offset = (key - query).T
        kernel = np.exp(-0.5 * (offset**2).sum(axis=0))
        for precision in gauss.PRECISIONS[features]:
            sums = gauss.transform(points, np.array([[1.0, 0.0, 0.0]]), slice(None), box, precision, moments=True)
            bound = precision.near * np.sqrt(kernel) + gauss.FAR
            gradient_bound = precision.gradient_near * np.sqrt(kernel) + gauss.GRADIENT_FAR
            assert (np.abs(sums.plain[0] - kernel) <= bound).all()
            assert (np.abs(sums.gradient[:, 0] - offset * kernel) <= gradient_bound).all()
            assert (np.abs(sums.square - offset[:, None] * offset * kernel) <= gradient_bound).all()


@pytest.mark.slow
@pytest.mark.parametrize(("tolerance", "enough"), [(1e-4, 1e-3), (1e-6, 1e-3), (1e-8, 1.0)])
@pytest.mark.parametrize("features", [1, 2, 3])
def test_any_distance_from_one_heavy_cluster(features, tolerance, enough, monkeypatch):
    """The worst there is: errors of all keys add up, and weights fall to nothing. Also if little is exact enough."""
    monkeypatch.setattr(gauss, "ENOUGH", enough)
    random = np.random.default_rng(0)
    key = 0.01 * random.normal(size=(40, features))
    away = random.normal(size=(2003, features))
    query = away / np.linalg.norm(away, axis=1, keepdims=True) * np.linspace(0, 9, 2003)[:, None]
    points = Points(query, key, random.normal(size=(40, 1)))
    check(points, tolerance)


@pytest.mark.parametrize("features", [1, 2, 3])
def test_the_transform_answers_nearly_all(features, monkeypatch):
    monkeypatch.setattr(gauss, "FEWEST_MODES", 2**21)
    counts = count_pairs(monkeypatch)
    key = np.random.default_rng(0).normal(size=(20_000, features)) * 20_000 ** (1 / (features + 4))
    points = Points(key, key, key[:, :1] ** 2, left_out=np.arange(len(key)))
    gauss.means(points, 1e-6)
    assert sum(counts) < 0.01 * len(key)


@pytest.mark.slow
def test_the_compiled_loops_answer_the_others(monkeypatch):
    for name, compiled in COMPILED.items():
        monkeypatch.setattr(pairs, name, compiled)
    counts = count_pairs(monkeypatch)
    points = case("cauchy", 2, weighted=True, left_out=True)
    check(points, 1e-6)
    assert len(counts) == 2
    assert min(counts) > 0


def test_leaving_out_costs_no_more_transforms(monkeypatch):
    plans = []
    make = gauss.make_transform
    monkeypatch.setattr(gauss, "make_transform", lambda *given: plans.append(given[0]) or make(*given))
    points = case("normal", 2, left_out=True)
    gauss.means(points, 1e-6)
    assert plans == [1, 2, 1, 2]  # four columns, two at a time
    gauss.means(replace(points, left_out=None), 1e-6)
    assert plans == [1, 2, 1, 2] * 2


def test_points_wider_than_the_grid_are_answered_where_they_are_dense(monkeypatch):
    counts = count_pairs(monkeypatch)
    monkeypatch.setattr(gauss, "FEWEST_MODES", 400)
    monkeypatch.setattr(gauss, "MODES_PER_POINT", 0)
    points = case("cauchy", 1, left_out=True).for_queries(slice(QUERIES - 60))
    check(points, 1e-6, moments=False)
    assert 0 < sum(counts) < 0.3 * QUERIES
    check(points, 1e-6)


def test_an_own_key_elsewhere_is_left_out_too():
    """Also where it is so heavy that all others are small beside it, or outside of the box."""
    points = case("normal", 1)
    random = np.random.default_rng(0)
    key = np.append(points.key, [[60.0]], axis=0)
    points = Points(
        points.query[:200],
        key,
        np.append(points.value, [[5.0, 5.0, 0.1]], axis=0),
        weight=np.append(np.ones(KEYS), 1e9),
        left_out=np.where(random.random(200) < 0.5, KEYS, random.integers(0, KEYS, size=200)),
    )
    check(points, 1e-6)


@pytest.mark.parametrize("features", [1, 2, 3])
@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (1, 50), (50, 1), (1, 2)])
def test_one_query_one_key(features, queries, keys):
    random = np.random.default_rng(0)
    points = Points(
        random.normal(size=(queries, features)), random.normal(size=(keys, features)), random.normal(size=(keys, 2))
    )
    check(points, 1e-6)


def test_a_query_that_sees_no_key():
    points = Points(np.zeros((1, 2)), np.zeros((1, 2)), np.ones((1, 1)), left_out=np.array([0]))
    mean, log_weight = gauss.means(points, 1e-6)
    assert mean.tolist() == [[0.0]]
    assert log_weight.tolist() == [-np.inf]


@pytest.mark.parametrize(
    ("points", "reason"),
    [
        (
            Points(np.zeros((9, 1)), np.zeros((9, 1)), np.zeros((9, 1)), kernel=Laplace),
            "gauss supports only the Gaussian kernel",
        ),
        (
            Points(np.zeros((9, 1)), np.zeros((9, 1)), np.zeros((9, 1)), per_step=np.ones(2), per_change=np.ones(2)),
            "gauss supports only numeric columns, got 2 categorical ones",
        ),
        (Points(np.zeros((9, 4)), np.zeros((9, 4)), np.zeros((9, 1))), "gauss supports 1 to 3 features, got 4"),
        (
            Points(np.zeros((9, 2)), np.zeros((9, 2)), np.zeros((9, 1))),
            "81 pairs are few: gauss is faster from 100,000,000",
        ),
    ],
)
def test_unsuitable_says_why(points, reason):
    assert gauss.unsuitable(points) == reason


def test_suits_points_that_are_many_and_near():
    near = np.random.default_rng(0).normal(size=(40_000, 2))
    value = near[:, :1]
    assert gauss.unsuitable(Points(near, near, value)) is None
    wide = 1e5 * near
    assert gauss.unsuitable(Points(wide, wide, value)).startswith("points are too far apart relative to the bandwidth")
    assert gauss.unsuitable(Points(near + 1e3, near, value)).startswith(
        "points are too far apart relative to the bandwidth"
    )
