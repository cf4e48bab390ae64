"""Single heads equal the formula written out: values, gradients, scores, masks, groups; self-attention on a grid."""

import math

import pytest
import reference
import torch
from helpers.cases import gradients, rand
from torch.testing import assert_close

from regard import masks, scores, weighing
from regard.layers import Attend, Attention, ConvSelfAttention, DifferentialAttention, SelfAttention, Sinusoidal

BATCH, QUERIES, KEYS, SIZE, KEY_SIZE, HEAD, VALUE = 2, 5, 7, 11, 13, 3, 17
CHANNELS, GRID_SIZE, HEADS, HEIGHT, WIDTH = 5, 6, 3, 3, 7


def layer(**options):
    return Attention(SIZE, KEY_SIZE, head_size=HEAD, value_size=VALUE, **options).double()


@pytest.mark.parametrize("bias", [True, False])
def test_attention_is_the_formula_in_value_and_gradient(bias):
    ours = layer(bias=bias)
    x, source = rand(BATCH, QUERIES, SIZE).requires_grad_(), rand(BATCH, KEYS, KEY_SIZE).requires_grad_()
    parts = (ours.query, x), (ours.key, source), (ours.value, source)
    query, key, value = (linear(part, rows) for part, rows in parts)
    expected, _ = reference.attend(query, key, value, reference.scaled_dot)
    result = ours(x, source)
    assert_close(result, expected)
    tensors = [x, source, *ours.parameters()]
    assert_close(gradients([result], tensors), gradients([expected], tensors))


def linear(part, rows):
    """A linear map, one row and one number at a time."""
    out = [
        [(weight * row).sum() + (0.0 if part.bias is None else part.bias[i]) for i, weight in enumerate(part.weight)]
        for row in rows.flatten(0, -2)
    ]
    return torch.stack([torch.stack(row) for row in out]).view(*rows.shape[:-1], -1)


def test_any_score_and_any_mask_can_be_used():
    additive = scores.Additive(HEAD, HEAD, hidden=4)
    ours = layer(score=additive)
    x, source = rand(BATCH, QUERIES, SIZE), rand(BATCH, KEYS, KEY_SIZE)
    lengths = torch.tensor([3, 7])
    result = ours(x, source, mask=masks.padding(lengths))
    logits = additive(ours.query(x), ours.key(source))
    logits = logits.masked_fill(torch.arange(KEYS) >= lengths[:, None, None], -torch.inf)
    assert_close(result, logits.softmax(-1) @ ours.value(source))
    assert dict(ours.named_parameters())["attend.score.weight"] is additive.weight
    plain = layer(score=lambda query, key: -torch.cdist(query, key))
    weight = (-torch.cdist(plain.query(x), plain.key(source))).softmax(-1)
    assert_close(plain(x, source), weight @ plain.value(source))
    assert_close(plain.look(x, source), weight)


def test_self_attention_is_attention_to_itself():
    own = SelfAttention(SIZE, head_size=HEAD, value_size=VALUE).double()
    other = Attention(SIZE, head_size=HEAD, value_size=VALUE).double()
    with torch.no_grad():
        for part, weight, bias in zip(
            (other.query, other.key, other.value),
            own.projection.weight.split([HEAD, HEAD, VALUE]),
            own.projection.bias.split([HEAD, HEAD, VALUE]),
            strict=True,
        ):
            part.weight.copy_(weight)
            part.bias.copy_(bias)
    x = rand(BATCH, QUERIES, SIZE)
    assert_close(own(x, mask=masks.causal), other(x, x, mask=masks.causal))
    assert_close(own.look(x), other.look(x, x))


def test_self_attention_is_permutation_equivariant_without_positions():
    ours, order = SelfAttention(SIZE).double(), torch.tensor([3, 0, 4, 1, 2])
    x = rand(BATCH, QUERIES, SIZE)
    assert_close(ours(x[:, order]), ours(x)[:, order])
    places = Sinusoidal(SIZE)
    assert (ours(places(x[:, order])) - ours(places(x))[:, order]).abs().max() > 1e-3


def test_the_order_of_the_source_does_not_matter():
    ours, order = layer(), torch.tensor([6, 2, 0, 3, 1, 5, 4])
    x, source = rand(BATCH, QUERIES, SIZE), rand(BATCH, KEYS, KEY_SIZE)
    assert_close(ours(x, source[:, order]), ours(x, source))


@pytest.mark.parametrize(("queries", "keys"), [(1, 7), (7, 1), (5, 7), (7, 5), (1, 1), (3, 0)])
def test_numbers_of_queries_and_keys_may_differ(queries, keys):
    ours = layer()
    assert ours(rand(BATCH, queries, SIZE), rand(BATCH, keys, KEY_SIZE)).shape == (BATCH, queries, VALUE)
    assert ours(rand(queries, SIZE), rand(keys, KEY_SIZE)).shape == (queries, VALUE)


