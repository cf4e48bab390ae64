"""Weighings beside softmax: by blocks of keys, sparse ones, linear attention, hard attention for REINFORCE."""

import copy
import math
import pickle

import entmax
import pytest
import torch
from helpers.cases import gradients, rand
from torch import nn
from torch.testing import assert_close

import regard
from regard import masks, scores, weighing
from regard.engines import Stream
from regard.layers import MultiHeadAttention

SPARSE = [(weighing.sparsemax, entmax.sparsemax), (weighing.entmax15, entmax.entmax15)]
BY_BLOCKS = [weighing.linear, weighing.sigmoid(-0.5), weighing.softpick, weighing.sparsemax, weighing.entmax15]


def test_linear_attention_is_the_trace_of_the_note():
    """u' X (v' X)' = tr(X X' v u') for a bag X of columns (Mineiro 2016)."""
    bag, u, v = torch.randn(5, 7), torch.randn(5), torch.randn(5)
    attended = regard.attend(v[None], bag.T, bag.T, score=scores.dot, weigh=weighing.linear)
    assert_close((attended @ u).squeeze(), torch.trace(bag @ bag.T @ torch.outer(v, u)))


def test_hard_takes_the_best_key_and_gives_no_gradient_to_the_scores():
    query, key, value = (torch.randn(n, 3, requires_grad=True) for n in (4, 6, 6))
    mean = regard.attend(query, key, value, score=scores.dot, weigh=weighing.hard)
    assert torch.equal(mean, value[(query @ key.T).argmax(dim=-1)])
    gradients = torch.autograd.grad(mean.sum(), (query, key, value), allow_unused=True)
    assert gradients[0] is None
    assert gradients[1] is None
    assert gradients[2] is not None


def test_hard_sample_draws_from_softmax_and_tells_its_odds():
    logits = torch.tensor([0.0, 1.0, -math.inf, 2.0])
    scored = logits.expand(20_000, 4).clone().requires_grad_()
    draw = weighing.HardSample(torch.Generator().manual_seed(1))
    weight = draw(scored)
    probability = torch.softmax(logits, dim=0)
    assert_close(weight.mean(dim=0), probability, atol=0.015, rtol=0)
    assert torch.equal(weight.sum(dim=-1), torch.ones(20_000))
    assert torch.equal(weight.argmax(dim=-1), draw.index)
    assert_close(draw.log_probability.detach(), probability[draw.index].log())
    entropy = torch.distributions.Categorical(probability).entropy()
    assert_close(draw.entropy[0].detach(), entropy)
    (gradient,) = torch.autograd.grad(draw.log_probability.sum() + draw.entropy.sum(), scored)
    assert gradient.isfinite().all()
    assert_close(gradient.sum(dim=-1), torch.zeros(20_000), atol=1e-5, rtol=0)


def test_the_score_function_gradient_is_right_on_average():
    """E[f(draw) ∇ log p] = ∇ E[f(draw)]: what REINFORCE stands on."""
    logits = torch.tensor([0.3, -0.5, 1.0, 0.0], dtype=torch.float64, requires_grad=True)
    reward = torch.tensor([1.0, -2.0, 0.5, 3.0], dtype=torch.float64)
    (exact,) = torch.autograd.grad(torch.softmax(logits, 0) @ reward, logits)
    draw = weighing.HardSample(torch.Generator().manual_seed(2))
    weight = draw(logits.expand(200_000, 4))
    (estimate,) = torch.autograd.grad(((weight @ reward) * draw.log_probability).mean(), logits)
    assert_close(estimate, exact, atol=0.02, rtol=0)


def test_one_seed_gives_one_draw():
    tensors = [torch.randn(n, 3) for n in (4, 6, 6)]
    one, two = (regard.attend(*tensors, weigh=weighing.HardSample(torch.Generator().manual_seed(3))) for _ in range(2))
    assert torch.equal(one, two)


@pytest.mark.parametrize("shape", [(3, 0), (0, 4), (2, 0, 0)])
def test_nothing_to_weigh(shape):
    for weigh in (weighing.softmax, weighing.linear, weighing.hard, weighing.HardSample()):
        assert weigh(torch.zeros(shape)).shape == shape


