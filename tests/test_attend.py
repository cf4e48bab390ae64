"""attend and plan as a user meets them: choices, and errors."""

import math
import re

import numpy as np
import pytest
import reference
import torch
from helpers.cases import ENGINES, INNER, QUERIES, SCORES, gradients, inputs, rand, score_case
from torch.testing import assert_close

import regard
from regard import masks, scores, weighing
from regard.attend import make_job
from regard.engines import flash
from regard.engines.flash import attend_unchecked
from regard.engines.stream import Stream

Q, K, V = rand(2, 3, 5, dtype=torch.float32), rand(2, 7, 5, dtype=torch.float32), rand(2, 7, 11, dtype=torch.float32)


def check_raises(match, error=ValueError, query=Q, key=K, value=V, **arguments):
    given = [x for x in (query, key, value) if isinstance(x, torch.Tensor) and x.device.type == "cpu"]
    before = [x.clone() for x in given]
    with pytest.raises(error, match=f"^{re.escape(match)}"):
        regard.attend(query, key, value, **arguments)
    with pytest.raises(error, match=f"^{re.escape(match)}"):
        regard.plan(query, key, value, **arguments)
    assert all(torch.equal(a, b) for a, b in zip(before, given, strict=True))


def test_tensors_that_do_not_fit_raise():
    check_raises("key and value must have one length, got 7 keys and 6 values", value=V[:, :6])
    check_raises(
        "leading dimensions of query, key and value must broadcast, got [2] and [3] and [2]", key=K[:1].expand(3, 7, 5)
    )
    check_raises("query must be [..., length, size], got shape [5]", query=Q[0, 0])
    check_raises("value must have a floating point dtype, got torch.int64", TypeError, value=V.long())
    check_raises("key must have a floating point dtype, got torch.bool", TypeError, key=K > 0)
    check_raises("query must have a floating point dtype, got torch.complex64", TypeError, query=Q.cfloat())
    check_raises("query must be a torch tensor, got list", TypeError, query=[[1.0]])
    check_raises(
        "query, key and value must have one dtype, got torch.float32, torch.float64 and torch.float32",
        TypeError,
        key=K.double(),
    )
    check_raises("query, key and value must be on one device, got cpu, meta and cpu", key=K.to("meta"))


@pytest.mark.parametrize("dropout", [-0.1, 1.1, math.nan])
def test_dropout_outside_its_range_raises(dropout):
    check_raises(f"dropout must be between 0 and 1, got {dropout}", dropout=dropout)


@pytest.mark.parametrize("dropout", ["0.1", "", None, True, False])
def test_dropout_that_is_no_number_raises(dropout):
    square = torch.randn(2, 3, 5, 8)  # the short way would take it
    for given in ({}, {"query": square, "key": square, "value": square}):
        check_raises(f"dropout must be a number between 0 and 1, got {dropout!r}", TypeError, dropout=dropout, **given)


def test_only_a_plain_call_takes_the_short_way(monkeypatch):
    square, calls = torch.randn(2, 3, 5, 8), []
    monkeypatch.setattr(flash, "attend_unchecked", lambda *given: calls.append(given) or attend_unchecked(*given))
    for mask in (None, masks.causal):
        regard.attend(square, square, square, mask=mask)
    assert len(calls) == 2
    regard.attend(square, square, square, dropout=0.5)
    regard.attend(square, square, square, engine="dense")
    regard.attend(square, square, square, weigh=weighing.linear)
    regard.attend(square, square, square, score=scores.Gaussian(1.0))
    regard.attend(square, square, square, mask=masks.window(2))
    assert len(calls) == 2


