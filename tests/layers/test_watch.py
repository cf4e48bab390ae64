"""`watch` records the weights of all kinds of attention layers, and changes no outputs."""

import copy
import subprocess
import sys

import pytest
import torch
from helpers.cases import rand
from torch import nn
from torch.testing import assert_close

import regard
from regard import masks, weighing
from regard.layers import (
    Attention,
    Block,
    ConvSelfAttention,
    Decoder,
    Encoder,
    FeedForward,
    Heads,
    MultiHeadAttention,
    Rotary,
    SelfAttention,
)
from regard.layers.attention import Attend

BATCH, LENGTH, MEMORY, SIZE, HEADS = 2, 5, 7, 12, 3


class Model(nn.Module):
    """One of each of our attention layers."""

    def __init__(self):
        super().__init__()
        self.grid = ConvSelfAttention(4, heads=2)
        self.single = SelfAttention(SIZE)
        self.other = Attention(SIZE)
        self.stack = Decoder(
            2,
            lambda: Block(
                MultiHeadAttention(SIZE, HEADS, dropout=0.1, positions=Rotary(4)),
                FeedForward(SIZE),
                cross=MultiHeadAttention(SIZE, HEADS),
                dropout=0.1,
            ),
        )

    def forward(self, grid, x, memory):
        x = self.other(self.single(x), memory)
        return self.stack(x, memory, memory_mask=masks.padding(torch.tensor([3, 7]))), self.grid(grid)


def given():
    return rand(BATCH, 4, 2, 3), rand(BATCH, LENGTH, SIZE), rand(BATCH, MEMORY, SIZE, seed=1)


NAMES = [
    *["grid", "single", "other", "stack.blocks.0.attention", "stack.blocks.0.cross"],
    *["stack.blocks.1.attention", "stack.blocks.1.cross"],
]


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("top", [None, 2])
def test_outputs_do_not_change_and_nothing_stays_in_the_model(top, training):
    model = Model().double().train(training)
    torch.manual_seed(5)
    before = model(*given())
    torch.manual_seed(5)
    with regard.watch(model, top=top) as records:
        during = model(*given())
    assert all(torch.equal(a, b) for a, b in zip(before, during, strict=True))
    assert list(records) == NAMES
    assert all(len(result) == 1 for result in records.values())
    assert not any(module._forward_pre_hooks or "forward" in vars(module) for module in model.modules())
    model(*given())
    assert all(len(result) == 1 for result in records.values())


def test_records_are_the_weights_of_the_layers():
    model, (grid, x, memory) = Model().double().eval(), given()
    with regard.watch(model) as records, regard.watch(model, top=3) as best:
        model(grid, x, memory)
    assert_close(records["grid"][0], model.grid.look(grid))
    assert_close(records["single"][0], model.single.look(x))
    middle = model.other(model.single(x), memory)
    block = model.stack.blocks[0]
    assert_close(records["stack.blocks.0.attention"][0], block.look(middle, mask=masks.causal))
    weight = records["stack.blocks.1.cross"][0]
    assert weight[0, :, :, 3:].abs().max() == 0
    for name in NAMES:
        assert_close(best[name][0].weight, records[name][0].topk(3).values)
        assert not records[name][0].requires_grad


def test_chosen_layers_are_recorded_each_time_they_run():
    model = Model().double().eval()
    with regard.watch(model, layers=["stack.blocks.1.attention", "single"]) as records:
        model(*given())
        model(*given())
    assert list(records) == ["stack.blocks.1.attention", "single"]
    assert [len(result) for result in records.values()] == [2, 2]
    alone = SelfAttention(SIZE)
    with regard.watch(alone) as records:
        alone(torch.randn(3, SIZE))
    assert list(records) == [""]


def test_cached_keys_are_recorded_too():
    model = Decoder(1, lambda: Block(MultiHeadAttention(SIZE, Heads(HEADS, kv=1)), FeedForward(SIZE))).double().eval()
    x, cache = rand(BATCH, LENGTH, SIZE), model.cache(LENGTH)
    with torch.inference_mode(), regard.watch(model) as records:
        for t in range(LENGTH):
            model(x[:, t : t + 1], cache=cache)
    whole = model.look(x)[0]
    assert len(records["blocks.0.attention"]) == LENGTH
    for t, result in enumerate(records["blocks.0.attention"]):
        assert_close(result, whole[:, :, t : t + 1, : t + 1])