def test_who_may_look_at_nothing_draws_nothing():
    blind = torch.full((2, 3), -math.inf, requires_grad=True)
    draw = weighing.HardSample()
    assert torch.equal(draw(blind), torch.zeros(2, 3))
    total = draw.log_probability.sum() + draw.entropy.sum()
    assert total.item() == 0
    assert torch.equal(torch.autograd.grad(total, blind)[0], torch.zeros(2, 3))
    assert torch.equal(weighing.hard(blind), torch.zeros(2, 3))


def test_nan_scores_give_nan_weights():
    sick = torch.tensor([[0.0, math.nan, 1.0], [0.0, 0.5, 1.0]])
    for weigh in (weighing.softmax, weighing.hard, weighing.HardSample()):
        weight = weigh(sick)
        assert weight[0].isnan().all()
        assert weight[1].isfinite().all()
    assert weighing.linear(sick)[0].isnan().any()


@pytest.mark.parametrize(
    "own",
    [lambda s: torch.softmax(s, -1), lambda s: s.square(), lambda s: s.exp().clamp(min=0.1)],
    ids=["softmax", "square", "at least"],
)
def test_what_may_not_be_looked_at_has_no_weight_in_a_weighing_of_ones_own(own):
    query, key, value = (torch.randn(n, 3, dtype=torch.float64, requires_grad=True) for n in (4, 5, 5))
    mask = torch.tensor([[1, 0, 1, 1, 0], [0, 0, 0, 0, 0], [1, 1, 1, 1, 1], [0, 0, 0, 1, 0]]).bool()
    mean = regard.attend(query, key, value, mask=mask, weigh=own)
    gradients = torch.autograd.grad(mean.square().sum(), (query, key, value))
    assert all(gradient.isfinite().all() for gradient in gradients)
    assert (mean[1] == 0).all()
    for place in (0, 3):
        some = mask[place]
        assert_close(mean[place], regard.attend(query, key[some], value[some], weigh=own)[place])


def test_a_weighing_of_ones_own_never_gets_a_query_that_sees_nothing():
    query, key, value = (rand(n, 3, seed=n).requires_grad_() for n in (4, 5, 5))
    mask = torch.tensor([[1, 0, 1, 1, 0], [0, 0, 0, 0, 0], [1, 1, 1, 1, 1], [0, 0, 0, 1, 0]]).bool()
    for ours, theirs in SPARSE:
        mean = regard.attend(query, key, value, mask=mask, weigh=theirs)
        wanted = regard.attend(query, key, value, mask=mask, weigh=ours)
        assert_close(mean, wanted)
        assert (mean[1] == 0).all()
        assert_close(gradients([mean], [query, key, value]), gradients([wanted], [query, key, value]))