def test_masks_that_do_not_fit_raise():
    check_raises(
        "mask must broadcast to the scores' shape [2, 3, 7], got [7, 3]", mask=torch.ones(7, 3, dtype=torch.bool)
    )
    check_raises(
        "mask must broadcast to the scores' shape [2, 3, 7], got [5, 2, 3, 7]",
        mask=torch.ones(5, 2, 3, 7, dtype=torch.bool),
    )
    wrong = "mask must be boolean (True = may look) or a bias of real numbers, got "
    check_raises(wrong + "torch.int64", TypeError, mask=torch.ones(3, 7, dtype=torch.long))
    check_raises(wrong + "torch.complex64", TypeError, mask=torch.ones(3, 7, dtype=torch.complex64))
    check_raises(wrong + "torch.int64", TypeError, mask=lambda q, k: q - k)
    check_raises(wrong + "torch.int64", TypeError, mask=masks.both(masks.causal, torch.ones(3, 7, dtype=torch.long)))
    check_raises("a mask must return a tensor, got bool", TypeError, mask=lambda q, k: True)
    check_raises("mask must be callable or a tensor, got str", TypeError, mask="causal")
    check_raises("mask must be on the query's device, cpu, got meta", mask=torch.ones(3, 7, device="meta"))
    check_raises(
        "a mask must fit the leading dimensions of the scores, [2], got one with [3]",
        mask=masks.padding(torch.tensor([1, 2, 3])),
    )
    for engine in ("dense", "flash", "stream"):
        with pytest.raises(ValueError, match=re.escape("must return what broadcasts to [..., 3, 7], got [3, 2]")):
            regard.attend(Q, K, V, engine=engine, mask=lambda q, k: torch.ones(q.numel(), 2, dtype=torch.bool))


def test_parts_that_are_no_functions_raise():
    check_raises("score must be callable, (query, key) -> [..., q, k], got str", TypeError, score="dot")
    check_raises("weigh must be callable, scores -> weights, got str", TypeError, weigh="softmax")


@pytest.mark.parametrize("engine", ["dense", "stream"])
def test_a_score_that_returns_something_else_raises(engine):
    with pytest.raises(ValueError, match=re.escape("a score must return [..., q, k], here [2, ")):
        regard.attend(Q, K, V, score=lambda q, k: (q @ k.mT).mT, engine=engine)
    with pytest.raises(ValueError, match="got NoneType"):
        regard.attend(Q, K, V, score=lambda q, k: None, engine=engine)
    with pytest.raises(TypeError, match=r"must return the dtype of the query, torch.float32, got torch.float64"):
        regard.attend(Q, K, V, score=lambda q, k: (q @ k.mT).double(), engine=engine)


def test_a_weighing_that_returns_another_shape_raises():
    with pytest.raises(ValueError, match=re.escape("must return the shape of the scores, [2, 3, 7], got [2, 3]")):
        regard.attend(Q, K, V, weigh=lambda s: s.sum(dim=-1))


@pytest.mark.parametrize("score", [scores.dot, scores.scaled_dot])
def test_sizes_that_differ_raise_by_products(score):
    check_raises(f"{score} needs query and key of one size, got 5 and 4", key=K[..., :4], score=score)


def test_an_engine_that_cannot_says_which_can():
    check_raises("engine must be one of dense, flash, stream, pairs, gauss, got 'turbo'", engine="turbo")
    laplace = scores.Laplace(1.0)
    check_raises(
        "flash needs a score that is an inner product (has as_dot), got Laplace(", score=laplace, engine="flash"
    )
    with pytest.raises(ValueError, match=r"engines that can: dense, stream, pairs$"):
        regard.attend(Q, K, V, score=laplace, engine="flash")
    check_raises(
        "flash has no dropout on the CPU, got dropout=0.5; engines that can: dense, stream", dropout=0.5, engine="flash"
    )
    for engine, way in (("flash", "softmax only"), ("stream", "blocks of keys (see BlockWeighing)")):
        check_raises(
            f"{engine} weighs by {way}, got hard; engines that can: dense",
            weigh=weighing.hard,
            engine=engine,
        )
    for block in (0, (3, 0), -1, 1.5, "3", (), (2,), (1, 2, 3), True):
        with pytest.raises(ValueError, match=r"^block must be a positive whole number, or two of them, got "):
            Stream(block)
    for engine in (5, Stream):
        check_raises(
            "engine must be a name or an engine such as regard.engines.Stream(block=256), got ",
            TypeError,
            engine=engine,
        )


