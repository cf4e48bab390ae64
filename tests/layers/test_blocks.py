"""Blocks and stacks equal torch's layers and the sums written out; the fast path for single rows equals the blocks."""

import numpy as np
import pytest
import torch
from helpers.cases import gradients, rand
from torch import nn
from torch.nn import functional
from torch.testing import assert_close

from regard import masks
from regard.layers import (
    Alibi,
    Attention,
    Block,
    ConvSelfAttention,
    Decoder,
    Encoder,
    FeedForward,
    Heads,
    LearnedPositions,
    MultiHeadAttention,
    Rotary,
    SelfAttention,
    Sinusoidal,
    SlidingWindow,
    post_norm,
    pre_norm,
    swiglu,
)
from regard.layers.blocks import FastBlocks
from regard.scores import dot

BATCH, LENGTH, MEMORY, SIZE, HEADS, HIDDEN = 2, 5, 7, 12, 3, 17
WIDE, WIDE_HEADS = 24, 6  # of the tests of the fast path


def like_torch(theirs, block):
    """Our block with the weights of torch's encoder or decoder layer."""
    pairs = [(block.attention, theirs.self_attn)]
    norms = [block.attention_norm, block.feed_forward_norm]
    if block.has_cross:
        pairs.append((block.cross, theirs.multihead_attn))
        norms.insert(1, block.cross_norm)
    for ours, attention in pairs:
        ours.load_state_dict(MultiHeadAttention.from_torch(attention).state_dict())
    block.feed_forward.input.load_state_dict(theirs.linear1.state_dict())
    block.feed_forward.output.load_state_dict(theirs.linear2.state_dict())
    for number, norm in enumerate(norms, 1):
        norm.load_state_dict(getattr(theirs, f"norm{number}").state_dict())
    return block


def randomise(module):
    """All weights and biases random: torch starts some with zeros and ones."""
    with torch.no_grad():
        for number, parameter in enumerate(module.parameters()):
            parameter.copy_(rand(*parameter.shape, seed=number) * 0.4)
    return module.double()


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_a_block_equals_torchs_encoder_layer(norm_first, activation):
    theirs = nn.TransformerEncoderLayer(SIZE, HEADS, HIDDEN, 0.0, activation, batch_first=True, norm_first=norm_first)
    theirs = randomise(theirs)
    feed_forward = FeedForward(SIZE, HIDDEN, activation=getattr(functional, activation))
    residual = pre_norm if norm_first else post_norm
    ours = like_torch(theirs, Block(MultiHeadAttention(SIZE, HEADS), feed_forward, residual=residual).double())
    x, lengths = rand(BATCH, LENGTH, SIZE).requires_grad_(), torch.tensor([3, 5])
    hidden = torch.arange(LENGTH) >= lengths[:, None]
    future = ~torch.ones(LENGTH, LENGTH).tril().bool()
    expected = theirs(x, src_mask=future, src_key_padding_mask=hidden)
    result = ours(x, mask=masks.both(masks.causal, masks.padding(lengths)))
    assert_close(result, expected)
    assert_close(gradients([result], [x]), gradients([expected], [x]))


@pytest.mark.parametrize("norm_first", [True, False])
def test_a_block_with_cross_attention_equals_torchs_decoder_layer(norm_first):
    theirs = nn.TransformerDecoderLayer(SIZE, HEADS, HIDDEN, 0.0, batch_first=True, norm_first=norm_first)
    theirs = randomise(theirs)
    block = Block(
        MultiHeadAttention(SIZE, HEADS),
        FeedForward(SIZE, HIDDEN, activation=torch.relu),
        cross=MultiHeadAttention(SIZE, HEADS),
        residual=pre_norm if norm_first else post_norm,
    )
    ours = like_torch(theirs, block.double())
    x, memory = rand(BATCH, LENGTH, SIZE).requires_grad_(), rand(BATCH, MEMORY, SIZE, seed=1).requires_grad_()
    lengths = torch.tensor([7, 4])
    future = ~torch.ones(LENGTH, LENGTH).tril().bool()
    hidden = torch.arange(MEMORY) >= lengths[:, None]
    expected = theirs(x, memory, tgt_mask=future, memory_key_padding_mask=hidden)
    result = ours(x, memory, mask=masks.causal, memory_mask=masks.padding(lengths))
    assert_close(result, expected)
    assert_close(gradients([result], [x, memory]), gradients([expected], [x, memory]))


