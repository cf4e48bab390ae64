"""Several heads equal the formula and torch's layer."""

import copy
import pickle

import pytest
import torch
from helpers.cases import gradients, rand
from torch import nn
from torch.testing import assert_close

from regard import masks, scores
from regard.layers import (
    Attention,
    Block,
    Decoder,
    FeedForward,
    Heads,
    LearnedPositions,
    MultiHeadAttention,
    Rotary,
    SelfAttention,
)

BATCH, QUERIES, KEYS, SIZE, HEADS, KEY_SIZE, VALUE_SIZE = 2, 5, 7, 12, 3, 11, 13


def plain(layer, x, source, values, allowed=None):
    """Head by head, with a matrix each."""
    if layer.packed:
        weights = layer.input.weight.split(layer.projection_sizes)
        biases = layer.input.bias.split(layer.projection_sizes) if layer.input.bias is not None else (0.0, 0.0, 0.0)
    else:
        parts = (layer.query, layer.key, layer.value)
        weights = [part.weight for part in parts]
        biases = [0.0 if part.bias is None else part.bias for part in parts]
    query, key, value = (
        rows @ weight.T + bias for rows, weight, bias in zip((x, source, values), weights, biases, strict=True)
    )
    size, outputs = layer.head_size, []
    for head in range(layer.heads):
        own, shared = head * size, head // (layer.heads // layer.kv_heads) * size
        logits = query[..., own : own + size] @ key[..., shared : shared + size].mT / size**0.5
        if allowed is not None:
            logits = logits.masked_fill(~allowed, -torch.inf)
        outputs.append(logits.softmax(-1) @ value[..., shared : shared + size])
    return layer.output(torch.cat(outputs, dim=-1))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("heads", [HEADS, Heads(HEADS, kv=1), Heads(HEADS, size=5)], ids=str)
def test_self_attention_is_the_formula_in_value_and_gradient(heads, bias):
    layer, x = MultiHeadAttention(SIZE, heads, bias=bias).double(), rand(BATCH, QUERIES, SIZE)
    x.requires_grad_()
    result, expected = layer(x), plain(layer, x, x, x)
    assert_close(result, expected)
    tensors = [x, *layer.parameters()]
    assert_close(gradients([result], tensors), gradients([expected], tensors))
    allowed = torch.ones(QUERIES, QUERIES).tril().bool()
    assert_close(layer(x, mask=masks.causal), plain(layer, x, x, x, allowed))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"key_size": KEY_SIZE},
        {"key_size": KEY_SIZE, "value_size": VALUE_SIZE},
        {"heads": Heads(HEADS, kv=1)},
        {"heads": Heads(HEADS, size=5)},
    ],
    ids=str,
)
def test_cross_attention_is_the_formula_in_value_and_gradient(options):
    layer = MultiHeadAttention(SIZE, **{"heads": HEADS} | options).double()
    x = rand(BATCH, QUERIES, SIZE).requires_grad_()
    source = rand(BATCH, KEYS, layer.key_size, seed=1).requires_grad_()
    values = rand(BATCH, KEYS, layer.value_size, seed=2).requires_grad_()
    tensors = [x, source, values, *layer.parameters()]
    result, expected = layer(x, source, values), plain(layer, x, source, values)
    assert_close(result, expected)
    assert_close(gradients([result], tensors), gradients([expected], tensors))
    if layer.key_size == layer.value_size:
        assert_close(layer(x, source), plain(layer, x, source, source))


def test_one_head_equals_attention():
    many, single = MultiHeadAttention(SIZE, 1).double(), Attention(SIZE).double()
    with torch.no_grad():
        for part, weight, bias in zip(
            (single.query, single.key, single.value), many.input.weight.chunk(3), many.input.bias.chunk(3), strict=True
        ):
            part.weight.copy_(weight)
            part.bias.copy_(bias)
        many.output.weight.copy_(torch.eye(SIZE))
        many.output.bias.zero_()
    x, source = rand(BATCH, QUERIES, SIZE), rand(BATCH, KEYS, SIZE)
    assert_close(many(x, source), single(x, source))
    assert_close(many.look(x, source).squeeze(1), single.look(x, source))


def test_it_is_permutation_equivariant_without_positions():
    layer, order = MultiHeadAttention(SIZE, HEADS).double(), torch.tensor([3, 0, 4, 1, 2])
    x = rand(BATCH, QUERIES, SIZE)
    assert_close(layer(x[:, order]), layer(x)[:, order])