@pytest.mark.parametrize(("ours", "theirs"), SPARSE, ids=["sparsemax", "entmax15"])
@pytest.mark.parametrize("spread", [0.0, 0.1, 1.0, 30.0])
def test_sparse_weighings_agree_with_the_entmax_package(ours, theirs, spread):
    """By sorting, where gradients are needed, and by Newton's method."""
    drawn = (rand(23, 301) * spread).requires_grad_()
    weight, wanted = ours(drawn), theirs(drawn, dim=-1)
    assert_close(weight, wanted)
    assert_close(gradients([weight], [drawn]), gradients([wanted], [drawn]))
    assert_close(ours(drawn.detach()), wanted.detach())
    assert_close(ours(drawn.detach()).sum(dim=-1), torch.ones(23, dtype=torch.float64))
    assert_close(ours(drawn.detach().float()), wanted.detach().float(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("weigh", BY_BLOCKS, ids=str)
def test_states_of_blocks_merge_to_that_of_the_row(weigh):
    drawn = rand(4, 31)
    drawn[1, :20], drawn[2] = -math.inf, -math.inf
    a, b, c = (weigh.lift(part) for part in drawn.split([3, 17, 11], dim=-1))
    whole = weigh.finish(weigh.lift(drawn))
    for merged in (
        weigh.merge([a, b, c]),
        weigh.merge([weigh.merge([a, b]), c]),
        weigh.merge([a, weigh.merge([b, c])]),
    ):
        assert_close(weigh.finish(merged), whole)
    assert_close(weigh.weights(drawn, whole), weigh(drawn))
    assert (weigh(drawn)[2] == 0).all()


def test_a_long_sparse_state_leaves_out_what_has_no_weight():
    drawn = rand(3, 20_000)
    for weigh in (weighing.sparsemax, weighing.entmax15):
        merged = weigh.merge(list(drawn.split(5_000, dim=-1)))
        assert merged.shape[-1] < 1_000
        assert_close(weigh.finish(merged), weigh.finish(drawn))


@pytest.mark.parametrize("weigh", BY_BLOCKS, ids=str)
def test_slopes_are_the_derivatives(weigh):
    drawn, gradient = rand(5, 13).requires_grad_(), rand(5, 13, seed=3)
    (wanted,) = torch.autograd.grad(weigh(drawn), drawn, gradient)
    scored = drawn.detach()
    weight, own, shared, part, total = weigh.derivatives(scored, weigh.finish(weigh.lift(scored)))
    assert_close(weight, weigh(scored))
    found = own * gradient
    if shared is not None:
        found = found - shared * ((part * gradient).sum(dim=-1, keepdim=True) / (1 if total is None else total))
    assert_close(found, wanted)


def test_sinks_learn_in_every_engine_and_layer():
    logit = nn.Parameter(torch.tensor([0.3, -1.0, 2.0]))
    x = torch.randn(2, 3, 400, 4)
    for engine in ("dense", "stream"):
        mean = regard.attend(x, x, x, weigh=weighing.sinks(logit), engine=engine)
        found = torch.autograd.grad(mean.square().sum(), logit)[0]
        assert found.abs().min() > 0
        assert_close(found, torch.autograd.grad(sunk(x, logit).square().sum(), logit)[0], rtol=1e-4, atol=1e-3)
    layer = MultiHeadAttention(12, heads=3, weigh=weighing.sinks(logit))
    assert any(parameter is logit for parameter in layer.parameters())
    assert_close(layer.look(torch.randn(1, 5, 12)).shape, torch.Size([1, 3, 5, 5]))
    for wrong in (torch.zeros(2), torch.zeros(3, 3, 3)):
        with pytest.raises(ValueError, match=r"^the logit of sinks must broadcast to the heads \[2, 3\], got "):
            regard.attend(x, x, x, weigh=weighing.sinks(wrong))
    with pytest.raises(TypeError, match=r"^the logit of sinks must be a number, or a tensor"):
        weighing.sinks("0")


def sunk(x, logit):
    """A sink written out: one more key with a value of 0."""
    weight = (x @ x.mT / x.shape[-1] ** 0.5).exp()
    return weight @ x / (weight.sum(dim=-1, keepdim=True) + logit.exp()[:, None, None])


@pytest.mark.parametrize("weigh", [*BY_BLOCKS, weighing.sinks(0.4)], ids=str)
def test_look_gives_the_largest_weights_of_any_weighing(weigh):
    query, key = rand(3, 31, 5), rand(3, 701, 5)
    mask = masks.both(masks.causal, lambda query, key: query > 0)
    weight = regard.look(query, key, mask=mask, weigh=weigh)
    assert_close(weight @ key, regard.attend(query, key, key, mask=mask, weigh=weigh))
    found = regard.look(query, key, mask=mask, weigh=weigh, top=40)
    assert (found.index[:, 0] == -1).all()
    if weigh is not weighing.linear:  # whose masked keys have a weight of 0, above the negative ones
        assert_close(found.weight[..., :40], weight.sort(dim=-1, descending=True).values[..., :40])
    seen = found.index >= 0
    assert_close(weight.gather(-1, found.index.clamp(min=0))[seen], found.weight[seen])
    assert torch.equal(seen, found.weight != 0)


def test_look_at_the_top_needs_a_weighing_by_blocks():
    with pytest.raises(ValueError, match=r"^top needs a weighing that goes by blocks of keys, got hard"):
        regard.look(torch.ones(1, 2), torch.ones(3, 2), weigh=weighing.hard, top=1)


def test_the_evidence_of_a_sparse_weighing_is_complete():
    query, key, value = rand(1, 4), rand(2000, 4), rand(2000, 3)
    found = regard.look(query, key, weigh=weighing.sparsemax, top=200)
    seen = found.index[0][found.index[0] >= 0]
    assert 2 <= len(seen) < 100
    mean = regard.attend(query, key, value, weigh=weighing.sparsemax)
    assert_close(found.weight[:, : len(seen)] @ value[seen], mean)
    assert_close(regard.attend(query, key[seen], value[seen], weigh=weighing.sparsemax), mean)


def test_sparsemax_of_a_squared_distance_is_epanechnikov_with_a_radius_for_each_query():
    query, key = rand(5, 2), rand(400, 2)
    weight = regard.look(query, key, score=lambda q, k: -torch.cdist(q, k).square(), weigh=weighing.sparsemax)
    square = torch.cdist(query, key).square()
    radii = []
    for row in range(5):
        seen = weight[row] > 0
        radius = (weight + square)[row, seen].mean().sqrt()
        kernel = (1 - square[row] / radius**2).clamp(min=0)
        assert_close(weight[row], kernel / kernel.sum())
        radii.append(radius.item())
    assert max(radii) > 1.2 * min(radii)


def test_plan_says_how_a_weighing_runs():
    small, large = torch.zeros(2, 30, 4), torch.zeros(8, 700, 4)
    assert regard.plan(small, small, small, weigh=weighing.entmax15).engine == "dense"
    plan = regard.plan(large, large, large, weigh=weighing.entmax15)
    assert plan == (
        "stream",
        "3,920,000 pairs weighed by entmax15: by blocks, without the matrix",
        "stream: rows of blocks, head by head",
    )
    assert regard.plan(large, large, large, weigh=weighing.hard).why == "only dense can weigh by hard"


@pytest.mark.parametrize("weigh", BY_BLOCKS, ids=str)
def test_nan_and_half_precision(weigh):
    query, key, value = (rand(n, 4, seed=n, dtype=torch.float32) for n in (40, 50, 50))
    for engine in ("dense", "stream"):
        mean = regard.attend(query.bfloat16(), key.bfloat16(), value.bfloat16(), weigh=weigh, engine=engine)
        assert mean.dtype == torch.bfloat16
        wanted = regard.attend(query, key, value, weigh=weigh)
        assert_close(mean.float(), wanted, atol=0.03 * float(wanted.abs().max()), rtol=0.1)
        sick = query.clone()
        sick[3, 0] = math.nan
        mean = regard.attend(sick, key, value, weigh=weigh, engine=engine)
        assert mean[3].isnan().all()
        assert mean[4:].isfinite().all()


def test_parameters_that_are_no_numbers_raise():
    for bias in (math.nan, math.inf):
        with pytest.raises(ValueError, match=f"bias must be finite, got {bias}"):
            weighing.sigmoid(bias)
    with pytest.raises(ValueError, match="the logit of sinks must be a number, got nan"):
        weighing.sinks(math.nan)


def test_copies_are_the_same_weighing():
    for weigh in (weighing.linear, weighing.softpick, weighing.sparsemax, weighing.entmax15):
        assert copy.deepcopy(weigh) is weigh
        assert pickle.loads(pickle.dumps(weigh)) is weigh
    assert pickle.loads(pickle.dumps(weighing.sigmoid(2.0))).bias == 2.0


@pytest.mark.parametrize("weigh", BY_BLOCKS, ids=str)
def test_a_score_that_changed_before_backward_raises(weigh):
    scale, (query, key) = [1.0], (rand(9, 3, seed=s).requires_grad_() for s in (1, 2))
    mean = regard.attend(
        query, key, key, score=lambda q, k: scale[0] * torch.cdist(q, k), weigh=weigh, engine=Stream(4)
    )
    scale[0] = 3.0
    with pytest.raises(RuntimeError, match=r"changed between forward and backward"):
        mean.sum().backward()
