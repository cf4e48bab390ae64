"""The fused loss against torch's, in value and gradient."""

import pytest
import torch
from torch.nn import functional

from regard.ops import cross_entropy as module
from regard.ops.cross_entropy import cross_entropy


@pytest.fixture(autouse=True)
def small_cache(monkeypatch):
    """Some rows at a time even here: 11 tokens, 3 rows at once."""
    monkeypatch.setattr(module, "CACHE", 35)


def case(n=7, size=5, vocabulary=11, seed=0):
    drawn = torch.Generator().manual_seed(seed)
    rows = torch.randn(n, size, generator=drawn, dtype=torch.float64)
    weight = torch.randn(vocabulary, size, generator=drawn, dtype=torch.float64)
    bias = torch.randn(vocabulary, generator=drawn, dtype=torch.float64)
    return rows, weight, bias, torch.randint(vocabulary, (n,), generator=drawn)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("n", [1, 4, 6, 7])
def test_it_is_torchs_loss_in_value_and_gradient(n, biased, smoothing):
    rows, weight, bias, target = case(n)
    given = [part.requires_grad_() for part in ([rows, weight, bias] if biased else [rows, weight])]
    more = given[2] if biased else None
    ours = cross_entropy(rows, weight, target, more, smoothing=smoothing)
    theirs = functional.cross_entropy(functional.linear(rows, weight, more), target, label_smoothing=smoothing)
    torch.testing.assert_close(ours, theirs)
    for found, right in zip(torch.autograd.grad(3 * ours, given), torch.autograd.grad(3 * theirs, given), strict=True):
        torch.testing.assert_close(found, right)


def test_the_fused_way_is_taken_where_gradients_are_wanted(monkeypatch):
    rows, weight, bias, target = case()
    called = []
    apply = module._CrossEntropy.apply
    monkeypatch.setattr(module._CrossEntropy, "apply", lambda *given: called.append(1) or apply(*given))
    cross_entropy(rows.requires_grad_(), weight, target, bias)
    assert called == [1]
    with torch.no_grad():
        cross_entropy(rows, weight, target, bias)
    assert called == [1]


def test_only_what_needs_a_gradient_gets_one():
    rows, weight, bias, target = case()
    cross_entropy(rows, weight.requires_grad_(), target, bias).backward()
    assert rows.grad is None
    assert bias.grad is None
    assert weight.grad.abs().sum() > 0


def test_large_logits_do_not_overflow():
    rows, weight, _, target = case()
    rows = (1e4 * rows).requires_grad_()
    loss = cross_entropy(rows, weight, target)
    loss.backward()
    assert loss.isfinite()
    assert rows.grad.isfinite().all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"smoothing": 1.0}, "smoothing must be at least 0 and below 1, got 1.0"),
        ({"target": torch.zeros(3, dtype=torch.long)}, r"got \[7, 5\] and \[3\]"),
        ({"rows": torch.zeros(0, 5)}, r"n at least 1, got \[0, 5\]"),
        ({"target": torch.tensor([0, 1, 2, 3, 4, 5, 11])}, "from 0 to 10, got some from 0 to 11"),
        ({"target": torch.tensor([0, 1, 2, 3, 4, 5, -100])}, "from -100 to 5: leave out the rows that have none"),
    ],
)
def test_mistakes_are_named(change, message):
    rows, weight, _, target = case()
    given = {"rows": rows, "weight": weight, "target": target} | change
    with pytest.raises(ValueError, match=message):
        cross_entropy(**given)