@pytest.mark.parametrize("positions", [None, Rotary(4)], ids=["none", "rotary"])
@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_under_a_causal_mask_outputs_do_not_depend_on_later_rows(positions, dropout):
    layer = MultiHeadAttention(SIZE, HEADS, positions=positions, dropout=dropout).double()
    x = rand(BATCH, QUERIES, SIZE)
    changed = torch.cat([x[:, :3], rand(BATCH, 2, SIZE, seed=9)], dim=1)
    outputs = []
    for rows in (x, changed):
        torch.manual_seed(1)
        outputs.append(layer(rows, mask=masks.causal))
    assert torch.equal(outputs[0][:, :3], outputs[1][:, :3])
    assert (outputs[0][:, 3:] - outputs[1][:, 3:]).abs().max() > 1e-3


def test_padding_has_no_influence():
    layer, x, lengths = MultiHeadAttention(SIZE, HEADS).double(), rand(BATCH, QUERIES, SIZE), torch.tensor([3, 5])
    padded = torch.cat([x, rand(BATCH, 2, SIZE, seed=5)], dim=1)
    result = layer(padded, mask=masks.padding(lengths))
    for sequence, length in enumerate(lengths):
        assert_close(result[sequence, :length], layer(x[sequence : sequence + 1, :length])[0])
    both = masks.both(masks.causal, masks.padding(lengths))
    allowed = (torch.arange(7) <= torch.arange(7)[:, None]) & (torch.arange(7) < lengths[:, None, None])
    assert_close(layer(padded, mask=both), plain(layer, padded, padded, padded, allowed))


def test_look_returns_the_weights_of_each_head():
    layer = MultiHeadAttention(SIZE, Heads(HEADS, kv=1), positions=Rotary(4)).double()
    x = rand(BATCH, QUERIES, SIZE)
    weight = layer.look(x, mask=masks.causal)
    query, key, _, _ = layer._project(x, None, None, None, None)
    expected = (query @ key.mT / 2).masked_fill(~torch.ones(5, 5).tril().bool(), -torch.inf).softmax(-1)
    assert_close(weight, expected)
    top = layer.look(x, mask=masks.causal, top=2)
    assert_close(top.weight, weight.topk(2).values)
    other = MultiHeadAttention(SIZE, HEADS, key_size=KEY_SIZE, value_size=VALUE_SIZE).double()
    assert other.look(x, rand(BATCH, KEYS, KEY_SIZE)).shape == (BATCH, HEADS, QUERIES, KEYS)


def test_another_score_on_each_head():
    score = scores.Bilinear(4, 4)
    layer, x = MultiHeadAttention(SIZE, HEADS, score=score).double(), rand(BATCH, QUERIES, SIZE)
    query, key, value = layer.input(x).view(BATCH, QUERIES, 3, HEADS, 4).permute(2, 0, 3, 1, 4)
    weight = (query @ score.weight @ key.mT).softmax(-1)
    assert_close(layer(x), layer.output((weight @ value).transpose(1, 2).flatten(2)))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("sizes", [{}, {"kdim": KEY_SIZE, "vdim": VALUE_SIZE}, {"vdim": 5}], ids=str)
def test_from_torch_and_back_gives_the_same_outputs(sizes, batch_first, bias):
    theirs = nn.MultiheadAttention(SIZE, HEADS, bias=bias, batch_first=batch_first, **sizes).double()
    with torch.no_grad():
        for parameter in theirs.parameters():  # torch starts biases at 0, which would hide errors
            parameter.copy_(rand(*parameter.shape, seed=4))
    ours = MultiHeadAttention.from_torch(theirs)
    x = rand(BATCH, QUERIES, SIZE).requires_grad_()
    source = rand(BATCH, KEYS, theirs.kdim, seed=1).requires_grad_()
    values = rand(BATCH, KEYS, theirs.vdim, seed=2).requires_grad_()
    given = [rows if batch_first else rows.transpose(0, 1) for rows in (x, source, values)]
    hidden = torch.arange(KEYS) >= torch.tensor([4, 7])[:, None]
    expected, weights = theirs(*given, key_padding_mask=hidden, average_attn_weights=False)
    expected = expected if batch_first else expected.transpose(0, 1)
    result = ours(x, source, values, mask=masks.padding(torch.tensor([4, 7])))
    assert_close(result, expected)
    assert_close(gradients([result], [x, source, values]), gradients([expected], [x, source, values]))
    assert_close(ours.look(x, source, mask=masks.padding(torch.tensor([4, 7]))), weights)
    back = ours.to_torch(batch_first=batch_first)
    assert_close(back.state_dict(), theirs.state_dict(), rtol=0, atol=0)
    assert back.batch_first == batch_first
    assert_close(back(*given)[0], theirs(*given)[0], rtol=0, atol=0)