def test_under_a_causal_mask_outputs_do_not_depend_on_later_rows():
    ours, x = SelfAttention(SIZE).double(), rand(BATCH, QUERIES, SIZE)
    changed = torch.cat([x[:, :3], rand(BATCH, 2, SIZE, seed=9)], dim=1)
    assert torch.equal(ours(x, mask=masks.causal)[:, :3], ours(changed, mask=masks.causal)[:, :3])
    assert (ours(x)[:, :3] - ours(changed)[:, :3]).abs().max() > 1e-3


def test_a_batch_of_one_broadcasts_to_a_batch_of_sources():
    ours, x, source = layer(), rand(1, QUERIES, SIZE), rand(3, KEYS, KEY_SIZE)
    assert_close(ours(x, source), ours(x.expand(3, -1, -1), source))


def test_look_returns_the_weights_of_the_average():
    ours, x, source = layer(), rand(BATCH, QUERIES, SIZE), rand(BATCH, KEYS, KEY_SIZE)
    weight = ours.look(x, source)
    assert_close(weight @ ours.value(source), ours(x, source))
    top = ours.look(x, source, top=3)
    assert_close(top.weight, weight.topk(3).values)
    assert torch.equal(top.index, weight.topk(3).indices)


def test_dropout_is_for_training_only_and_reproducible():
    ours = SelfAttention(SIZE, dropout=0.5)
    x = rand(BATCH, QUERIES, SIZE, dtype=torch.float32)
    still = ours.eval()(x)
    assert torch.equal(still, ours(x))
    ours.train()
    torch.manual_seed(3)
    first, second = ours(x), ours(x)
    torch.manual_seed(3)
    assert torch.equal(ours(x), first)
    assert not torch.equal(first, second)
    assert not torch.equal(first, still)