def test_records_have_no_graph_and_an_error_cleans_up():
    model = Encoder(1, lambda: Block(MultiHeadAttention(SIZE, HEADS), FeedForward(SIZE))).double()
    with pytest.raises(ValueError, match="x must be"), regard.watch(model):
        model(rand(2, 3))
    theirs = nn.MultiheadAttention(SIZE, HEADS)
    with pytest.raises(AssertionError), regard.watch(theirs):
        theirs(*[torch.randn(2, 3, 4)] * 3)
    assert not any(m._forward_pre_hooks or "forward" in vars(m) for m in (*model.modules(), *theirs.modules()))
    x = rand(BATCH, LENGTH, SIZE).requires_grad_()
    with regard.watch(model) as records:
        model(x).sum().backward()
    assert x.grad is not None
    assert not records["blocks.0.attention"][0].requires_grad


HIDDEN = torch.arange(LENGTH) >= torch.tensor([3, 5])[:, None]
FUTURE = ~torch.ones(LENGTH, LENGTH).tril().bool()
THREE = (rand(BATCH * 2, LENGTH, LENGTH) > 1).logical_and(~torch.eye(LENGTH).bool())
BIAS = rand(LENGTH, LENGTH, dtype=torch.float32)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("options", [{}, {"bias": False}, {"add_bias_kv": True, "add_zero_attn": True}], ids=str)
@pytest.mark.parametrize(
    "call",
    [
        {},
        {"key_padding_mask": HIDDEN},
        {"attn_mask": FUTURE, "key_padding_mask": HIDDEN},
        {"attn_mask": THREE},
        {"attn_mask": BIAS},
        {"attn_mask": FUTURE, "is_causal": True, "need_weights": False},
    ],
    ids=lambda call: "-".join(call) or "plain",
)
def test_torchs_attention_is_recorded_and_its_outputs_do_not_change(call, options, batch_first, training):
    theirs = nn.MultiheadAttention(SIZE, 2, batch_first=batch_first, **options).train(training)
    x = rand(BATCH, LENGTH, SIZE, dtype=torch.float32)
    x = x if batch_first else x.transpose(0, 1)
    with torch.inference_mode(not training):
        before = theirs(x, x, x, **call)[0]
        with regard.watch(theirs) as records, regard.watch(theirs, top=2) as best:
            during = theirs(x, x, x, **call)[0]
        weight = theirs(x, x, x, **{**call, "need_weights": True, "is_causal": False}, average_attn_weights=False)[1]
    assert torch.equal(before, during)
    assert_close(records[""][0], weight)
    assert_close(best[""][0].weight, weight.topk(2).values)