def test_from_torch_keeps_mode_dropout_and_dtype_and_copies_weights():
    theirs = nn.MultiheadAttention(SIZE, HEADS, dropout=0.3).eval()
    ours = MultiHeadAttention.from_torch(theirs)
    assert not ours.training
    assert ours.attend.dropout == 0.3
    assert ours.input.weight.dtype == torch.float32
    before = copy.deepcopy(theirs.state_dict())
    with torch.no_grad():
        ours.input.weight.zero_()
    assert_close(theirs.state_dict(), before)


@pytest.mark.parametrize("sizes", [{}, {"kdim": KEY_SIZE, "vdim": VALUE_SIZE}], ids=str)
def test_from_torch_and_back_leave_the_generator_and_keep_requires_grad(sizes):
    theirs = nn.MultiheadAttention(SIZE, HEADS, **sizes)
    for number, parameter in enumerate(theirs.parameters()):
        parameter.requires_grad_(number % 2 == 0)
    before = torch.get_rng_state()
    ours = MultiHeadAttention.from_torch(theirs)
    back = ours.to_torch()
    assert torch.equal(torch.get_rng_state(), before)
    requires_grad = {name: parameter.requires_grad for name, parameter in theirs.named_parameters()}
    assert {name: parameter.requires_grad for name, parameter in back.named_parameters()} == requires_grad
    assert ours.output.weight.requires_grad == requires_grad["out_proj.weight"]
    assert ours.output.bias.requires_grad == requires_grad["out_proj.bias"]
    if sizes:
        parts = {"q_proj_weight": ours.query, "k_proj_weight": ours.key, "v_proj_weight": ours.value}
        for name, part in parts.items():
            assert part.weight.requires_grad == requires_grad[name]
            assert part.bias.requires_grad == requires_grad["in_proj_bias"]
    else:
        assert ours.input.weight.requires_grad == requires_grad["in_proj_weight"]
        assert ours.input.bias.requires_grad == requires_grad["in_proj_bias"]


x3 = rand(2, 5, 12)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: MultiHeadAttention(10, 3), ValueError, "heads must divide size, got size=10 and heads=3"),
        (lambda: MultiHeadAttention(12, Heads(6, kv=4)), ValueError, r"must divide heads, got Heads\(count=6, kv=4"),
        (lambda: MultiHeadAttention(12, 0), ValueError, "heads must be a positive whole number, got 0"),
        (lambda: MultiHeadAttention(12, 3)(x3[0].float()), ValueError, r"x must be \[batch, length, 12\], got \[5, 12"),
        (lambda: MultiHeadAttention(12, 3)(x3[..., :7]), ValueError, r"x must be \[batch, length, 12\], got \[2, 5, 7"),
        (
            lambda: MultiHeadAttention(12, 3, key_size=7)(x3),
            ValueError,
            "x of size 12 is not possible with key_size=7 and value_size=7: give a source",
        ),
        (
            lambda: MultiHeadAttention(12, 3, key_size=7).double()(x3, x3),
            ValueError,
            r"source must be \[batch, length, 7\], got \[2, 5, 12\]",
        ),
        (
            lambda: MultiHeadAttention(12, 3, value_size=7).double()(x3, x3),
            ValueError,
            "keys of size 12 and values of size 7 need a source each: give values",
        ),
        (
            lambda: MultiHeadAttention(12, 3, value_size=7).double()(x3, x3, x3),
            ValueError,
            r"values must be \[batch, length, 7\], got \[2, 5, 12\]",
        ),
        (
            lambda: MultiHeadAttention(12, 3, positions=Rotary(4)).double()(x3, x3),
            ValueError,
            "positions are for self-attention, got a source to attend to",
        ),
        (
            lambda: MultiHeadAttention(12, 3, positions=LearnedPositions(5, 12)),
            TypeError,
            "rotate and bias, .* got LearnedPositions",
        ),
        (lambda: MultiHeadAttention.from_torch(nn.Linear(1, 1)), TypeError, "needs torch's .* got Linear"),
        (
            lambda: MultiHeadAttention.from_torch(nn.MultiheadAttention(4, 2, add_bias_kv=True, add_zero_attn=True)),
            ValueError,
            "does not support bias_k and bias_v and add_zero_attn",
        ),
        (
            lambda: MultiHeadAttention(12, Heads(6, kv=3)).to_torch(),
            ValueError,
            "nn.MultiheadAttention does not support kv_heads=3 with heads=6",
        ),
        (
            lambda: MultiHeadAttention(12, Heads(3, size=5)).to_torch(),
            ValueError,
            "head_size=5 with size=12 and heads=3",
        ),
        (lambda: MultiHeadAttention(12, 3, positions=Rotary(4)).to_torch(), ValueError, r"positions=Rotary\(4"),
        (lambda: MultiHeadAttention(12, 3, score=scores.dot).to_torch(), ValueError, "score=dot"),
    ],
)
def test_wrong_arguments_raise(call, error, message):
    with pytest.raises(error, match=message):
        call()