def test_a_block_in_the_style_of_llama():
    attention = MultiHeadAttention(SIZE, Heads(6, kv=2), positions=Rotary(2), bias=False)
    block = Block(attention, FeedForward(SIZE, HIDDEN, activation=swiglu, bias=False), norm=nn.RMSNorm)
    block = randomise(block)
    x = rand(BATCH, LENGTH, SIZE)

    def norm(module, rows):
        return rows / (rows.square().mean(-1, keepdim=True) + torch.finfo(rows.dtype).eps).sqrt() * module.weight

    middle = x + attention(norm(block.attention_norm, x), mask=masks.causal)
    expected = middle + block.feed_forward(norm(block.feed_forward_norm, middle))
    assert_close(block(x, mask=masks.causal), expected)
    assert not [name for name, _ in block.named_parameters() if "bias" in name]


def make(**options):
    return lambda: Block(MultiHeadAttention(SIZE, HEADS), FeedForward(SIZE, HIDDEN), **options)


def test_stacks_apply_their_blocks_in_order():
    encoder = Encoder(3, make(), norm=nn.LayerNorm(SIZE)).double()
    x, lengths = rand(BATCH, LENGTH, SIZE), torch.tensor([2, 5])
    rows = x
    for block in encoder.blocks:
        rows = block(rows, mask=masks.padding(lengths))
    assert_close(encoder(x, mask=masks.padding(lengths)), encoder.norm(rows))
    assert len({id(parameter) for parameter in encoder.parameters()}) == len(list(encoder.parameters())) == 3 * 12 + 2
    decoder = Decoder(2, make()).double()
    rows = x
    for block in decoder.blocks:
        rows = block(rows, mask=masks.causal)
    assert_close(decoder(x), rows)


def test_an_encoder_is_permutation_equivariant_and_a_decoder_causal():
    x, order = rand(BATCH, LENGTH, SIZE), torch.tensor([3, 0, 4, 1, 2])
    encoder, decoder = Encoder(2, make()).double(), Decoder(2, make()).double()
    assert_close(encoder(x[:, order]), encoder(x)[:, order])
    changed = torch.cat([x[:, :3], rand(BATCH, 2, SIZE, seed=9)], dim=1)
    assert torch.equal(decoder(x)[:, :3], decoder(changed)[:, :3])
    assert (encoder(x)[:, :3] - encoder(changed)[:, :3]).abs().max() > 1e-3


def test_dropout_is_reproducible_and_off_in_evaluation():
    model = Decoder(2, make(dropout=0.2))
    x = rand(BATCH, LENGTH, SIZE, dtype=torch.float32)
    torch.manual_seed(2)
    first, second = model(x), model(x)
    torch.manual_seed(2)
    assert torch.equal(model(x), first)
    assert not torch.equal(first, second)
    still = model.eval()(x)
    assert torch.equal(model(x), still)


@pytest.mark.parametrize("residual", [pre_norm, post_norm])
def test_look_returns_the_weights_of_each_block(residual):
    encoder = Encoder(2, make(residual=residual)).double()
    x = rand(BATCH, LENGTH, SIZE)
    first, second = encoder.blocks
    norms = [block.attention_norm if residual is pre_norm else nn.Identity() for block in encoder.blocks]
    expected = [first.attention.look(norms[0](x)), second.attention.look(norms[1](first(x)))]
    assert_close(encoder.look(x), expected)
    assert_close(first.look(x), expected[0])
    assert_close([result.weight for result in encoder.look(x, top=2)], [w.topk(2).values for w in expected])
    decoder = Decoder(2, make(residual=residual, cross=MultiHeadAttention(SIZE, HEADS))).double()
    result = decoder.look(x, rand(BATCH, MEMORY, SIZE))
    assert [w.shape for w in result] == [(BATCH, HEADS, LENGTH, LENGTH)] * 2
    assert result[1].triu(1).abs().max() == 0


