"""Every engine × score × mask × weighing against the slow definition, in value and in gradient."""

import functools
import itertools
import math
from typing import NamedTuple

import pytest
import reference
import torch
from helpers.cases import (
    ENGINES,
    INNER,
    KEYS,
    LEADING,
    MASKS,
    QUERIES,
    SCORES,
    VALUES,
    ScoreCase,
    gradients,
    inputs,
    mask_case,
    rand,
    score_case,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

import regard
from regard import masks, scores, weighing
from regard.compiled import dropout_hash as dropout
from regard.engines.dense import Dense
from regard.engines.job import Job
from regard.engines.stream import Stream

WEIGHINGS = {
    weighing.linear: reference.linear,
    weighing.hard: reference.hard,
    weighing.sigmoid(-0.5): reference.sigmoid(-0.5),
    weighing.sinks(0.3): reference.sinks(0.3),
    weighing.softpick: reference.softpick,
    weighing.sparsemax: reference.sparsemax,
    weighing.entmax15: reference.entmax15,
}
WAYS = ["scaled_dot", "gaussian-vector", "tanh"]
"""One score for each way to compute a block: a matrix product, distances, and any score by torch."""


class Scored(NamedTuple):
    """A score with its inputs, and by the definition the score of every pair and its gradients, for all masks."""

    score: ScoreCase
    tensors: list  # query, key and value
    numbers: torch.Tensor  # [..., q, k], a leaf
    jacobian: list  # [pairs, elements] by the query, by the key and by each parameter of the score

    def rows(self):
        """The numbers as `reference` wants them."""
        rows = reference.rows(self.numbers, LEADING)
        return {(lead, i): list(row.unbind()) for lead in rows for i, row in enumerate(rows[lead])}

    def gradients(self, outputs, parameters):
        """By query, key, value, the parameters of the score, and those given, of the mask."""
        by_number, by_value, *others = gradients(outputs, [self.numbers, self.tensors[2], *parameters])
        query, key, *own = (by_number.flatten() @ rows for rows in self.jacobian)
        shaped = [x.view(y.shape) for x, y in zip(own, self.score.parameters, strict=True)]
        return [query.view_as(self.tensors[0]), key.view_as(self.tensors[1]), by_value, *shaped, *others]


@functools.cache
def scored(score_name):
    """One backward pass for each pair; the gradients of whatever is made of the scores follow by the chain rule."""
    score, tensors = score_case(score_name), inputs()
    learned = [*tensors[:2], *score.parameters]
    pairs = list(itertools.chain(*reference.logits(*tensors[:2], LEADING, score.slow).values()))
    jacobian = [torch.zeros(len(pairs), x.numel(), dtype=torch.float64) for x in learned]
    for number, pair in enumerate(pairs):
        if reference.forbidden(pair):
            continue
        found = torch.autograd.grad(pair, learned, allow_unused=True, retain_graph=True)
        for rows, gradient in zip(jacobian, found, strict=True):
            rows[number] = 0.0 if gradient is None else gradient.flatten()
    numbers = torch.tensor([reference.number(pair) for pair in pairs], dtype=torch.float64)
    return Scored(score, tensors, numbers.view(*LEADING, QUERIES, KEYS).requires_grad_(), jacobian)


def pairs_of_cases():
    """All scores with all masks; fast are one of each kind without a mask, and all masks with one score."""
    for score_name, mask_name in itertools.product(SCORES, MASKS):
        fast = score_name == "scaled_dot" or (mask_name == "none" and score_name in ("gaussian-vector", "tanh"))
        yield pytest.param(score_name, mask_name, marks=() if fast else pytest.mark.slow)


def selected(score_name, mask_name):
    """The names of engines for means, those for parts, and the weighings.

    All of them for the scores of WAYS. Else every engine gives the means or the parts, and one weighing is taken, so
    that each meets every score and every mask. Blocks of 1, which are 35, meet every score without a mask.
    """
    means, parts = ["chosen", "dense", "stream", "stream-2x5"], ["dense", "stream-3", "stream-7"]
    if score_name in INNER:
        means.append("flash")
    if score_name in WAYS:
        return [*means, "stream-3", "stream-7"], [*parts, "stream", "stream-1", "stream-2x5"], list(WEIGHINGS)
    turn = (SCORES.index(score_name) + MASKS.index(mask_name)) % len(WEIGHINGS)
    return means, [*parts, *(["stream-1"] if mask_name == "none" else [])], [list(WEIGHINGS)[turn]]


@pytest.mark.parametrize(("score_name", "mask_name"), list(pairs_of_cases()))
def test_every_engine_and_weighing_agrees_with_the_definition(score_name, mask_name):
    slow, mask = scored(score_name), mask_case(mask_name)
    means, with_parts, weighings = selected(score_name, mask_name)
    score, tensors, value = slow.score, slow.tensors, slow.tensors[2]
    learned = [*tensors, *score.parameters, *mask.parameters]
    rows = reference.masked(slow.rows(), LEADING, mask.slow, mask.bias)
    wanted, log_weight = reference.average(rows, value, LEADING, QUERIES)
    wanted_gradients = slow.gradients([wanted], mask.parameters)
    for name in means:
        mean = regard.attend(*tensors, score=score.ours, mask=mask.ours, engine=ENGINES[name])
        assert_close(mean, wanted, msg=lambda m, name=name: f"{name}: {m}")
        found = gradients([mean], learned)
        assert_close(found, wanted_gradients, msg=lambda m, name=name: f"gradient of {name}: {m}")

    of_log_weight = slow.gradients([log_weight], mask.parameters)
    wanted_gradients = [a + b for a, b in zip(wanted_gradients, of_log_weight, strict=True)]
    for name in with_parts:
        parts = ENGINES[name].attend_parts(Job(*tensors, score.ours, mask.ours, weighing.softmax))
        assert_close(list(parts), [wanted, log_weight], msg=lambda m, name=name: f"parts of {name}: {m}")
        found = gradients(parts, learned)
        assert_close(found, wanted_gradients, msg=lambda m, name=name: f"gradient of parts of {name}: {m}")

    for weigh in weighings:
        wanted, _ = reference.average(rows, value, LEADING, QUERIES, weigh=WEIGHINGS[weigh])
        wanted_gradients = slow.gradients([wanted], mask.parameters)
        for engine in (Dense(), *(() if weigh is weighing.hard else (Stream(), Stream((2, 5))))):
            mean = regard.attend(*tensors, score=score.ours, mask=mask.ours, weigh=weigh, engine=engine)
            assert_close(mean, wanted, msg=lambda m, weigh=weigh: f"{weigh}: {m}")
            found = gradients([mean], learned)
            assert_close(found, wanted_gradients, msg=lambda m, weigh=weigh: f"gradient of {weigh}: {m}")


@pytest.mark.slow
@pytest.mark.parametrize(
    "score_name", ["scaled_dot", "bilinear", "gaussian-vector", "tanh", "closure", "tricube-vector"]
)
@pytest.mark.parametrize("rate", [0.3, 1.0])
def test_weighings_drop_the_same_weights_forward_and_backward(score_name, rate):
    score, mask, tensors = score_case(score_name), mask_case("both"), inputs()
    learned = [*tensors, *score.parameters]
    for weigh in WEIGHINGS:
        if weigh is weighing.hard:
            continue
        found = []
        for engine in (Dense(), Stream((2, 5))):
            torch.manual_seed(3)
            mean = regard.attend(*tensors, score=score.ours, mask=mask.ours, weigh=weigh, dropout=rate, engine=engine)
            found.append([mean, *gradients([mean], learned)])
        assert_close(*found)


@pytest.mark.slow
@pytest.mark.parametrize(
    "score_name", ["scaled_dot", "bilinear", "gaussian-vector", "tanh", "closure", "tricube-vector"]
)
@pytest.mark.parametrize("rate", [0.3, 1.0])
def test_engines_drop_the_same_weights_forward_and_backward(score_name, rate):
    first, second = dropout.row_hashes(
        drawn_seed(), torch.arange(math.prod(LEADING)).view(*LEADING, 1, 1), torch.arange(QUERIES).unsqueeze(-1)
    )
    kept = dropout.keep_mask(rate, first, second, torch.arange(KEYS))
    assert rate == 1 or 0.5 < kept.double().mean() < 0.9
    slow, mask = scored(score_name), mask_case("both")
    score, tensors = slow.score, slow.tensors
    rows, factor = reference.masked(slow.rows(), LEADING, mask.slow), kept * (0 if rate == 1 else 1 / (1 - rate))
    wanted, _ = reference.average(rows, tensors[2], LEADING, QUERIES, keep=factor)
    wanted_gradients = slow.gradients([wanted], [])
    for name in ("chosen", "dense", "stream", "stream-1", "stream-3", "stream-2x5"):
        torch.manual_seed(3)
        mean = regard.attend(*tensors, score=score.ours, mask=mask.ours, dropout=rate, engine=ENGINES[name])
        assert_close(mean, wanted, msg=lambda m, name=name: f"{name}: {m}")
        assert_close(gradients([mean], [*tensors, *score.parameters]), wanted_gradients)


def drawn_seed():
    torch.manual_seed(3)
    return dropout.draw_seed()


def test_dropout_keeps_the_mean_and_differs_from_row_to_row_and_call_to_call():
    query, key, value = rand(3, 501, 4), rand(3, 701, 4), torch.ones(3, 701, 1, dtype=torch.float64)
    torch.manual_seed(0)
    one = regard.attend(query, key, value, dropout=0.25, score=scores.constant)
    two = regard.attend(query, key, value, dropout=0.25, score=scores.constant)
    assert abs(one.mean() - 1) < 0.002  # 10⁶ weights, standard error 0.0006
    assert one.unique().numel() > 30
    assert not torch.equal(one, two)
    torch.manual_seed(0)
    assert torch.equal(one, regard.attend(query, key, value, dropout=0.25, score=scores.constant))


@pytest.mark.slow
@pytest.mark.parametrize("score_name", ["scaled_dot", "gaussian-matrix", "tanh", "closure", "epanechnikov-number"])
def test_stream_passes_gradcheck(score_name):
    score = score_case(score_name)
    tensors = [x.detach()[0, :1, :3].requires_grad_() for x in inputs()]
    holes = torch.tensor([[True, False, True], [False, False, False], [True, True, True]])

    def parts(query, key, value, *parameters):
        job = Job(query, key, value, score.ours, holes, weighing.softmax)
        mean, log_weight = Stream(2).attend_parts(job)
        return mean, torch.where(log_weight.isfinite(), log_weight, 0.0)

    assert torch.autograd.gradcheck(parts, [*tensors, *score.parameters], fast_mode=True)


@pytest.mark.slow
@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    leads=st.sampled_from(
        [((), (), ()), ((2,), (1,), (2,)), ((3, 1), (2,), (3, 2)), ((), (4,), ()), ((0,), (0,), (1,))]
    ),
    sizes=st.tuples(st.integers(0, 7), st.integers(0, 7), st.integers(1, 7), st.integers(0, 7)),
    block=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    score=st.sampled_from(["dot", "gaussian", "laplace", "constant"]),
    causal=st.booleans(),
)
def test_any_shape_broadcasts_the_same_on_every_engine(leads, sizes, block, score, causal):
    queries, keys, size, values = sizes
    tensors = [
        rand(*leads[0], queries, size, seed=1).requires_grad_(),
        rand(*leads[1], keys, size, seed=2).requires_grad_(),
        rand(*leads[2], keys, values, seed=3).requires_grad_(),
    ]
    width = torch.tensor(0.7, dtype=torch.float64)
    ours, slow = {
        "dot": (scores.dot, reference.dot),
        "gaussian": (scores.Gaussian(width), reference.kernel("gaussian", width)),
        "laplace": (scores.Laplace(width), reference.kernel("laplace", width)),
        "constant": (scores.constant, reference.constant),
    }[score]
    mask, slow_mask = (masks.causal, lambda lead, i, j: j <= i) if causal else (None, None)
    wanted, _ = reference.attend(*tensors, slow, mask=slow_mask)
    assert wanted.shape == (*torch.broadcast_shapes(*leads), queries, values)
    for engine in (Stream(block), None, "dense", *(["flash"] if score in ("dot", "gaussian") else [])):
        mean = regard.attend(*tensors, score=ours, mask=mask, engine=engine)
        assert_close(mean, wanted)
        assert_close(gradients([mean], tensors), gradients([wanted], tensors))