def test_torchs_attention_to_another_input_of_another_size_and_without_a_batch():
    theirs = nn.MultiheadAttention(SIZE, HEADS, kdim=5, vdim=7)
    query, key, value = torch.randn(4, SIZE), torch.randn(6, 5), torch.randn(6, 7)
    hidden = torch.tensor([False] * 5 + [True])
    with regard.watch(theirs) as records, regard.watch(theirs, top=2) as best:
        weight = theirs(query, key, value=value, key_padding_mask=hidden, average_attn_weights=False)[1]
    assert_close(records[""][0], weight)
    assert_close(best[""][0].weight, weight.topk(2).values)


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("call", [{}, {"src_key_padding_mask": HIDDEN}, {"src_mask": FUTURE}], ids=str)
def test_torchs_encoder_layer_on_its_fast_path(call, training, norm_first):
    layer = nn.TransformerEncoderLayer(SIZE, 2, 16, batch_first=True, norm_first=norm_first).train(training)
    x = rand(BATCH, LENGTH, SIZE, dtype=torch.float32)
    with torch.inference_mode(not training):
        torch.manual_seed(1)
        before = layer(x, **call)
        torch.manual_seed(1)
        with regard.watch(layer) as records:
            during = layer(x, **call)
        rows = layer.norm1(x) if norm_first else x
        masking = {"key_padding_mask": call.get("src_key_padding_mask"), "attn_mask": call.get("src_mask")}
        weight = layer.self_attn.eval()(rows, rows, rows, average_attn_weights=False, **masking)[1]
    assert torch.equal(before, during)
    assert_close(records["self_attn"][0], weight)
    assert len(records["self_attn"]) == 1


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_torchs_encoder_with_nested_tensors():
    layer = nn.TransformerEncoderLayer(SIZE, 2, 16, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2).eval()
    x = rand(BATCH, LENGTH, SIZE, dtype=torch.float32)
    with torch.inference_mode():
        before = encoder(x, src_key_padding_mask=HIDDEN)
        with regard.watch(encoder) as records:
            during = encoder(x, src_key_padding_mask=HIDDEN)
        weight = encoder.layers[0].self_attn(x, x, x, key_padding_mask=HIDDEN, average_attn_weights=False)[1]
    assert torch.equal(before, during)
    assert list(records) == ["layers.0.self_attn", "layers.1.self_attn"]
    for sequence, length in enumerate((3, 5)):
        assert_close(records["layers.0.self_attn"][0][sequence, :, :length], weight[sequence, :, :length])


class Own(nn.MultiheadAttention):
    """torch's attention with other arguments, which flips its input."""

    def forward(self, rows, *, hidden=None):
        turned = rows.flip(-1)
        return super().forward(turned, turned, rows, key_padding_mask=hidden, need_weights=False)[0]


class OwnLayer(nn.TransformerEncoderLayer):
    """torch's layer with other arguments."""

    def forward(self, rows, hidden=None):
        return super().forward(rows.flip(-1), src_key_padding_mask=hidden)


@pytest.mark.parametrize("training", [True, False])
def test_subclasses_of_torchs_layers_may_have_other_arguments(training):
    x = rand(BATCH, LENGTH, SIZE, dtype=torch.float32)
    turned = x.flip(-1)
    heads = Own(SIZE, 2, batch_first=True).train(training)
    layer = OwnLayer(SIZE, 2, 16, batch_first=True, dropout=0.0).train(training)
    original = nn.MultiheadAttention.forward, nn.TransformerEncoderLayer.forward
    with torch.inference_mode(not training):
        before = heads(x, hidden=HIDDEN), layer(x, HIDDEN)
        with regard.watch(heads) as records, regard.watch(heads, top=2) as best, regard.watch(layer) as inside:
            during = heads(x, hidden=HIDDEN), layer(x, HIDDEN)
        assert original == (nn.MultiheadAttention.forward, nn.TransformerEncoderLayer.forward)
        for one, attention in ((records[""], heads), (inside["self_attn"], layer.self_attn)):
            weight = nn.MultiheadAttention.forward(
                attention, turned, turned, x, key_padding_mask=HIDDEN, average_attn_weights=False
            )[1]
            assert len(one) == 1
            assert_close(one[0], weight)
    assert_close(best[""][0].weight, records[""][0].topk(2).values)
    assert_close(during, before, rtol=0, atol=0)
    assert not any("forward" in vars(module) for module in (*heads.modules(), *layer.modules()))


def test_attention_that_cannot_be_recorded_warns():
    class Alone(nn.MultiheadAttention):
        def forward(self, query, key, value):
            return value, None

    alone = Alone(SIZE, 2)
    with regard.watch(alone) as records, pytest.warns(UserWarning, match="Alone overrides forward .* not recorded"):
        alone(*[torch.randn(3, SIZE)] * 3)
    assert records == {"": []}


@pytest.mark.parametrize("make", [nn.MultiheadAttention, Own])
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2), (0, 2, 1)])
def test_watches_may_end_in_any_order(make, order):
    theirs = make(SIZE, 2, batch_first=True).eval()
    rows = torch.randn(BATCH, LENGTH, SIZE)
    given = [rows] if make is Own else [rows] * 3
    watches = [regard.watch(theirs, top=top) for top in (None, 1, 2)]
    records = [one.__enter__() for one in watches]
    theirs(*given)
    for number, which in enumerate(order):
        watches[which].__exit__(None, None, None)
        theirs(*given)
        assert len(records[which][""]) == number + 1  # the calls until it ended
    assert sorted(len(one[""]) for one in records) == [1, 2, 3]
    assert "forward" not in vars(theirs)


