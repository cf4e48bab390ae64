"""The engines of kernels against the slow definition: the tolerance is a promise for every query, whatever the data."""

import multiprocessing
import warnings

import numba
import numpy as np
import pytest
import reference
import torch
from numpy.testing import assert_allclose

import regard
from regard import masks, scores
from regard.engines import compiling, gauss, pairs, sums
from regard.engines.pairs import Pairs
from regard.engines.points import BOXCAR, EPANECHNIKOV, GAUSSIAN, LAPLACE, TRICUBE, Moments, Points, Pooled

KINDS = [GAUSSIAN, LAPLACE, EPANECHNIKOV, BOXCAR, TRICUBE]
KEYS, QUERIES = 1201, 331
CASES = ["normal", "clusters", "cauchy", "duplicates", "line", "shifted", "lattice", "outlying values"]


def case(name, features, kind, scale, *, values=1, weighted=False, own=False, codes=0):
    """Keys, and queries of which most are keys, the others between and beyond them."""
    random = np.random.default_rng(len(name) + features)
    key = random.normal(size=(KEYS, features))
    if name == "clusters":
        key *= 1e-3
        key[: KEYS // 3, 0] += 1.0
    elif name == "cauchy":
        key = random.standard_cauchy(size=(KEYS, features))
    elif name == "duplicates":
        key = key[random.integers(0, 20, size=KEYS)]
    elif name == "line":
        key = key[:, :1] * np.arange(1, features + 1)
    elif name == "lattice":
        key = random.integers(-6, 7, size=(KEYS, features)).astype(float)
    elif name == "shifted":
        key += 1e5
    chosen = random.permutation(KEYS)[: QUERIES - 60]
    low, high = key.min(axis=0), key.max(axis=0)
    between = random.uniform(low, high, size=(30, features))
    beyond = low + (high - low) * np.linspace(-1, 2, 30)[:, None]
    value = np.sin(3 * key[:, :1]) + 0.1 * random.normal(size=(KEYS, values))
    if name == "outlying values":
        value = random.standard_t(1, size=(KEYS, values))
    code = random.integers(0, 4, size=(KEYS, codes)).astype(float)
    asked = random.integers(-1, 4, size=(QUERIES, codes)).astype(float)
    return Points(
        np.concatenate([key[chosen], between, beyond]) / scale,
        key / scale,
        value,
        kind,
        random.lognormal(sigma=2, size=KEYS) if weighted else None,
        np.concatenate([chosen, np.full(60, -1)]) if own else None,
        *((asked, code, np.array([0.0, 0.7])[:codes], np.array([1.3, 0.69])[:codes]) if codes else ()),
    )


def check_pooled(points, tolerance, engine):
    log_weight, mean, *_ = reference.kernel_sums(points)
    found = engine(points, tolerance)
    assert ((found.log_weight == -np.inf) == (log_weight == -np.inf)).all()
    seen = log_weight > -np.inf
    # Far away the logarithm is a large number, and has its own last digit.
    allowed = max(tolerance, 1e-9) + 1e-14 * np.abs(log_weight[seen])
    assert (np.abs(found.log_weight[seen] - log_weight[seen]) <= allowed).all()
    error = np.abs(found.mean - mean) / points.value.std(axis=0)
    assert error.max() <= max(tolerance, 1e-8), error.max()


@pytest.mark.parametrize("scale", [1e-3, 0.1, 0.7, 1e3])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("kind", KINDS)
def test_the_tolerance_is_kept_on_all_data(kind, name, scale):
    for points in (case(name, 2, kind, scale), case(name, 2, kind, scale, values=3, weighted=True, own=True)):
        check_pooled(points, 1e-6, pairs.pool)
        check_pooled(points, 0.0, sums.dense_pool)


@pytest.mark.parametrize("features", [1, 3, 11])
@pytest.mark.parametrize("scale", [0.02, 0.5, 3.0])
def test_any_number_of_features(features, scale):
    check_pooled(case("normal", features, GAUSSIAN, scale), 1e-6, pairs.pool)
    check_pooled(case("normal", features, GAUSSIAN, scale), 1e-12, pairs.pool)
    check_pooled(case("normal", features, GAUSSIAN, scale, own=True), 1e-6, pairs.pool)


@pytest.mark.parametrize("kind", [GAUSSIAN, TRICUBE])
def test_categories_count_as_they_should(kind):
    for settings in ({}, {"weighted": True, "own": True, "values": 2}):
        points = case("normal", 2, kind, 0.8, codes=2, **settings)
        check_pooled(points, 1e-6, pairs.pool)
        check_pooled(points, 0.0, sums.dense_pool)


@pytest.mark.parametrize("engine", [pairs.moments, sums.dense_moments])
@pytest.mark.parametrize("kind", [GAUSSIAN, EPANECHNIKOV])
def test_moments_are_the_definition(kind, engine):
    for points in (
        case("normal", 3, kind, 0.8, values=2),
        case("shifted", 3, kind, 0.8, values=2, weighted=True, own=True),
        case("normal", 1, kind, 1e-3),
    ):
        expected, found = reference.kernel_sums(points), engine(points, 1e-12)
        for part, (name, whole) in zip(found, zip(Moments._fields, expected, strict=True), strict=True):
            scale = 1 + np.abs(whole[np.isfinite(whole)]).max()
            seen = np.isfinite(whole)
            assert (np.isfinite(part) == seen).all()
            assert_allclose(part[seen] / scale, whole[seen] / scale, atol=1e-9, err_msg=name)


def test_nothing_to_see_and_nobody_to_look():
    empty = Points(np.zeros((3, 2)), np.zeros((0, 2)), np.zeros((0, 1)))
    for pool in (pairs.pool, sums.dense_pool):
        assert pool(empty, 1e-6).log_weight.tolist() == [-np.inf] * 3
        assert pool(empty, 1e-6).mean.tolist() == [[0.0]] * 3
        assert pool(Points(np.zeros((0, 2)), np.zeros((3, 2)), np.ones((3, 1))), 1e-6).mean.shape == (0, 1)
    alone = Points(np.ones((1, 2)), np.ones((1, 2)), np.full((1, 1), 7.0), own=np.array([0]))
    assert pairs.pool(alone, 1e-6).log_weight[0] == -np.inf
    featureless = Points(np.zeros((2, 0)), np.zeros((5, 0)), np.arange(5.0)[:, None])
    assert_allclose(pairs.pool(featureless, 1e-6).mean, 2.0)


def test_the_engine_of_attend(monkeypatch):
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(2, n, 2, generator=generator) for n in (300, 500, 500))
    bias = torch.randn(500, generator=generator)
    score = scores.Gaussian(0.5)
    for mask in (None, bias, masks.others, masks.both(masks.others, bias > 0), masks.both(bias, masks.others)):
        expected = regard.attend_parts(query.double(), key.double(), value.double(), score=score, mask=doubled(mask))
        for engine in ("pairs", "gauss"):
            found = regard.attend(query, key, value, score=score, mask=mask, engine=engine)
            torch.testing.assert_close(found.double(), expected.mean, atol=3e-6, rtol=0)
    assert regard.plan(query, key, value, score=score, engine="pairs").engine == "pairs"