@pytest.mark.parametrize("leading", [(), (3,), (2, 3, 2)])
@pytest.mark.parametrize("mask_name", ["none", "causal", "padding", "row bias"])
def test_flash_folds_any_number_of_leading_dimensions(leading, mask_name):
    tensors = inputs(leading=leading)
    mask = {
        "none": None,
        "causal": masks.causal,
        "padding": masks.padding(torch.full(leading[:1], 3)),
        "row bias": rand(*leading[-1:], 1, KEYS, seed=7),
    }[mask_name]
    wanted = regard.attend(*tensors, mask=mask, engine="dense")
    mean = regard.attend(*tensors, mask=mask, engine="flash")
    assert mean.shape == (*leading, QUERIES, VALUES)
    assert_close(mean, wanted)


@pytest.mark.parametrize("engine", ["dense", "flash", "stream"])
@pytest.mark.parametrize("where", ["query", "key", "value"])
@pytest.mark.parametrize("mask", [None, masks.causal])
def test_nan_comes_out_as_nan(engine, where, mask):
    for dtype in (torch.float32, torch.float64):
        tensors = dict(zip(("query", "key", "value"), (x.detach() for x in inputs(dtype)), strict=True))
        tensors[where][0, 0, 0] = math.nan
        mean = regard.attend(**tensors, mask=mask, engine=engine)
        touched = mean.isnan().all(dim=-1)
        wanted = torch.zeros_like(touched)
        wanted[0, 0, : 1 if where == "query" else QUERIES] = True
        assert torch.equal(touched, wanted)
        assert torch.equal(mean.isnan().any(dim=-1), wanted)