def test_sizes_may_be_numpys():
    three, five, twelve = np.int64(3), np.int32(5), np.uint8(12)
    attention = MultiHeadAttention(twelve, Heads(three, kv=np.int64(1)), positions=Rotary(np.int64(4)))
    stack = Decoder(np.int64(2), lambda: Block(attention, FeedForward(twelve, five)))
    stack.cache(five)
    layers = [
        stack,
        Attention(twelve, three, head_size=five),
        SelfAttention(twelve, value_size=five),
        ConvSelfAttention(twelve, heads=three),
        LearnedPositions(five, twelve),
        Sinusoidal(twelve),
        Alibi(three),
    ]
    for layer in layers:
        numbers = [value for part in layer.modules() for value in vars(part).values() if isinstance(value, np.integer)]
        assert not numbers
    assert stack(torch.randn(2, 5, 12)).shape == (2, 5, 12)
    for wrong in (np.float64(3.0), np.bool_(True), "3", None):
        with pytest.raises(ValueError, match="heads must be a positive whole number, got"):
            MultiHeadAttention(12, wrong)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: FeedForward(0), ValueError, "size must be a positive whole number, got 0"),
        (lambda: FeedForward(4, activation="gelu"), TypeError, "activation must be callable, .* got 'gelu'"),
        (lambda: FeedForward(4)(rand(3, 5)), ValueError, r"x must be \[..., length, 4\], got \[3, 5\]"),
        (lambda: make(residual="pre")(), TypeError, "residual must be callable, .* got 'pre'"),
        (lambda: make(dropout=-0.1)(), ValueError, "dropout must be a number between 0 and 1, got -0.1"),
        (lambda: Encoder(0, make()), ValueError, "blocks must be a positive whole number, got 0"),
        (lambda: Encoder(1, make())(rand(5, 12)), ValueError, r"x must be \[batch, length, 12\], got \[5, 12\]"),
        (
            lambda: make(cross=MultiHeadAttention(SIZE, HEADS))().double()(rand(1, 5, SIZE)),
            ValueError,
            "a block with cross-attention needs a memory, got none",
        ),
        (
            lambda: Decoder(1, make()).double()(rand(1, 5, SIZE), rand(1, 7, SIZE)),
            ValueError,
            "a block without cross-attention takes no memory, got one",
        ),
        (
            lambda: Block(MultiHeadAttention(SIZE, HEADS), nn.Linear(SIZE, 1))(torch.randn(2, 3, SIZE)),
            ValueError,
            r"a residual sum needs two of one shape, got \[2, 3, 12\] and \[2, 3, 1\]",
        ),
    ],
)
def test_wrong_arguments_raise(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_a_stack_needs_a_function_that_makes_blocks():
    with pytest.raises(TypeError, match=r"must make a new block each time it is called, lambda: Block\(…\)"):
        Encoder(2, Block(MultiHeadAttention(8, heads=2), FeedForward(8)))


class Shifted(nn.Linear):
    """A linear map with an addition, like an adapter."""

    def forward(self, x):
        return super().forward(x) + 1.0


class Doubled(FeedForward):
    def forward(self, x):
        return 2 * super().forward(x)


def fast_decoder(**parts):
    attention = {name: parts.pop(name) for name in ("heads", "positions", "score", "bias") if name in parts}
    made = parts.pop("feed_forward", lambda: FeedForward(WIDE, 31, activation=swiglu))
    torch.manual_seed(1)
    blocks = Decoder(2, lambda: Block(MultiHeadAttention(WIDE, **{"heads": WIDE_HEADS} | attention), made(), **parts))
    for parameter in blocks.parameters():
        nn.init.normal_(parameter, std=0.3)
    return blocks.double().eval()


def run_steps(model, x, **more):
    cache = model.cache(LENGTH)
    with torch.no_grad():
        return torch.cat([model(row, cache=cache, **more) for row in x.split(1, dim=1)], dim=1), cache


@pytest.mark.parametrize("batch", [1, 3, 7])
@pytest.mark.parametrize(
    "parts",
    [
        {},
        {"bias": False, "norm": nn.RMSNorm, "heads": Heads(WIDE_HEADS, kv=2), "positions": Rotary(4)},
        {"residual": post_norm, "norm": lambda size: nn.LayerNorm(size, eps=0.1), "heads": Heads(WIDE_HEADS, kv=1)},
        {"feed_forward": lambda: FeedForward(WIDE, activation=torch.relu, bias=False)},
        {"heads": Heads(WIDE_HEADS, kv=2, norm=nn.RMSNorm), "positions": Rotary(4)},
    ],
    ids=["plain", "llama", "post", "relu", "norms of heads"],
)
def test_the_fast_path_gives_what_the_blocks_give(parts, batch):
    model, x = fast_decoder(**parts), rand(batch, LENGTH, WIDE)
    result, cache = run_steps(model, x)
    assert cache.fast_blocks.blocks
    assert_close(result, model(x))


@pytest.mark.parametrize(
    "parts",
    [
        {"positions": Alibi(WIDE_HEADS)},
        {"positions": SlidingWindow(2, Rotary(4))},
        {"score": dot},
        {"residual": lambda x, norm, branch, add: add(x, 0.5 * branch(norm(x)))},
        {"feed_forward": lambda: Doubled(WIDE, 31)},
    ],
    ids=["alibi", "window", "score", "residual", "feed_forward"],
)
def test_blocks_that_are_not_standard_are_called(parts):
    model, x = fast_decoder(**parts), rand(3, LENGTH, WIDE)
    result, cache = run_steps(model, x)
    assert not cache.fast_blocks.blocks
    assert_close(result, model(x))


def test_what_replaces_a_linear_map_is_called():
    for name in ("attention.input", "attention.output", "feed_forward.input", "feed_forward.output"):
        model, x = fast_decoder(), rand(3, LENGTH, WIDE)
        before = model.blocks[1].get_submodule(name)
        model.blocks[1].set_submodule(name, Shifted(before.in_features, before.out_features).double().eval())
        assert_close(run_steps(model, x)[0], model(x))


def test_the_fast_path_is_left_when_hooks_or_training_begin_midway():
    model, x, calls = fast_decoder(dropout=0.5), rand(2, LENGTH, WIDE), []
    cache = model.cache(LENGTH)
    with torch.no_grad():
        model(x[:, :1], cache=cache)
        assert cache.fast_blocks.is_usable()
        handle = model.blocks[1].feed_forward.register_forward_hook(lambda *_: calls.append(1))
        result = model(x[:, 1:2], cache=cache)
        handle.remove()
        assert calls == [1]
        assert_close(result, model(x[:, :2])[:, 1:])
        everywhere = nn.modules.module.register_module_forward_hook(lambda *_: calls.append(2))
        model(x[:, 2:3], cache=cache)
        everywhere.remove()
        assert calls.count(2) > 10
        model.blocks[0].dropout.train()
        assert not cache.fast_blocks.is_usable()
        first, second = (run_steps(model, x)[0] for _ in range(2))
        assert not torch.allclose(first, second)


def test_the_fast_path_uses_weights_changed_between_two_runs():
    model, x = fast_decoder(), rand(5, LENGTH, WIDE)
    run_steps(model, x)
    with torch.no_grad():
        model.blocks[0].attention.input.weight.mul_(1.5)
    assert_close(run_steps(model, x)[0], model(x))


def double_by_optimizer(weight, **kind):
    optimizer = torch.optim.SGD([weight], lr=1.0, **kind)
    weight.grad = -weight.detach().clone()
    optimizer.step()


CHANGES = {
    "in place": lambda layer: layer.weight.mul_(2),
    "by data": lambda layer: layer.weight.data.mul_(2),
    "other memory": lambda layer: setattr(layer.weight, "data", 2 * layer.weight.data),
    "another parameter": lambda layer: setattr(layer, "weight", nn.Parameter(2 * layer.weight)),
    "optimizer": lambda layer: double_by_optimizer(layer.weight),
    "fused optimizer": lambda layer: double_by_optimizer(layer.weight, fused=True),
    "bias": lambda layer: layer.bias.mul_(2),
}


@pytest.mark.parametrize("batch", [3, 7])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_the_fast_path_uses_weights_changed_during_a_run(change, batch):
    for name in ("attention.input", "attention.output", "feed_forward.input", "feed_forward.output"):
        model, x = fast_decoder(), rand(batch, 3, WIDE)
        with torch.no_grad():
            fast, slow = (model.cache(LENGTH) for _ in range(2))
            for t in range(3):
                if t == 1:
                    change(model.blocks[1].get_submodule(name))
                result = model(x[:, t : t + 1], cache=fast)
                handle = model.blocks[0].register_forward_hook(lambda *_: None)  # no fast path
                assert_close(result, model(x[:, t : t + 1], cache=slow))
                handle.remove()
        assert fast.fast_blocks.blocks


def test_a_cache_with_padding_gives_what_each_sequence_gives_alone():
    padding = torch.tensor([0, 3, 1, 4, 2])
    for parts in ({}, {"heads": Heads(WIDE_HEADS, kv=2, norm=nn.RMSNorm), "positions": Rotary(4)}):
        model, x = fast_decoder(**parts), rand(5, 7, WIDE)
        x[1, :3], x[2, :1], x[3, :4], x[4, :2] = 1e6, -1e6, 7.0, -7.0
        with torch.no_grad():
            cache = model.cache(7, padding)
            steps = [model(rows, cache=cache) for rows in (x[:, :4], x[:, 4:5], x[:, 5:6], x[:, 6:])]
            assert cache.fast_blocks.blocks
            result = torch.cat(steps, dim=1)
            for row, first in enumerate(padding.tolist()):
                assert_close(result[row, first:], model(x[row : row + 1, first:])[0])
            assert cache.start.tolist() == [7, 4, 6, 3, 5]
            cache.select(torch.tensor([3, 3]))
            assert cache.start.tolist() == [3, 3]


def test_under_gradients_a_cache_raises_and_a_memory_is_checked():
    model, x = fast_decoder(), rand(2, LENGTH, WIDE)
    with pytest.raises(RuntimeError, match="stores no history for gradients"):
        model(x[:, :1], cache=model.cache(LENGTH))
    with torch.no_grad(), pytest.raises(ValueError, match="takes no memory, got one"):
        model(x[:, :1], rand(2, 3, WIDE), cache=model.cache(LENGTH))
    crossing = fast_decoder(cross=MultiHeadAttention(WIDE, WIDE_HEADS))
    with torch.no_grad(), pytest.raises(ValueError, match="needs a memory"):
        crossing(x[:, :1], cache=crossing.cache(LENGTH))
    assert not FastBlocks(nn.ModuleList([nn.Identity()]), 1).is_usable()


def test_a_feed_forward_calls_what_replaces_its_output():
    layer, x, calls = FeedForward(WIDE, 31).double(), rand(3, WIDE), []
    before = layer(x)
    handle = layer.output.register_forward_hook(lambda *_: calls.append(1))
    assert_close(layer(x), before)
    assert calls == [1]
    handle.remove()
    shifted = Shifted(31, WIDE).double()
    shifted.load_state_dict(layer.output.state_dict())
    layer.output = shifted
    assert_close(layer(x), before + 1)


def test_the_fast_path_is_left_when_a_forward_is_replaced():
    model, x = fast_decoder(), rand(2, LENGTH, WIDE)
    cache = model.cache(LENGTH)
    linear = model.blocks[0].attention.input
    forward = linear.forward
    with torch.no_grad():
        first, _ = run_steps(model, x)
        assert_close(first, model(x))
        model(x[:, :1], cache=cache)  # the fast path is prepared before
        cache.blocks[0].own.truncate(0), cache.blocks[1].own.truncate(0)
        linear.forward = lambda x: 2 * forward(x)
        steps = [model(x[:, t : t + 1], cache=cache) for t in range(LENGTH)]
        assert_close(torch.cat(steps, dim=1), model(x))
        assert not torch.allclose(model(x), first)