def test_plan_says_what_runs_and_why():
    big = torch.zeros(2, 8, 700, 4)
    bias = torch.zeros(700, 700, requires_grad=True)
    wide = torch.linspace(0, 100, 700).view(700, 1).expand(700, 4)
    chosen = {
        "inner product": regard.plan(big, big, big),
        "gaussian": regard.plan(big, big, big, score=scores.Gaussian(1.0)),
        "far gaussian": regard.plan(wide / 100 + 1000, wide / 100 + 1000, wide, score=scores.Gaussian(1.0)),
        "wide gaussian": regard.plan(wide, wide, wide, score=scores.Gaussian(1.0)),
        "causal": regard.plan(big, big, big, mask=masks.causal),
        "dropout": regard.plan(big, big, big, dropout=0.1),
        "learned bias": regard.plan(big, big, big, mask=bias),
        "large": regard.plan(big, big, big, score=scores.Laplace(1.0)),
        "small": regard.plan(Q, K, V, score=scores.Laplace(1.0)),
        "linear": regard.plan(big, big, big, weigh=weighing.linear),
        "requested": regard.plan(Q, K, V, engine="stream"),
    }
    assert {name: plan.engine for name, plan in chosen.items()} == {
        "inner product": "flash",
        "gaussian": "flash",
        "far gaussian": "flash",
        "wide gaussian": "stream",
        "causal": "flash",
        "dropout": "stream",
        "learned bias": "stream",
        "large": "stream",
        "small": "dense",
        "linear": "stream",
        "requested": "stream",
    }
    for name, word in {
        "dropout": "dropout",
        "linear": "linear",
        "small": "small",
        "requested": "requested",
        "wide gaussian": "far apart",
    }.items():
        assert word in chosen[name].why


def test_a_large_mask_is_streamed_and_a_broadcast_one_is_not():
    long = torch.zeros(2, 3000, 4)
    many, few = masks.padding(torch.tensor([2900, 3000])), masks.padding(torch.tensor([5, 9]))
    assert regard.plan(long, long, long, mask=many).engine == "flash"
    assert regard.plan(long, long, long, mask=masks.both(masks.causal, many)).engine == "stream"
    assert regard.plan(long, long, long, mask=few).engine == "stream"  # the others are out of reach


@pytest.mark.parametrize("engine", list(ENGINES))
def test_one_key_gets_all_the_weight(engine):
    query, key, value = (x.detach()[..., :1, :] for x in inputs())
    assert_close(regard.attend(query, key, value, engine=ENGINES[engine]), value)


def test_a_score_that_says_it_is_an_inner_product_is_taken_at_its_word():
    class Half:
        def as_dot(self, query, key):
            return query, key, 0.5

        def __call__(self, query, key):
            return 0.5 * query @ key.mT

    assert regard.plan(Q, K, V, score=Half()).engine == "flash"
    for engine in ("dense", "flash", "stream"):
        assert_close(
            regard.attend(Q, K, V, score=Half(), engine=engine), regard.attend(Q, K, V, score=Half(), engine="dense")
        )
    assert all(hasattr(score_case(name).ours, "as_dot") == (name in INNER) for name in SCORES)


def test_nothing_is_learned_twice_or_kept_between_calls():
    """Two calls in one graph give the sum of their gradients."""
    score = scores.Additive(5, 5, 4)
    once = torch.autograd.grad(regard.attend(Q, K, V, score=score, engine=Stream(2)).sum(), score.weight)[0]
    twice = sum(regard.attend(Q, K, V, score=score, engine=Stream(2)).sum() for _ in range(2))
    assert_close(torch.autograd.grad(twice, score.weight)[0], 2 * once)


def test_queries_and_keys_of_other_sizes_meet_under_the_scores_that_allow_it():
    query = rand(2, QUERIES, 3, dtype=torch.float32)
    for score in (scores.Bilinear(3, 5), scores.Additive(3, 5, 4), scores.constant):
        for engine in (None, "stream"):
            assert regard.attend(query, K, V, score=score, engine=engine).shape == (2, QUERIES, 11)


@pytest.mark.parametrize("mask", [None, masks.causal])
@pytest.mark.parametrize("score", [scores.scaled_dot, scores.dot])
@pytest.mark.parametrize(("queries", "keys"), [(1, 7), (5, 7), (7, 5), (1, 1)])
def test_the_short_way_of_the_usual_case_is_the_definition(queries, keys, score, mask):
    query, key, value = (
        rand(2, 3, length, 8, seed=seed).requires_grad_() for seed, length in enumerate((queries, keys, keys))
    )
    assert attend_unchecked(query, key, value, score, mask is masks.causal) is not None
    found = regard.attend(query, key, value, score=score, mask=mask)
    slow = getattr(reference, repr(score))
    expected, _ = reference.attend(query, key, value, slow, None if mask is None else lambda lead, i, j: j <= i)
    assert_close(found, expected)
    assert_close(gradients([found], [query, key, value]), gradients([expected], [query, key, value]))