class Adapted(nn.Module):
    """A linear map with another beside it, like LoRA; it has the weight of the first."""

    def __init__(self, base):
        super().__init__()
        self.base, self.more = base, nn.Linear(base.in_features, base.out_features, dtype=torch.float64)

    @property
    def weight(self):
        return self.base.weight

    @property
    def bias(self):
        return self.base.bias

    def forward(self, x):
        return self.base(x) + self.more(x)


@pytest.mark.parametrize("values", [False, True])
def test_what_replaces_the_projections_is_called(values):
    layer = MultiHeadAttention(SIZE, HEADS).double()
    x, source, others = rand(BATCH, QUERIES, SIZE), rand(BATCH, KEYS, SIZE, seed=1), rand(BATCH, KEYS, SIZE, seed=2)
    given = (source, others) if values else (source,)
    adapted, merged = copy.deepcopy(layer), copy.deepcopy(layer)
    adapted.input = Adapted(adapted.input)
    with torch.no_grad():
        merged.input.weight += adapted.input.more.weight
        merged.input.bias += adapted.input.more.bias
    for asked in ((), given):
        assert_close(adapted(x, *asked), merged(x, *asked))
    adapted(x, *given).square().sum().backward()
    assert (adapted.input.more.weight.grad != 0).any(dim=1).all()


@pytest.mark.filterwarnings("ignore:.*weight_norm.*is deprecated")
def test_weight_norm_is_trained_in_cross_attention():
    layer, x, source = MultiHeadAttention(SIZE, HEADS), torch.randn(2, 3, SIZE), torch.randn(2, 5, SIZE)
    nn.utils.weight_norm(layer.input)
    for _ in range(2):  # the second must not use the graph of the first
        layer(x, source).square().sum().backward()
    assert layer.input.weight_g.grad.abs().sum() > 0


def test_hooks_are_called_in_cross_attention():
    layer, heard = MultiHeadAttention(SIZE, HEADS), []
    layer.input.register_forward_hook(lambda module, inputs, out: heard.append(out.shape[1]))
    layer(torch.randn(2, QUERIES, SIZE), torch.randn(2, KEYS, SIZE))
    assert heard == [QUERIES, KEYS]


def test_a_copy_has_the_same_score():
    layer = MultiHeadAttention(SIZE, HEADS)
    again = copy.deepcopy(layer)
    assert again.attend.score is scores.scaled_dot
    assert again.to_torch().embed_dim == SIZE
    assert pickle.loads(pickle.dumps(scores.dot)) is scores.dot
    assert copy.copy(scores.constant) is scores.constant
    for other in (scores.Dot(scaled=True), scores.Constant()):
        assert type(pickle.loads(pickle.dumps(other))) is type(other)


def test_one_query_of_a_group_attends_to_a_shared_source():
    layer = MultiHeadAttention(SIZE, Heads(6, kv=2, size=4)).double()
    x, source = rand(5, 1, SIZE), rand(1, KEYS, SIZE, seed=1)
    assert_close(layer(x, source), layer(x, source.expand(5, KEYS, SIZE)))


def test_norms_of_heads_are_those_of_queries_and_keys_before_positions():
    layer, x = MultiHeadAttention(12, Heads(3, kv=1, norm=nn.RMSNorm), positions=Rotary(4)).double(), rand(2, 5, 12)
    with torch.no_grad():
        layer.query_norm.weight.copy_(rand(4, seed=1))
        layer.key_norm.weight.copy_(rand(4, seed=2))
    query, key, value = layer.input(x).split([12, 4, 4], dim=-1)
    query, key, value = (part.unflatten(-1, (-1, 4)).transpose(1, 2) for part in (query, key, value))
    query, key = (part / (part.square().mean(-1, keepdim=True) + 2.3e-16).sqrt() for part in (query, key))
    query, key = (layer.positions.rotate(part) for part in (query * rand(4, seed=1), key * rand(4, seed=2)))
    weights = (query @ key.mT / 2).softmax(dim=-1)
    assert_close(layer(x), layer.output((weights @ value).transpose(1, 2).flatten(2)))
    assert_close(layer.look(x), weights)
    crossing = MultiHeadAttention(12, Heads(3, kv=1, norm=nn.RMSNorm)).double()
    crossing.load_state_dict(layer.state_dict())
    assert_close(crossing(x, x), crossing(x))
    with pytest.raises(ValueError, match=r"does not support kv_heads=1 .*, norm=RMSNorm.* of the heads"):
        crossing.to_torch()


