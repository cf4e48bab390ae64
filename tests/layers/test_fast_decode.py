"""Single rows behind a cache, the quick way: the same as the blocks themselves, whatever those are made of."""

import pytest
import torch
from helpers.cases import rand
from torch import nn
from torch.testing import assert_close

from regard.engines import one_query, openmp
from regard.layers import Alibi, Block, Decoder, FeedForward, MultiHeadAttention, Rotary, post_norm, swiglu
from regard.layers.fast_decode import Steps
from regard.scores import dot

SIZE, HEADS, LENGTH = 24, 6, 5


class Shifted(nn.Linear):
    """A linear map that does more, as an adapter does."""

    def forward(self, x):
        return super().forward(x) + 1.0


class Doubled(FeedForward):
    def forward(self, x):
        return 2 * super().forward(x)


def decoder(**parts):
    attention = {name: parts.pop(name) for name in ("kv_heads", "positions", "score", "bias") if name in parts}
    made = parts.pop("feed_forward", lambda: FeedForward(SIZE, 31, activation=swiglu))
    torch.manual_seed(1)
    blocks = Decoder(2, lambda: Block(MultiHeadAttention(SIZE, HEADS, **attention), made(), **parts))
    for parameter in blocks.parameters():
        nn.init.normal_(parameter, std=0.3)
    return blocks.double().eval()


def stepped(model, x, **more):
    cache = model.cache(LENGTH)
    with torch.no_grad():
        return torch.cat([model(row, cache=cache, **more) for row in x.split(1, dim=1)], dim=1), cache


@pytest.mark.parametrize("batch", [1, 3, 7])
@pytest.mark.parametrize(
    "parts",
    [
        {},
        {"bias": False, "norm": nn.RMSNorm, "kv_heads": 2, "positions": Rotary(4)},
        {"residual": post_norm, "norm": lambda size: nn.LayerNorm(size, eps=0.1), "kv_heads": 1},
        {"feed_forward": lambda: FeedForward(SIZE, activation=torch.relu, bias=False)},
    ],
    ids=["plain", "llama", "post", "relu"],
)
def test_usual_blocks_are_taken_apart_and_give_the_same(parts, batch):
    model, x = decoder(**parts), rand(batch, LENGTH, SIZE)
    found, cache = stepped(model, x)
    assert cache.steps.blocks
    assert_close(found, model(x))


@pytest.mark.parametrize(
    "parts",
    [
        {"positions": Alibi(HEADS)},
        {"score": dot},
        {"residual": lambda x, norm, branch, add: add(x, 0.5 * branch(norm(x)))},
        {"feed_forward": lambda: Doubled(SIZE, 31)},
    ],
    ids=["alibi", "score", "residual", "feed_forward"],
)
def test_other_blocks_are_called(parts):
    model, x = decoder(**parts), rand(3, LENGTH, SIZE)
    found, cache = stepped(model, x)
    assert not cache.steps.blocks
    assert_close(found, model(x))


def test_what_stands_in_the_place_of_a_linear_map_is_called():
    for name in ("attention.input", "attention.output", "feed_forward.input", "feed_forward.output"):
        model, x = decoder(), rand(3, LENGTH, SIZE)
        before = model.blocks[1].get_submodule(name)
        model.blocks[1].set_submodule(name, Shifted(before.in_features, before.out_features).double().eval())
        assert_close(stepped(model, x)[0], model(x))


def test_training_and_listeners_are_noticed_midway():
    model, x, heard = decoder(dropout=0.5), rand(2, LENGTH, SIZE), []
    cache = model.cache(LENGTH)
    with torch.no_grad():
        model(x[:, :1], cache=cache)
        assert cache.steps.can()
        handle = model.blocks[1].feed_forward.register_forward_hook(lambda *_: heard.append(1))
        found = model(x[:, 1:2], cache=cache)
        handle.remove()
        assert heard == [1]
        assert_close(found, model(x[:, :2])[:, 1:])
        everywhere = nn.modules.module.register_module_forward_hook(lambda *_: heard.append(2))
        model(x[:, 2:3], cache=cache)
        everywhere.remove()
        assert heard.count(2) > 10
        model.blocks[0].dropout.train()
        assert not cache.steps.can()
        first, second = (stepped(model, x)[0] for _ in range(2))
        assert not torch.allclose(first, second)


def test_weights_changed_between_two_runs_are_seen():
    model, x = decoder(), rand(5, LENGTH, SIZE)
    stepped(model, x)
    with torch.no_grad():
        model.blocks[0].attention.input.weight.mul_(1.5)
    assert_close(stepped(model, x)[0], model(x))


def test_under_gradients_a_cache_is_refused_and_a_memory_is_checked():
    model, x = decoder(), rand(2, LENGTH, SIZE)
    with pytest.raises(RuntimeError, match="stores no history for gradients"):
        model(x[:, :1], cache=model.cache(LENGTH))
    with torch.no_grad(), pytest.raises(ValueError, match="cannot look at a memory"):
        model(x[:, :1], rand(2, 3, SIZE), cache=model.cache(LENGTH))
    crossing = decoder(cross=MultiHeadAttention(SIZE, HEADS))
    with torch.no_grad(), pytest.raises(ValueError, match="needs a memory"):
        crossing(x[:, :1], cache=crossing.cache(LENGTH))
    assert not Steps([nn.Identity()], 1).can()


def test_a_feed_forward_calls_what_stands_in_its_second_place():
    layer, x, heard = FeedForward(SIZE, 31).double(), rand(3, SIZE), []
    before = layer(x)
    handle = layer.output.register_forward_hook(lambda *_: heard.append(1))
    assert_close(layer(x), before)
    assert heard == [1]
    handle.remove()
    shifted = Shifted(31, SIZE).double()
    shifted.load_state_dict(layer.output.state_dict())
    layer.output = shifted
    assert_close(layer(x), before + 1)


@pytest.mark.skipif(not openmp.team(), reason="torch has no GNU OpenMP here")
@pytest.mark.parametrize("attention", [{}, {"kv_heads": 2, "positions": Rotary(32)}], ids=["plain", "llama"])
def test_with_much_to_read_the_loop_gives_the_same(monkeypatch, attention):
    monkeypatch.setattr(one_query, "WORTH", 0)
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", lambda *_: pytest.fail("torch was asked"))
    torch.manual_seed(1)
    model = Decoder(2, lambda: Block(MultiHeadAttention(192, 6, **attention), FeedForward(192))).eval()
    x = torch.randn(5, LENGTH, 192)
    found, _ = stepped(model, x)
    monkeypatch.undo()
    assert_close(found, model(x), rtol=1e-4, atol=1e-5)


def test_a_forward_that_was_replaced_is_called_in_single_rows_too():
    model, x = decoder(), rand(2, LENGTH, SIZE)
    cache = model.cache(LENGTH)
    linear = model.blocks[0].attention.input
    forward = linear.forward
    with torch.no_grad():
        first, _ = stepped(model, x)
        assert_close(first, model(x))
        model(x[:, :1], cache=cache)  # the blocks are taken apart before
        cache.blocks[0].own.truncate(0), cache.blocks[1].own.truncate(0)
        linear.forward = lambda x: 2 * forward(x)
        steps = [model(x[:, t : t + 1], cache=cache) for t in range(LENGTH)]
        assert_close(torch.cat(steps, dim=1), model(x))
        assert not torch.allclose(model(x), first)
