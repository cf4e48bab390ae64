"""Positions equal their formulas, written out number by number."""

import cmath
import math

import pytest
import torch
from helpers.cases import rand
from torch.testing import assert_close

from regard import masks
from regard.layers import (
    Alibi,
    LearnedPositions,
    LinearScaling,
    MultiHeadAttention,
    Rotary,
    RotaryScaling,
    Sinusoidal,
    SlidingWindow,
    YarnScaling,
)


@pytest.mark.parametrize("size", [6, 7, 1])
@pytest.mark.parametrize("start", [0, 70])
def test_sinusoidal_is_the_formula(size, start):
    x = rand(2, 5, size)
    expected = x.clone()
    for t in range(5):
        for i in range(size):
            angle = (start + t) / 10000 ** (2 * (i // 2) / (size + size % 2))
            expected[:, t, i] += math.cos(angle) if i % 2 else math.sin(angle)
    assert_close(Sinusoidal(size)(x, start), expected)


def test_sinusoidal_takes_any_length_and_both_precisions():
    far = Sinusoidal(4)(torch.zeros(5000, 4))
    assert_close(far[4999, 0].item(), math.sin(4999), atol=1e-6, rtol=0)
    assert far.dtype == torch.float32


def test_learned_positions_are_added_and_longer_sequences_raise():
    positions = LearnedPositions(7, 3).double()
    x = rand(2, 5, 3)
    assert_close(positions(x, 2), x + positions.weight[2:7])
    positions(x).sum().backward()
    assert_close(positions.weight.grad, torch.tensor([[2.0] * 3] * 5 + [[0.0] * 3] * 2).double())
    with pytest.raises(ValueError, match="there are 7 learned positions, got a sequence of 8"):
        positions(x, 3)
    with pytest.raises(ValueError, match=r"x must be \[..., length, 3\], got \[2, 5, 4\]"):
        positions(rand(2, 5, 4))


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("start", [0, 67])
def test_rotary_rotates_points_in_the_plane(interleaved, start):
    x = rand(2, 3, 5, 6).requires_grad_()
    expected, still = torch.empty_like(x).detach(), x.detach()
    for t in range(5):
        for i in range(3):
            one, two = (2 * i, 2 * i + 1) if interleaved else (i, i + 3)
            rotation = cmath.exp(1j * (start + t) * 100.0 ** (-2 * i / 6))
            for a in range(2):
                for b in range(3):
                    point = complex(still[a, b, t, one], still[a, b, t, two]) * rotation
                    expected[a, b, t, one], expected[a, b, t, two] = point.real, point.imag
    rotary = Rotary(6, base=100.0, interleaved=interleaved)
    result = rotary.rotate(x, start)
    assert_close(result, expected)
    # A rotation keeps norms, so its gradient is the inverse rotation: that of ½‖rotated‖² is x itself.
    assert_close(torch.autograd.grad(result.square().sum() / 2, x)[0], x)


@pytest.mark.parametrize("interleaved", [False, True])
def test_rotary_scores_depend_on_the_distance_only(interleaved):
    rotary, query, key = Rotary(8, interleaved=interleaved), rand(1, 8), rand(1, 8, seed=3)
    scores = [(rotary.rotate(query, t + 4) * rotary.rotate(key, t)).sum() for t in (0, 1, 500)]
    assert_close(scores[1], scores[0])
    assert_close(scores[2], scores[0])
    assert abs((rotary.rotate(query, 5) * rotary.rotate(key, 0)).sum() - scores[0]) > 1e-3


def test_rotary_scaling_by_its_definition():
    """Frequencies of fast pairs stay, slow ones are divided, those between are interpolated."""
    trained_length, slow, fast, factor = 23, 0.4, 2.5, 7.0
    rotary = Rotary(10, base=50.0, scaling=RotaryScaling(factor, trained_length=trained_length, slow=slow, fast=fast))
    x = rand(3, 10)
    kinds = set()
    for pair in range(5):
        frequency = 50.0 ** (-2 * pair / 10)
        turns = trained_length * frequency / (2 * math.pi)
        unscaled = 1.0 if turns >= fast else 0.0 if turns <= slow else (turns - slow) / (fast - slow)
        kinds.add(unscaled if unscaled in (0.0, 1.0) else 0.5)
        angle = 9 * (unscaled * frequency + (1 - unscaled) * frequency / factor)
        result = rotary.rotate(x, 7)[2, [pair, pair + 5]]
        first, second = x[2, pair], x[2, pair + 5]
        want = [
            first * math.cos(angle) - second * math.sin(angle),
            first * math.sin(angle) + second * math.cos(angle),
        ]
        assert_close(result, torch.stack(want))
    assert kinds == {0.0, 0.5, 1.0}
    assert "scaling=RotaryScaling(factor=7.0, trained_length=23, slow=0.4, fast=2.5)" in repr(rotary)


def test_rotary_tables_made_in_inference_mode_work_in_training():
    rotary = Rotary(4, base=77.0)
    with torch.inference_mode():
        rotary.rotate(rand(3, 4), 0)
    x = rand(3, 4).requires_grad_()
    rotary.rotate(x, 0).sum().backward()
    assert x.grad is not None


@pytest.mark.parametrize(
    ("heads", "exponents"),
    [(1, [8]), (2, [4, 8]), (8, [1, 2, 3, 4, 5, 6, 7, 8]), (6, [2, 4, 6, 8, 1, 3]), (3, [4, 8, 2])],
)
def test_alibi_slopes_are_the_papers(heads, exponents):
    assert_close(Alibi(heads).slopes.flatten(), torch.tensor([2.0**-e for e in exponents]))


def test_alibi_is_subtracted_from_the_scores():
    layer = MultiHeadAttention(6, 2, positions=Alibi(2)).double()
    x = rand(2, 5, 6)
    query, key, value = layer.input(x).view(2, 5, 3, 2, 3).permute(2, 0, 3, 1, 4)
    logits = query @ key.mT / 3**0.5
    for head, slope in enumerate((2**-4, 2**-8)):
        for i in range(5):
            for j in range(5):
                logits[:, head, i, j] -= slope * (i - j) if j <= i else torch.inf
    weight = logits.softmax(-1)
    assert_close(layer.look(x, mask=masks.causal), weight)
    assert_close(layer(x, mask=masks.causal), layer.output((weight @ value).transpose(1, 2).flatten(2)))


@pytest.mark.parametrize("positions", [Rotary(4), Rotary(4, interleaved=True), Alibi(3)])
def test_with_positions_the_order_matters(positions):
    order, x = torch.tensor([3, 0, 4, 1, 2]), rand(2, 5, 12)
    without, with_them = MultiHeadAttention(12, 3).double(), MultiHeadAttention(12, 3, positions=positions).double()
    assert_close(without(x[:, order]), without(x)[:, order])
    assert (with_them(x[:, order]) - with_them(x)[:, order]).abs().max() > 1e-4


def test_any_object_with_the_two_methods_works():
    class Doubled:
        def rotate(self, x, start):
            return 2 * x

        def bias(self, mask):
            return mask

    ours, x = MultiHeadAttention(6, 2, positions=Doubled()).double(), rand(1, 4, 6)
    plain = MultiHeadAttention(6, 2, score=lambda q, k: 4 * q @ k.mT / 3**0.5).double()
    plain.load_state_dict(ours.state_dict())
    assert_close(ours(x), plain(x))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Rotary(5), "Rotary rotates pairs: size must be even, got 5"),
        (lambda: Rotary(4, base=0.0), "base must be positive, got 0.0"),
        (lambda: Rotary(4).rotate(rand(3, 6)), r"queries and keys must be \[..., length, 4\], got \[3, 6\]"),
        (
            lambda: RotaryScaling(0.5, trained_length=9),
            "factor must be at least 1, .* got factor=0.5, slow=1.0 and fast=4.0",
        ),
        (
            lambda: RotaryScaling(2.0, trained_length=9, slow=4.0),
            "fast above it, got factor=2.0, slow=4.0 and fast=4.0",
        ),
        (lambda: RotaryScaling(2.0, trained_length=0), "trained_length must be a positive whole number, got 0"),
        (lambda: Alibi(0), "heads must be a positive whole number, got 0"),
        (lambda: LearnedPositions(0, 3), "max_length must be a positive whole number, got 0"),
        (lambda: Sinusoidal(3)(rand(2)), r"x must be \[..., length, 3\], got \[2\]"),
    ],
)
def test_wrong_arguments_raise(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_tables_of_a_functionalized_call_are_not_cached():
    """Its tensors are stand-ins for others, and must not be used later."""
    rotary, x = Rotary(6, base=317.0), torch.randn(1, 2, 7, 6)
    torch.func.functionalize(lambda x: rotary.rotate(x, 0))(x)
    assert not torch._is_functional_tensor(rotary.rotate(x, 0))


@pytest.mark.parametrize("positions", [LearnedPositions(11, 6, unused=3).double(), Sinusoidal(6)], ids=type)
def test_added_positions_start_where_each_sequence_does(positions):
    x, starts = rand(3, 4, 6), [5, 0, -2]
    result = positions(x, torch.tensor(starts))
    for row, start in enumerate(starts):
        first = max(0, -start)  # padding before it may have any position
        assert_close(result[row, first:], positions(x[row, first:], start + first))


def test_unused_vectors_come_before_those_of_the_positions():
    positions, x = LearnedPositions(7, 3, unused=2).double(), rand(2, 5, 3)
    assert positions.weight.shape == (9, 3)
    assert_close(positions(x, 2), x + positions.weight[4:9])
    with pytest.raises(ValueError, match="there are 7 learned positions, got a sequence of 8"):
        positions(x, 3)
    assert repr(positions) == "LearnedPositions(7, 3, unused=2)"


def test_linear_scaling_is_that_of_closer_positions():
    x = rand(3, 1, 8)
    scaled, plain = Rotary(8, scaling=LinearScaling(4.0)), Rotary(8)
    assert_close(scaled.rotate(x, 20), plain.rotate(x, 5))
    with pytest.raises(ValueError, match=r"factor must be at least 1, .* got factor=0.5"):
        LinearScaling(0.5)


@pytest.mark.parametrize("rounded", [True, False])
def test_yarn_scaling_is_the_formula(rounded):
    size, base, factor, length, slow, fast = 24, 500.0, 8.0, 300, 2.0, 20.0
    scaling = YarnScaling(factor, length, slow=slow, fast=fast, rounded=rounded)
    first, last = (size * math.log(length / (2 * math.pi * n)) / (2 * math.log(base)) for n in (fast, slow))
    if rounded:
        first, last = math.floor(first), math.ceil(last)
    x, t = rand(1, size), 37
    result = Rotary(size, base=base, scaling=scaling).rotate(x, t)[0]
    kinds = set()
    for i in range(size // 2):
        divided = min(1.0, max(0.0, (i - first) / (last - first)))
        kinds.add(1 if 0 < divided < 1 else divided * 2)
        frequency = base ** (-2 * i / size) * (1 - divided + divided / factor)
        turned = complex(x[0, i], x[0, i + size // 2]) * cmath.exp(1j * t * frequency) * (1 + 0.1 * math.log(factor))
        assert_close([result[i].item(), result[i + size // 2].item()], [turned.real, turned.imag])
    assert kinds == {0, 1, 2}
    assert_close(YarnScaling(1.0, 10)(torch.tensor([1.0])), torch.tensor([1.0]))
    with pytest.raises(ValueError, match=r"fast above it, got factor=2.0, slow=40.0 and fast=32.0"):
        YarnScaling(2.0, 10, slow=40.0)


@pytest.mark.parametrize("inner", [None, Rotary(4), Alibi(3)], ids=str)
def test_a_sliding_window_hides_distant_keys(inner):
    layer, x = MultiHeadAttention(12, 3, positions=SlidingWindow(2, inner)).double(), rand(2, 9, 12)
    plain = MultiHeadAttention(12, 3, positions=inner).double()
    plain.load_state_dict(layer.state_dict())
    near = masks.both(masks.causal, masks.window(2))
    assert_close(layer(x, mask=masks.causal), plain(x, mask=near))
    assert_close(layer(x), plain(x, mask=masks.window(2)))