@pytest.mark.parametrize("shape", [(2, 1, 1, 7), (1, 6, 5, 7), (2, 6, 5, 7), (5, 7), (1, 7), (5, 1)])
@pytest.mark.parametrize("kind", [torch.bool, torch.float64])
def test_the_short_way_with_a_mask_and_groups_is_the_long_way(shape, kind):
    query, key, value = (rand(2, heads, n, 8, seed=n) for heads, n in ((6, 5), (3, 7), (3, 7)))
    mask = rand(*shape, seed=4)
    mask = mask > -0.5 if kind == torch.bool else mask
    found = attend_unchecked(query, key, value, scores.dot, False, mask)
    assert_close(found, regard.attend(query, key, value, score=scores.dot, mask=mask, engine="dense"))
    for other in (
        mask.expand(2, 6, 5, 7)[..., :3],
        mask.expand(2, 6, 5, 7)[0],  # [heads, q, k]
        mask.expand(5, 7).mT if mask.ndim == 2 else mask.expand(2, 6, 5, 7).mT,
        mask.int(),
        mask.float().requires_grad_(),
    ):
        assert attend_unchecked(query, key, value, scores.dot, False, other) is None
    hidden = key.clone()
    hidden[:, :, 2] = torch.nan
    unseen = torch.arange(7).ne(2).expand(1, 1, 1, 7)
    assert_close(
        regard.attend(query, hidden, value, mask=unseen),
        regard.attend(query, key, value, mask=unseen),
        rtol=1e-6,
        atol=1e-8,
    )


def test_the_short_way_is_left_where_something_has_to_be_seen_to():
    query, key, value = (rand(2, 3, 5, 8, seed=seed) for seed in range(3))
    assert attend_unchecked(query, key, value, scores.dot, False) is not None
    for others in [
        (query[0], key[0], value[0]),
        (query[..., :7], key[..., :7], value[..., :7]),
        (query, key, torch.cat([value, value], dim=-1)),
        (query[:1], key, value),
        (query.float(), key, value),
        (query, key[..., :0, :], value[..., :0, :]),
        (query, key, None),
    ]:
        assert attend_unchecked(*others, scores.dot, False) is None
    sick = key.clone()
    sick[0, 0, 4] = torch.nan
    assert regard.attend(query, sick, value)[0, 0].isnan().all()
    found = regard.attend(query, sick, value, mask=masks.causal)
    assert_close(found[0, 0, :4], regard.attend(query, key, value, mask=masks.causal)[0, 0, :4])
    assert found[0, 0, 4].isnan().all()
    query[1, 2, 3] = torch.nan  # torch's kernel would make a row of 0 of it
    assert regard.attend(query, key, value).isnan().any(dim=-1).nonzero().tolist() == [[1, 2, 3]]
    query[1, 2, 3] = 0.0
    nothing = torch.zeros_like(value)
    assert torch.equal(regard.attend(query, key, nothing), nothing)


def test_a_class_is_no_score_before_it_is_made():
    query, key, value = inputs()
    with pytest.raises(TypeError, match=r"score must be an instance, Gaussian\(…\), got the class itself"):
        regard.attend(query, key, value, score=scores.Gaussian)
    with pytest.raises(TypeError, match="weigh must be an instance, HardSample"):
        regard.attend(query, key, value, weigh=weighing.HardSample)


def test_a_configured_engine_is_found_where_the_error_says():
    query, key, value = inputs()
    with pytest.raises(TypeError, match=r"an engine such as regard\.engines\.Stream\(block=256\), got 3"):
        regard.attend(query, key, value, engine=3)
    assert_close(
        regard.attend(query, key, value, engine=regard.engines.Stream(block=256)), regard.attend(query, key, value)
    )


def test_numbers_of_numpy_are_numbers():
    query, key, value = inputs()
    wide = regard.attend(query, key, value, score=scores.Gaussian(np.float32(2)))
    assert_close(wide, regard.attend(query, key, value, score=scores.Gaussian(2.0)))
    assert regard.attend(query, key, value, dropout=np.float32(0.5)).shape == wide.shape