@pytest.mark.parametrize(
    "mask", [None, masks.causal, torch.rand(3, 5, generator=torch.Generator().manual_seed(0)) > 0.3]
)
@pytest.mark.parametrize("queries", [1, 3])
def test_groups_share_keys(mask, queries):
    attend = Attend(groups=3).double()
    query, key, value = rand(2, 6, queries, 8), rand(2, 2, 5, 8, seed=1), rand(2, 2, 5, 8, seed=2)
    mask = mask[:queries] if isinstance(mask, torch.Tensor) else mask
    for head in range(6):
        alone = Attend().double()(query[:, head], key[:, head // 3], value[:, head // 3], mask)
        assert_close(attend(query, key, value, mask)[:, head], alone)
        assert_close(attend.look(query, key, mask)[:, head], Attend().look(query[:, head], key[:, head // 3], mask))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: Attention(0), ValueError, "size must be a positive whole number, got 0"),
        (lambda: Attention(4, 2.5), ValueError, "key_size must be a positive whole number, got 2.5"),
        (lambda: SelfAttention(4, head_size=True), ValueError, "head_size must be a positive whole number, got True"),
        (lambda: Attention(4, score=3), TypeError, r"score must be callable, .* got int"),
        (lambda: Attention(4, dropout=1.5), ValueError, "dropout must be a number between 0 and 1, got 1.5"),
        (lambda: Attend(groups=0), ValueError, "groups must be a positive whole number, got 0"),
        (lambda: layer()(rand(2, 3, 5), rand(2, 3, 13)), ValueError, r"x must be \[..., length, 11\], got \[2, 3, 5\]"),
        (lambda: layer()(rand(3, 11), rand(13)), ValueError, r"source must be \[..., length, 13\], got \[13\]"),
        (lambda: SelfAttention(4)([1.0]), TypeError, "x must be a torch tensor, got list"),
    ],
)
def test_wrong_arguments_raise(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_repr():
    assert "score=scaled_dot, dropout=0.1" in repr(Attention(4, dropout=0.1))
    assert "groups=2" in repr(Attend(groups=2))


def plain_grid(layer, x, heads, allowed=None):
    """Cells as rows: a 1×1 convolution is a linear map of each."""
    rows = x.flatten(2).transpose(1, 2)  # [batch, cells, channels]
    weight, bias = layer.input.weight.flatten(1), layer.input.bias
    query, key, value = (rows @ weight.T + bias).chunk(3, dim=-1)
    outputs = []
    for q, k, v in zip(*(part.chunk(heads, dim=-1) for part in (query, key, value)), strict=True):
        logits = q @ k.mT / q.shape[-1] ** 0.5
        if allowed is not None:
            logits = logits.masked_fill(~allowed, -torch.inf)
        outputs.append(logits.softmax(-1) @ v)
    out = torch.cat(outputs, dim=-1) @ layer.output.weight.flatten(1).T + layer.output.bias
    return x + layer.gain * out.transpose(1, 2).reshape(x.shape)


@pytest.mark.parametrize(("size", "heads"), [(GRID_SIZE, HEADS), (GRID_SIZE, 1), (None, 1)])
def test_it_is_the_formula_in_value_and_gradient(size, heads):
    layer = ConvSelfAttention(CHANNELS, size, heads).double()
    with torch.no_grad():
        layer.gain.fill_(0.7)
    x = rand(BATCH, CHANNELS, HEIGHT, WIDTH).requires_grad_()
    result, expected = layer(x), plain_grid(layer, x, heads)
    assert_close(result, expected)
    tensors = [x, *layer.parameters()]
    assert_close(gradients([result], tensors), gradients([expected], tensors))


def test_it_starts_as_the_identity_and_has_a_gradient():
    layer, x = ConvSelfAttention(CHANNELS).double(), rand(BATCH, CHANNELS, HEIGHT, WIDTH)
    assert torch.equal(layer(x), x)
    (layer(x) * rand(BATCH, CHANNELS, HEIGHT, WIDTH, seed=3)).sum().backward()
    assert layer.gain.grad.abs() > 1e-3


def test_any_grid_and_a_mask_over_cells():
    layer = ConvSelfAttention(CHANNELS, GRID_SIZE, HEADS).double()
    with torch.no_grad():
        layer.gain.fill_(1.0)
    for shape in ((1, 1), (4, 2), (1, 9)):
        x = rand(1, CHANNELS, *shape)
        assert_close(layer(x), plain_grid(layer, x, HEADS))
    x, cells = rand(BATCH, CHANNELS, HEIGHT, WIDTH), torch.arange(HEIGHT * WIDTH)
    near = (cells[:, None] - cells).abs() <= 2
    assert_close(layer(x, mask=masks.window(2)), plain_grid(layer, x, HEADS, near))


def test_look_returns_the_weights_of_the_cells():
    layer, x = ConvSelfAttention(CHANNELS, GRID_SIZE, HEADS).double(), rand(BATCH, CHANNELS, HEIGHT, WIDTH)
    weight = layer.look(x)
    assert weight.shape == (BATCH, HEADS, 21, 21)
    query, key, _ = layer._project(x)
    assert_close(weight, (query @ key.mT / 2**0.5).softmax(-1))
    top = layer.look(x, top=4)
    assert_close(top.weight, weight.topk(4).values)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: ConvSelfAttention(5, 7, heads=2), ValueError, "heads must divide size, got size=7 and heads=2"),
        (lambda: ConvSelfAttention(5, heads=2), ValueError, "heads must divide size, got size=5 and heads=2"),
        (lambda: ConvSelfAttention(0), ValueError, "channels must be a positive whole number, got 0"),
        (
            lambda: ConvSelfAttention(5)(torch.ones(2, 4, 3, 3)),
            ValueError,
            r"x must be \[batch, 5, height, width\], got \[2, 4, 3, 3\]",
        ),
        (lambda: ConvSelfAttention(5)(torch.ones(5, 3, 3)), ValueError, r"height, width\], got \[5, 3, 3\]"),
        (lambda: ConvSelfAttention(5)("grid"), TypeError, "x must be a torch tensor, got str"),
    ],
)
def test_wrong_arguments_of_a_grid_raise(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_differential_attention_is_the_difference_of_two():
    torch.manual_seed(0)
    layer, x = DifferentialAttention(12, heads=3, depth=4).double(), torch.randn(2, 5, 12, dtype=torch.float64)
    assert_close(layer.start, 0.8 - 0.6 * math.exp(-0.9))
    (a1, b1), (a2, b2) = layer.log_factors
    factor = (a1 @ b1).exp() - (a2 @ b2).exp() + layer.start
    assert_close(layer.factor, factor)
    query, key, value = (
        project(x).view(2, 5, 3, -1).transpose(1, 2) for project in (layer.query, layer.key, layer.value)
    )
    first, second = (
        (query[..., part] @ key[..., part].mT / 2**0.5)
        .masked_fill(~torch.ones(5, 5).bool().tril(), -math.inf)
        .softmax(-1)
        for part in (slice(0, 2), slice(2, 4))
    )
    weight = first - factor * second
    assert_close(layer.look(x, mask=masks.causal), weight)
    head = weight @ value
    head = head / (head.square().mean(dim=-1, keepdim=True) + torch.finfo(torch.float64).eps).sqrt() * (1 - layer.start)
    assert_close(layer(x, mask=masks.causal), layer.output(head.transpose(1, 2).flatten(2)))
    layer(x).sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in layer.parameters())
    assert layer(x, torch.randn(2, 7, 12, dtype=torch.float64)).shape == x.shape
    with pytest.raises(ValueError, match=r"^2 · heads must divide size, got size=12 and heads=4"):
        DifferentialAttention(12, heads=4)


@pytest.mark.parametrize("layer", [Attention(6, weigh=weighing.sparsemax), SelfAttention(6, weigh=weighing.sparsemax)])
def test_layers_weigh_as_they_are_told(layer):
    x = torch.randn(2, 40, 6) * 5
    arguments = (x, x) if isinstance(layer, Attention) else (x,)
    weight = layer.look(*arguments)
    assert (weight == 0).float().mean() > 0.3
    assert_close(weight.sum(dim=-1), torch.ones(2, 40))
    assert layer(*arguments).shape == x.shape
    assert "weigh=sparsemax" in repr(layer)
    with pytest.raises(TypeError, match=r"^weigh must be callable, scores -> weights, got str"):
        type(layer)(6, weigh="softmax")