def test_a_wrapper_around_a_watched_layer_stays():
    theirs = nn.MultiheadAttention(SIZE, 2).eval()
    calls = []
    watching = regard.watch(theirs)
    records = watching.__enter__()
    inner = theirs.forward
    theirs.forward = lambda *args: calls.append(1) or inner(*args)
    watching.__exit__(None, None, None)
    theirs(*[torch.randn(3, SIZE)] * 3)
    assert (calls, records) == ([1], {"": []})


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: regard.watch("model").__enter__(), TypeError, "watch needs a torch module, got str"),
        (lambda: regard.watch(nn.Linear(1, 1)).__enter__(), ValueError, "Linear has no attention layer to watch"),
        (lambda: regard.watch(SelfAttention(2), top=0).__enter__(), ValueError, "top must be a positive .* got 0"),
        (
            lambda: regard.watch(Model(), layers=["grid", "stack"]).__enter__(),
            ValueError,
            "layers must be names of modules .* got 'stack'; nearest names: 'stack.blocks.1.cross', ",
        ),
    ],
)
def test_wrong_arguments_raise(call, error, message):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.slow
def test_importing_regard_does_not_import_the_layers():
    program = "import sys, regard; assert 'regard.layers' not in sys.modules; regard.watch; regard.layers.Rotary"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_layers_may_be_one_pattern():
    model = Model().double().eval()
    with regard.watch(model, layers="stack.*.attention") as records:
        model(*given())
    assert list(records) == ["stack.blocks.0.attention", "stack.blocks.1.attention"]
    assert all(len(entries) == 1 for entries in records.values())


def test_masks_of_another_dtype_empty_batches_and_keywords_work():
    heads = nn.MultiheadAttention(8, 2, batch_first=True, dtype=torch.float64).eval()
    x, mask = torch.randn(3, 5, 8, dtype=torch.float64), nn.Transformer.generate_square_subsequent_mask(5)
    with torch.no_grad(), regard.watch(heads) as records:
        heads(x, x, x, attn_mask=mask, need_weights=False)
        heads(x[:0], x[:0], x[:0])
        heads(x[:0], x[:0], x[:0], attn_mask=mask.double().expand(0, 5, 5))
    assert (records[""][0].triu(1) == 0).all()
    assert records[""][1].shape == records[""][2].shape == (0, 2, 5, 5)

    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.attend = Attend()

        def forward(self, x):
            return self.attend(query=x, key=x, value=x, mask=regard.masks.causal)

    model = Named()
    with regard.watch(model) as records:
        model(torch.randn(2, 5, 8))
    assert (records[""][0].triu(1) == 0).all()


def test_a_copy_made_while_watching_is_not_watched():
    layer, x = SelfAttention(8), torch.randn(2, 5, 8)
    with regard.watch(layer) as records:
        layer(x)
        other = copy.deepcopy(layer)
    other(x)
    assert len(records[""]) == 1


def test_a_block_used_several_times_is_recorded_each_time():
    one = Block(MultiHeadAttention(8, heads=2), FeedForward(8)).eval()
    encoder, x = Encoder(3, lambda: one), torch.randn(2, 5, 8)
    with torch.no_grad():
        result = encoder.look(x)
        assert len(result) == 3
        for look in result:
            assert_close(look, one.look(x))
            x = one(x)


def test_a_sparse_weighing_is_watched_as_it_is():
    layer, x = MultiHeadAttention(8, heads=2, weigh=weighing.sparsemax), torch.randn(2, 30, 8) * 4
    with regard.watch(layer, top=30) as record:
        layer(x)
    (found,) = next(iter(record.values()))
    assert torch.equal(found.index >= 0, found.weight > 0)
    assert (found.index < 0).any()
    assert_close(found.weight.sum(dim=-1), torch.ones(2, 2, 30))