def test_attend_picks_it_for_many_pairs_and_no_gradient():
    x = torch.linspace(0, 1, 2**14).unsqueeze(-1)
    settings = {"score": scores.Gaussian(0.1)}
    assert regard.plan(x, x, x, **settings).engine == "pairs"
    assert regard.plan(*[x.repeat(8, 1)] * 3, **settings).engine == "gauss"
    for other in (
        [x[:-1], x, x],
        [x.double()] * 3,
        [x, x, x.repeat(1, 9)],
        [x.clone().requires_grad_(), x, x],
        [x.masked_fill(x == 1, torch.nan), x, x],
    ):
        assert regard.plan(*other, **settings).engine not in ("pairs", "gauss")
    with torch.no_grad():
        assert regard.plan(x.clone().requires_grad_(), x, x, **settings).engine == "pairs"


@pytest.mark.parametrize("kernel", ["Gaussian", "Laplace", "Epanechnikov", "Tricube"])
@pytest.mark.parametrize(("far", "bandwidth"), [(0.0, 1.0), (0.0, 0.1), (1000.0, 1.0)])
def test_float32_is_at_most_twice_as_wrong_as_torch(kernel, far, bandwidth):
    generator = torch.Generator().manual_seed(0)
    query, key = ((torch.randn(n, 2, generator=generator) + far).double() for n in (300, 1000))
    value = torch.randn(1000, 3, generator=generator).double()
    width = bandwidth * (3 if kernel in ("Epanechnikov", "Tricube") else 1)
    profile = {
        "Gaussian": lambda u: -0.5 * u**2,
        "Laplace": lambda u: -u,
        "Epanechnikov": lambda u: torch.where(u < 1, torch.log1p(-(u.clamp(max=1) ** 2)), -torch.inf),
        "Tricube": lambda u: torch.where(u < 1, 3 * torch.log1p(-(u.clamp(max=1) ** 3)), -torch.inf),
    }[kernel]

    def plain(dtype):
        u = ((query.to(dtype)[:, None] - key.to(dtype)) / width).square().sum(-1).sqrt()
        return profile(u).softmax(-1).nan_to_num(0.0).to(dtype) @ value.to(dtype)

    ours = regard.attend(
        *(x.float() for x in (query, key, value)), score=getattr(scores, kernel)(width), engine="pairs"
    )
    error, torchs = ((x.double() - plain(torch.float64)).square().mean().sqrt() for x in (ours, plain(torch.float32)))
    assert error <= 2 * torchs