def test_a_hook_on_attend_switches_heads_off():
    layer, x = MultiHeadAttention(12, Heads(6, kv=3)).double(), rand(2, 5, 12)
    without = MultiHeadAttention(12, Heads(6, kv=3)).double()
    without.load_state_dict(layer.state_dict())
    with torch.no_grad():
        without.output.weight.view(12, 6, 2)[:, [1, 4]] = 0.0  # what these two heads add to the output
    heads = torch.tensor([1, 4])
    handle = layer.attend.register_forward_hook(lambda module, inputs, mean: mean.index_fill(1, heads, 0.0))
    assert_close(layer(x), without(x))
    assert (layer(x) - layer.output(torch.zeros(2, 5, 12).double())).abs().max() > 1e-3
    handle.remove()
    assert not torch.allclose(layer(x), without(x))


def test_heads_are_switched_off_in_a_decoder_with_a_cache_too():
    decoder = Decoder(2, lambda: Block(MultiHeadAttention(12, 3), FeedForward(12))).double().eval()
    x, whole = rand(5, 7, 12), None
    with torch.no_grad():
        cache = decoder.cache(7)
        before = decoder(x)
        decoder(x[:, :1], cache=cache)
        decoder.blocks[1].attention.attend.register_forward_hook(lambda module, inputs, mean: 0 * mean)
        whole = decoder(x)
        steps = [decoder(x[:, t : t + 1], cache=cache) for t in range(1, 7)]
    assert_close(torch.cat(steps, dim=1), whole[:, 1:])
    assert not torch.allclose(before, whole)


@pytest.mark.parametrize(
    "make",
    [
        lambda **where: MultiHeadAttention(12, Heads(3, norm=nn.RMSNorm), **where),
        lambda **where: MultiHeadAttention(12, 3, key_size=12, value_size=7, bias=False, **where),
        lambda **where: Attention(12, **where),
        lambda **where: SelfAttention(12, **where),
        lambda **where: FeedForward(12, **where),
        lambda **where: LearnedPositions(5, 12, **where),
    ],
)
def test_weights_have_the_device_and_dtype_of_the_arguments(make):
    layer = make(dtype=torch.float64)
    assert {weight.dtype for weight in layer.parameters()} == {torch.float64}
    assert {weight.dtype for weight in make().parameters()} == {torch.float32}
    if not isinstance(layer, LearnedPositions):  # nn.init.normal_ on "meta" would load torch's compiler, for seconds
        assert {weight.device.type for weight in make(device="meta").parameters()} == {"meta"}


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("attn_mask", "use mask=…, in which True means that a query may attend, the opposite of nn.Multi"),
        ("key_padding_mask", r"use mask=regard.masks.padding\(lengths\), or mask=~key_padding_mask"),
        ("is_causal", "use mask=regard.masks.causal$"),
        ("need_weights", "use the method look, which returns the weights$"),
        ("average_attn_weights", "use the method look, and the mean"),
    ],
)
def test_arguments_of_torchs_layer_raise_with_a_hint(word, hint):
    x = torch.randn(2, 5, 12)
    for layer, inputs in ((MultiHeadAttention(12, 3), [x]), (Attention(12), [x, x]), (SelfAttention(12), [x])):
        with pytest.raises(TypeError, match=rf"^{type(layer).__name__} has no argument '{word}': {hint}"):
            layer(*inputs, **{word: None})
        with pytest.raises(TypeError, match=r"has no argument 'masks'$"):
            layer(*inputs, masks=None)


def test_the_hint_for_key_padding_is_right():
    theirs, x = nn.MultiheadAttention(12, 3, batch_first=True).double(), rand(2, 5, 12)
    hidden = torch.tensor([[False, False, True, False, True], [True, False, False, False, False]])
    ours = MultiHeadAttention.from_torch(theirs)
    assert_close(ours(x, mask=~hidden[:, None, None, :]), theirs(x, x, x, key_padding_mask=hidden)[0])
