"""Weighings beside softmax: linear attention as the trace of the source, hard attention for REINFORCE."""

import math

import pytest
import torch
from torch.testing import assert_close

import regard
from regard import scores, weighing


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