@pytest.mark.parametrize("engine", ["flash", "stream"])
@pytest.mark.parametrize("keys", [1, 15, 16, 40, 519])
def test_nan_comes_out_as_nan_whatever_the_length(engine, keys):
    """Torch's kernel treats vectors and the rest of a row apart."""
    for sick in (slice(0, 1), slice(keys - 1, keys), slice(0, keys)):
        for mask in (None, masks.causal):
            query, key, value = (rand(n, 8, seed=n, dtype=torch.float32) for n in (37, keys, keys))
            key[sick] = math.nan
            wanted = regard.attend(query, key, value, mask=mask, engine="dense").isnan()
            assert wanted.any() or (mask and sick.start >= 37)
            assert torch.equal(regard.attend(query, key, value, mask=mask, engine=engine).isnan(), wanted)
            query[3] = math.nan
            assert regard.attend(query, key, value, mask=mask, engine=engine)[3].isnan().all()


@pytest.mark.parametrize("engine", ["dense", "flash", "stream"])
def test_a_hidden_key_that_is_nan_does_no_harm(engine):
    query, key, value = (x.detach() for x in inputs())
    for sick in (math.nan, -math.nan, math.inf):
        key[:, :, -1] = sick
        for score in (scores.scaled_dot, scores.Gaussian(2.0)):
            mean = regard.attend(
                query, key, value, score=score, mask=masks.padding(torch.tensor([KEYS - 1] * 2)), engine=engine
            )
            assert_close(mean, regard.attend(query, key[..., :-1, :], value[..., :-1, :], score=score))