def test_products_beyond_the_range_of_numbers_are_no_reason_for_nan():
    query, key, value = (1e19 * rand(2, 2, 6, 8, seed=s, dtype=torch.float32) for s in (1, 2, 3))
    value = value / 1e19
    found = regard.attend(query, key, value)
    assert found.isfinite().all()
    assert_close(found, regard.attend(query, key, value, engine="dense"))


GROUP_MASKS = {
    "none": None,
    "causal": masks.causal,
    "window": masks.window(5),
    "padding": masks.padding(torch.tensor([7, 30])),
    "bias by head": torch.randn(6, 1, 40, dtype=torch.float64),
    "function by head": lambda query, key: -(query - key).abs() * torch.arange(1, 7, dtype=torch.float64).view(6, 1, 1),
}


@pytest.mark.parametrize("mask", GROUP_MASKS)
@pytest.mark.parametrize("shared", [1, 2, 3])
@pytest.mark.parametrize("queries", [1, 40])
def test_groups_of_query_heads_share_a_head_of_keys(queries, shared, mask):
    torch.manual_seed(0)
    heads = (6, queries), (shared, 40), (shared, 40)
    tensors = [torch.randn(2, *shape, 4, dtype=torch.float64, requires_grad=True) for shape in heads]
    grad = torch.randn(2, 6, queries, 4, dtype=torch.float64)
    for score in (scores.scaled_dot, scores.Gaussian(1.0), lambda query, key: torch.tanh(query @ key.mT)):

        def run(tensors, leaves=tensors, **given):
            mean = regard.attend(*tensors, mask=GROUP_MASKS[mask], **given)
            return mean, *torch.autograd.grad(mean, leaves, grad)

        repeated = [tensors[0], *(x.repeat_interleave(6 // shared, dim=1) for x in tensors[1:])]
        definition = run(repeated, score=score, engine="dense")
        for engine in ("dense", "stream", None):
            for one, other in zip(run(tensors, score=score, engine=engine), definition, strict=True):
                assert_close(one, other)
        weights = regard.look(*repeated[:2], score=score, mask=GROUP_MASKS[mask])
        assert_close(regard.look(*tensors[:2], score=score, mask=GROUP_MASKS[mask]), weights)
        top = regard.look(*tensors[:2], score=score, mask=GROUP_MASKS[mask], top=2)
        assert_close(top.weight, weights.topk(2).values)


def test_heads_that_do_not_form_groups_raise():
    query, key = torch.randn(2, 6, 3, 4), torch.randn(2, 4, 3, 4)
    with pytest.raises(ValueError, match="in groups of one size"):
        regard.attend(query, key, key)
    with pytest.raises(ValueError, match="must broadcast"):  # a batch is no group of heads
        regard.attend(query[0], key[0, :3], key[0, :3])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("given", [{"dropout": 0.3}, {"mask": masks.window(9)}, {"score": scores.Gaussian(2.0)}])
def test_halves_are_summed_in_float32(dtype, given):
    torch.manual_seed(0)
    tensors = [torch.randn(1, 2, 300, 16).to(dtype).requires_grad_() for _ in range(3)]
    exact = [x.detach().double().requires_grad_() for x in tensors]
    results = []
    for some in (tensors, exact):
        torch.manual_seed(1)
        mean = regard.attend(*some, engine="stream", **given)
        results.append([mean, *torch.autograd.grad(mean.sum(), some)])
    for one, other in zip(*results, strict=True):
        assert one.dtype == dtype
        assert_close(one.double(), other, rtol=torch.finfo(dtype).eps, atol=2e-3)


def test_a_result_of_zeros_is_computed_once(monkeypatch):
    calls, real = [], flash.torch_attention
    monkeypatch.setattr(flash, "torch_attention", lambda *given, **named: calls.append(1) or real(*given, **named))
    x = torch.randn(1, 2, 9, 8)
    assert not regard.attend(x, x, torch.zeros_like(x), mask=masks.causal).any()
    assert len(calls) == 1


def test_torchs_attention_may_be_replaced_by_ours(monkeypatch):
    x = torch.randn(1, 2, 9, 8)
    wanted = regard.attend(x, x, x)
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", lambda q, k, v: regard.attend(q, k, v))
    assert_close(torch.nn.functional.scaled_dot_product_attention(x, x, x), wanted)


def test_the_meta_device_gives_shapes_of_few_numbers():
    x = torch.randn(1, 2, 9, 8, device="meta")
    assert regard.attend(x, x, x).shape == regard.attend(x, x, x, mask=masks.causal).shape == x.shape


def test_autocast_takes_tensors_of_several_dtypes_and_any_bias():
    query, key = torch.randn(1, 2, 9, 8), torch.randn(1, 2, 9, 8)
    with torch.autocast("cpu"):
        mean = regard.attend(query, key.bfloat16(), key, mask=torch.zeros(9, 9))
    assert mean.dtype == torch.bfloat16
    assert_close(mean.float(), regard.attend(query, key, key), rtol=2e-2, atol=2e-2)
    with pytest.raises(TypeError, match="one dtype"):
        regard.attend(query, key.bfloat16(), key)
    bias = torch.randn(9, 9, dtype=torch.float64)
    assert_close(regard.attend(query, key, key, mask=bias), regard.attend(query, key, key, mask=bias.float()))


def test_the_width_of_a_score_is_measured():
    x = torch.randn(2, 3, 50, 24)

    def width(score):
        return make_job(x, x, x, score, None, weighing.softmax, 0.0).width

    assert width(lambda query, key: 5 * torch.tanh(query @ key.mT / 5)) == 1
    assert width(lambda query, key: torch.tanh(query.unsqueeze(-2) + key.unsqueeze(-3)).sum(-1)) == 24
    assert width(scores.Additive(24, 24, hidden=7)) == 7


def test_nested_and_sparse_tensors_raise():
    nested = torch.nested.nested_tensor([torch.randn(3, 4), torch.randn(5, 4)], layout=torch.jagged)
    with pytest.raises(TypeError, match="nested tensors are not supported: pad them"):
        regard.attend(nested, nested, nested)
    x = torch.randn(3, 4)
    with pytest.raises(TypeError, match=r"must be dense tensors: call to_dense\(\) on sparse ones"):
        regard.attend(x.to_sparse(), x, x)


HIDDEN = {
    "rows": torch.zeros(5, 7, dtype=torch.bool),
    "keys": torch.zeros(2, 1, 1, 7, dtype=torch.bool),
    "one number": torch.zeros((), dtype=torch.bool),
    "combined": masks.both(masks.causal, torch.zeros(7, dtype=torch.bool)),
}


@pytest.mark.parametrize("name", HIDDEN)
@pytest.mark.parametrize("size", [8, 3])  # 8: without a job
def test_a_mask_that_is_all_false_raises(name, size):
    query, key = torch.randn(2, 3, 5, size), torch.randn(2, 3, 7, size)
    calls = [
        lambda: regard.attend(query, key, key, mask=HIDDEN[name]),
        lambda: regard.sdpa(query, key, key, HIDDEN[name]),
        lambda: regard.attend(query, key, key, mask=HIDDEN[name], engine="stream", dropout=0.5),
        lambda: regard.look(query, key, mask=HIDDEN[name]),
        lambda: regard.look(query, key, mask=HIDDEN[name], top=2),
        lambda: regard.plan(query, key, key, mask=HIDDEN[name]),
    ]
    for call in calls:
        with pytest.raises(
            ValueError, match=r"no query look at any key: all of .* True = may look; .* inverted: ~mask"
        ):
            call()


@pytest.mark.parametrize("size", [8, 3])
def test_where_the_polarity_of_a_mask_cannot_be_told_queries_see_nothing(size):
    query, key = torch.randn(2, 3, 5, size), torch.randn(2, 3, 7, size)
    hidden = torch.zeros(2, 1, 5, 7, dtype=torch.bool)
    assert (regard.attend(query[:, :, :1], key, key, mask=hidden[:, :, :1]) == 0).all()  # one query may be blind
    assert (regard.attend_parts(query, key, key, mask=hidden).log_weight == -math.inf).all()  # and all, of a part
    assert regard.attend(query.to("meta"), key.to("meta"), key.to("meta"), mask=hidden.to("meta")).shape == query.shape
    hidden[1, 0, 4, 6] = True
    mean = regard.attend(query, key, key, mask=hidden)
    assert_close(mean[1, :, 4], key[1, :, 6])
    assert (mean[0] == 0).all()