def doubled(mask):
    if isinstance(mask, masks.Both):
        return masks.both(doubled(mask.first), doubled(mask.second))
    return mask.double() if isinstance(mask, torch.Tensor) and mask.is_floating_point() else mask


def test_what_the_engine_refuses():
    x = torch.randn(5, 2)
    wrong = {
        "needs one of the kernels": {"score": scores.dot},
        "takes no mask": {"score": scores.Gaussian(), "mask": masks.causal},
        "takes no dropout": {"score": scores.Gaussian(), "dropout": 0.1},
    }
    for message, settings in wrong.items():
        with pytest.raises(ValueError, match=message):
            regard.attend(x, x, x, engine="pairs", **settings)
    with pytest.raises(ValueError, match="gives no gradients"):
        regard.attend(x.requires_grad_(), x, x, score=scores.Gaussian(), engine="pairs")
    with pytest.raises(ValueError, match="needs finite numbers"):
        regard.attend(x.detach() * torch.inf, x.detach(), x.detach(), score=scores.Gaussian(), engine="pairs")
    with pytest.raises(ValueError, match="takes 1 to 3 features"):
        regard.attend(*[torch.randn(5, 4)] * 3, score=scores.Gaussian(), engine="gauss")
    with pytest.raises(ValueError, match="gauss is for the Gaussian"):
        regard.attend(*[torch.randn(5, 2)] * 3, score=scores.Laplace(), engine="gauss")
    with pytest.raises(ValueError, match="tolerance must be"):
        Pairs(tolerance=-1)


def test_the_result_does_not_depend_on_the_number_of_threads():
    points = case("normal", 2, GAUSSIAN, 0.3)
    found: list[Pooled] = []
    before = torch.get_num_threads()
    for threads in (1, 2):
        torch.set_num_threads(threads)
        found.append(pairs.pool(points, 1e-6))
    torch.set_num_threads(before)
    assert (found[0].mean == found[1].mean).all()


def checked_rows(points, tolerance=1e-6, engine=pairs.pool):
    """Every query of points with many keys, against NumPy in float64."""
    found, exact = engine(points, tolerance), sums.dense_pool(points)
    deviation = points.value.std(axis=0)
    assert np.abs(found.log_weight - exact.log_weight).max() <= tolerance
    assert (np.abs(found.mean - exact.mean) / deviation).max() <= tolerance


@pytest.mark.parametrize("kind", [GAUSSIAN, LAPLACE, EPANECHNIKOV, TRICUBE])
def test_a_rare_class_keeps_the_tolerance(kind):
    random = np.random.default_rng(0)
    key = random.normal(size=(20_000, 2))
    key[:200] = key[:200] * 0.1 + 8
    checked_rows(Points(key[:300], key, (np.arange(20_000) < 200)[:, None] * 1.0, kind))