@pytest.mark.parametrize("sick", [math.nan, -math.nan])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_seen_nan_beside_hidden_keys_is_not_taken_for_nothing(sick, dtype):
    query, key, value = torch.ones(1, 8, dtype=dtype), torch.ones(40, 8, dtype=dtype), torch.ones(40, 1, dtype=dtype)
    key[3] = sick
    only = torch.arange(40) == 3
    for engine in ("dense", "flash", Stream(), Stream(3)):
        assert regard.attend(query, key, value, mask=only[None], engine=engine).isnan().all()
    assert regard.look(query, key, mask=only[None], top=2).weight.isnan().all()


@pytest.mark.parametrize("kind", ["function", "bias"])
def test_a_query_that_sees_nothing_gives_no_nan_forward_or_backward(kind):
    # Not a boolean tensor: all False, that raises.
    nobody = torch.full((KEYS,), -math.inf, dtype=torch.float64) if kind == "bias" else lambda q, k: q + k < 0
    for score in (scores.scaled_dot, scores.Gaussian(1.0), scores.Epanechnikov(1e-3), score_case("tanh").ours):
        for engine in ("dense", "flash", "stream"):
            if engine == "flash" and not hasattr(score, "as_dot"):
                continue
            tensors = inputs()
            mean = regard.attend(*tensors, score=score, mask=nobody, engine=engine)
            assert torch.equal(mean, torch.zeros_like(mean))
            for found in torch.autograd.grad(mean.sum(), tensors, allow_unused=True):
                assert found is None or torch.equal(found, torch.zeros_like(found))
        parts = regard.attend_parts(*inputs(), score=score, mask=nobody)
        assert torch.equal(parts.log_weight, torch.full_like(parts.log_weight, -math.inf))


@pytest.mark.slow
@pytest.mark.parametrize(
    "case", ["scaled_dot", "causal", "gaussian wide", "gaussian narrow", "gaussian far", "additive"]
)
def test_float32_is_at_most_twice_as_wrong_as_torch(case):
    """Against float64; torch's own is the plain formula in float32, its gradients by autograd."""
    torch.manual_seed(0)
    query, key, value = rand(2, 257, 32, seed=1), rand(2, 521, 32, seed=2), rand(2, 521, 32, seed=3)
    mask = masks.causal if case == "causal" else None
    if case.startswith("gaussian"):
        far = 1000.0 if case == "gaussian far" else 0.0
        query, key = query[..., :3] + far, key[..., :3] + far
        query, key = query.float().double(), key.float().double()  # what float32 was given
        score = scores.Gaussian(0.1 if case == "gaussian narrow" else 1.0)
    else:
        score = scores.Additive(32, 32, 16) if case == "additive" else scores.scaled_dot
    plain = {
        "scaled_dot": lambda q, k: q @ k.mT / q.shape[-1] ** 0.5,
        "causal": lambda q, k: q @ k.mT / q.shape[-1] ** 0.5,
        "additive": score,
    }.get(
        case,
        lambda q, k: -0.5 * ((q[..., :, None, :] - k[..., None, :, :]) / score.bandwidth.to(q.dtype)).square().sum(-1),
    )

    def by_torch(query, key, value):
        logits = plain(query, key)
        if mask is not None:
            logits = logits.masked_fill(torch.ones(257, 521).tril() == 0, -math.inf)
        return logits.softmax(-1) @ value

    def run(attend, dtype):
        if isinstance(score, torch.nn.Module):
            score.to(dtype)
        tensors = [x.to(dtype).requires_grad_() for x in (query, key, value)]
        mean = attend(*tensors)
        grad = rand(*mean.shape, seed=8).to(dtype)
        return [mean.detach().double(), *(g.double() for g in torch.autograd.grad(mean, tensors, grad))]

    truth = run(by_torch, torch.float64)
    torchs = [error(a, b) for a, b in zip(run(by_torch, torch.float32), truth, strict=True)]
    engines = ["stream", None] if case == "additive" else ["stream", "flash", None]
    for engine in engines:
        ours = run(functools.partial(regard.attend, score=score, mask=mask, engine=engine), torch.float32)
        errors = [error(a, b) for a, b in zip(ours, truth, strict=True)]
        assert all(mine <= 2 * its for mine, its in zip(errors, torchs, strict=True)), (engine, errors, torchs)


def error(a, b):
    return float((a - b).square().mean().sqrt())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_point_far_away_does_not_blur_the_others(dtype):
    for far in (1e6, 1e9, 1e38, math.inf):
        key = rand(10, 1, dtype=dtype)
        key[-1] = far
        value, query = torch.arange(10, dtype=dtype)[:, None], key[:9]
        near = regard.attend(query, key[:9], value[:9], score=scores.Gaussian(0.1), engine="dense")
        for engine in (None, "dense", "flash", "stream"):
            assert_close(regard.attend(query, key, value, score=scores.Gaussian(0.1), engine=engine), near)


@pytest.mark.parametrize("engine", [None, "dense", "flash", "stream"])
def test_nan_in_a_weight_and_scores_that_overflow_are_not_taken_for_nothing(engine):
    sick = scores.Bilinear(2, 2)
    torch.nn.init.constant_(sick.weight, math.nan)
    assert regard.attend(torch.ones(1, 2), torch.ones(7, 2), torch.ones(7, 1), score=sick, engine=engine).isnan().all()
    query, key = torch.tensor([[1e20, 1e20]]), torch.tensor([[1e20, -1e20]]).repeat(3, 1)
    assert regard.attend(query, key, torch.ones(3, 2), score=scores.dot, engine=engine).isnan().all()