def test_many_far_keys_keep_the_tolerance():
    random = np.random.default_rng(0)
    for features, count in ((1, 100_000), (3, 100_000)):
        key = np.zeros((count, features))
        key[:, 0] = 5.25 + 0.01 * random.normal(size=count)
        key[count // 2 :, 0] *= -1
        query = random.uniform(-0.3, 0.3, size=(300, features))
        checked_rows(Points(query, key, (np.arange(count) < count // 2)[:, None] * 1.0))
        near = np.zeros((count, features))
        near[:, 0] = 9.8 + 0.001 * random.normal(size=count)
        query = random.uniform(4, 5, size=(300, features))
        query[0] = -4.9
        checked_rows(Points(query, near, random.normal(size=(count, 1))))


@pytest.mark.parametrize("size", [1e-140, 1e-44, 1e-40, 1e39, 1e140])
def test_weights_and_values_of_any_size(size):
    random = np.random.default_rng(0)
    key = random.normal(size=(700, 2))
    for engine in (pairs.pool, gauss.pool):
        checked_rows(Points(key[:300], key, key[:, :1], weight=np.full(700, size)), engine=engine)
        checked_rows(Points(key[:300], key, key[:, :1] * size), engine=engine)
        apart = random.uniform(0.5, 1, size=700)
        apart[0] = size
        checked_rows(Points(key[:300], key, key[:, :1], weight=apart), engine=engine)


def test_a_light_key_nearby_does_not_hide_a_heavy_one_far_away():
    query, key, value = torch.tensor([[0.0], [0.1]]), torch.tensor([[0.0], [40.0]]), torch.tensor([[1.0], [2.0]])
    for bias, mean in ((-590.0, 1.0), (-300.0, 1.0)):
        arguments = {"score": scores.Gaussian(1.0), "mask": torch.tensor([bias, 0.0])}
        assert_allclose(regard.attend(query, key, value, engine="pairs", **arguments)[0, 0], mean)
        assert_allclose(regard.attend(query, key, value, engine="dense", **arguments)[0, 0], mean)
    with pytest.raises(ValueError, match="takes biases of keys that differ by less than 600"):
        regard.attend(query, key, value, score=scores.Gaussian(1.0), mask=torch.tensor([-1000.0, 0.0]), engine="pairs")
    points = Points(
        query.double().numpy(), key.double().numpy(), value.double().numpy(), weight=np.array([1e-300, 1e300])
    )
    assert_allclose(pairs.pool(points).mean, reference.kernel_sums(points)[1])


def test_strangers_in_two_columns_are_still_seen_by_a_kernel_that_ends():
    random = np.random.default_rng(0)
    key = random.normal(size=(300, 2))
    code, asked = np.zeros((300, 2)), np.full((300, 2), -1.0)
    slopes = np.array([0.7, 700.0]), np.array([700.0, 0.7])
    points = Points(key, key, key[:, :1], TRICUBE, None, None, asked, code, *slopes)
    check_pooled(points, 1e-6, pairs.pool)


@pytest.mark.parametrize("kind", KINDS)
def test_a_lattice_whose_points_lie_at_the_very_edge(kind):
    grid = np.stack(np.meshgrid(np.arange(30), np.arange(30)), -1).reshape(-1, 2) * 0.1
    for bandwidth in (0.5, 1.0, 0.3):
        checked_rows(Points(grid / bandwidth, grid / bandwidth, np.sin(grid[:, :1]), kind))


def test_moments_keep_what_is_far_and_many():
    key = np.append(np.zeros(300), np.full(30_000, 24.0))[:, None]
    points = Points(np.zeros((1, 1)), key, np.arange(30_300.0)[:, None] % 7, LAPLACE)
    found, exact = pairs.moments(points, 1e-6), sums.dense_moments(points)
    assert_allclose(found.square, exact.square, rtol=1e-6)


@pytest.mark.parametrize("far", [10.0, 14.0, 23.5, 90.0])
def test_near_and_far_keys_in_one_block(far):
    key = np.concatenate([np.linspace(0, 1, 190), np.full(60, far)])[:, None]
    check_pooled(Points(np.linspace(0, 0.1, 64)[:, None], key, np.sin(key), GAUSSIAN), 1e-6, pairs.pool)


def test_no_column_of_values():
    x = torch.randn(5, 2)
    for engine in ("pairs", "gauss"):
        assert regard.attend(x, x, torch.zeros(5, 0), score=scores.Gaussian(), engine=engine).shape == (5, 0)


def test_a_forked_process_can_still_transform():
    x = np.random.default_rng(0).normal(size=(40_000, 2))
    points = Points(x * 10, x * 10, x[:, :1])
    expected = gauss.pool(points, 1e-6).mean
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python warns of forks beside threads: that is the point
        with multiprocessing.get_context("fork").Pool(1) as pool:
            found = pool.apply_async(gauss.pool, (points, 1e-6)).get(timeout=100).mean
    assert_allclose(found, expected, atol=1e-6)


def test_without_a_place_on_disk_loops_are_compiled_again(monkeypatch):
    def locked(cache=False, **options):
        if cache:
            raise RuntimeError("no locator available")
        return numba.njit(**options)

    monkeypatch.setattr(compiling, "njit", locked)
    with pytest.warns(RuntimeWarning, match="set NUMBA_CACHE_DIR"):
        assert compiling.compiled(nogil=True)(lambda x: x + 1)(1) == 2
