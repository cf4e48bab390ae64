"""`watch` hears every call of torch's `scaled_dot_product_attention` and of `regard.attend`, and changes no outputs."""

import math
import sys
import weakref

import pytest
import torch
from helpers.cases import rand
from torch import nn
from torch.nn import functional
from torch.overrides import _get_current_function_mode_stack
from torch.testing import assert_close

import regard
from regard import masks, weighing
from regard.attend import listeners
from regard.layers import Attend, SelfAttention

BATCH, HEADS, QUERIES, KEYS, SIZE = 2, 6, 5, 7, 8


class Call(nn.Module):
    """Calls a function with what it is given."""

    def __init__(self, function=functional.scaled_dot_product_attention):
        super().__init__()
        self.function = function

    def forward(self, *args, **kwargs):
        return self.function(*args, **kwargs)


def definition(query, key, attn_mask=None, is_causal=False, scale=None, **_):
    """softmax(scale · QKᵀ + bias) in float64; a query that sees nothing gets zeros."""
    query, key = query.double(), key.double()
    if key.ndim > 2 and key.shape[-3] not in (1, query.shape[-3]):
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], dim=-3)
    scores = query @ key.mT * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    if is_causal:
        attn_mask = torch.ones(scores.shape[-2:]).tril().bool()  # torch's corner: top left
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attn_mask, -math.inf)
    elif attn_mask is not None:
        scores = scores + attn_mask
    return scores.softmax(-1).nan_to_num(0.0)


VISIBLE = rand(BATCH, 1, QUERIES, KEYS) > -0.5
VISIBLE[0, 0, 2] = False  # sees nothing
BIAS = rand(HEADS, QUERIES, KEYS, dtype=torch.float32)
CASES = {
    "plain": ((BATCH, HEADS, QUERIES), (BATCH, HEADS, KEYS), {}),
    "boolean": ((BATCH, HEADS, QUERIES), (BATCH, HEADS, KEYS), {"attn_mask": VISIBLE}),
    "bias": ((BATCH, HEADS, QUERIES), (BATCH, HEADS, KEYS), {"attn_mask": BIAS}),
    "scale": ((BATCH, HEADS, QUERIES), (BATCH, HEADS, KEYS), {"scale": 0.9}),
    "causal, more keys": ((BATCH, HEADS, QUERIES), (BATCH, HEADS, KEYS), {"is_causal": True}),
    "causal, fewer keys": ((BATCH, HEADS, KEYS), (BATCH, HEADS, QUERIES), {"is_causal": True}),
    "groups": ((BATCH, HEADS, QUERIES), (BATCH, 2, KEYS), {"enable_gqa": True, "attn_mask": VISIBLE}),
    "one head of keys": ((BATCH, HEADS, QUERIES), (BATCH, 1, KEYS), {"enable_gqa": True, "scale": 0.1}),
    "groups without a batch": ((HEADS, QUERIES), (2, KEYS), {"enable_gqa": True}),
    "no heads": ((BATCH, QUERIES), (BATCH, KEYS), {"dropout_p": 0.4}),
    "one query": ((BATCH, HEADS, 1), (BATCH, HEADS, KEYS), {}),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("function", [functional.scaled_dot_product_attention, regard.sdpa])
def test_each_argument_is_heard(name, function):
    query_shape, key_shape, given = CASES[name]
    query = rand(*query_shape, SIZE, dtype=torch.float32)
    key, value = (rand(*key_shape, SIZE, seed=seed, dtype=torch.float32) for seed in (1, 2))
    model = Call(function)
    torch.manual_seed(3)
    before = model(query, key, value, **given)
    torch.manual_seed(3)
    with regard.watch(model) as record, regard.watch(model, top=3) as best:
        during = model(query, key, value, **given)
    expected = definition(query, key, **given).float()
    assert torch.equal(before, during)
    [weights] = record[""]
    assert_close(weights.view_as(expected), expected, rtol=1e-5, atol=1e-7)
    assert_close(best[""][0].weight.flatten(), expected.topk(3).values.flatten(), rtol=1e-5, atol=1e-7)


class Mixed(nn.Module):
    """Own attention, one of ours, torch's fused layer, and `regard.attend`."""

    def __init__(self):
        super().__init__()
        self.first, self.ours, self.attend_self = Own(), SelfAttention(SIZE), Call(regard.attend)
        self.torchs = nn.TransformerEncoder(nn.TransformerEncoderLayer(SIZE, 2, 16, batch_first=True), 1)

    def forward(self, x):
        x = self.torchs(self.ours(self.first(x)))
        return self.attend_self(x, x, x, mask=masks.causal)


class Own(nn.Module):
    """Attends twice, the second time to half of the rows."""

    def __init__(self):
        super().__init__()
        self.project = nn.Linear(SIZE, SIZE)

    def forward(self, x):
        x = self.mix(x, self.project(x))
        return self.mix(x, x[:, ::2])

    def mix(self, query, key):
        return functional.scaled_dot_product_attention(query=query, key=key, value=key)


def test_kinds_of_attention_are_recorded_side_by_side_and_the_fused_layer_stays_fused():
    model, x = Mixed().eval(), rand(BATCH, QUERIES, SIZE, dtype=torch.float32)
    with torch.inference_mode():
        before = model(x)
        with regard.watch(model) as record:
            during = model(x)
            model(x[:, :3])
        own = model.first.project(x)
    assert torch.equal(before, during)
    assert {name: [tuple(entry.shape) for entry in entries] for name, entries in record.items()} == {
        "ours": [(BATCH, 5, 5), (BATCH, 3, 3)],
        "torchs.layers.0.self_attn": [(BATCH, 2, 5, 5), (BATCH, 2, 3, 3)],
        "first": [(BATCH, 5, 5), (BATCH, 3, 3)],
        "first#2": [(BATCH, 5, 3), (BATCH, 3, 2)],
        "attend_self": [(BATCH, 5, 5), (BATCH, 3, 3)],
    }
    assert_close(record["first"][0], definition(x, own).float())
    assert (record["attend_self"][0].triu(1) == 0).all()
    assert not any(module._forward_pre_hooks or "forward" in vars(module) for module in model.modules())
    assert not listeners
    assert not _get_current_function_mode_stack()


def test_layers_selects_by_name_and_pattern():
    model, x = Mixed().eval(), rand(BATCH, QUERIES, SIZE, dtype=torch.float32)
    for layers, expected in (
        ("first", ["first", "first#2"]),
        (["first#2", "ours"], ["ours", "first#2"]),
        ("*s*", ["ours", "torchs.layers.0.self_attn", "first", "first#2", "attend_self"]),
    ):
        with regard.watch(model, layers=layers) as record:
            model(x)
        assert list(record) == expected


def test_only_the_watched_model_is_heard_and_a_part_can_be_watched():
    model, other, x = Mixed().eval(), Own(), rand(BATCH, QUERIES, SIZE, dtype=torch.float32)
    with regard.watch(model.first) as record:
        model(x)
        other(x)
        functional.scaled_dot_product_attention(x, x, x)
        regard.attend(x, x, x)
    assert {name: len(entries) for name, entries in record.items()} == {"": 1, "#2": 1}


def test_reduce_keeps_only_what_it_returns():
    model, x = Own(), rand(BATCH, QUERIES, SIZE, dtype=torch.float32)
    with regard.watch(model, top=2, reduce=lambda name, found: (name, found.weight.shape)) as record:
        model(x)
    assert record == {"": [("", (BATCH, 5, 2))], "#2": [("#2", (BATCH, 5, 2))]}
    with pytest.raises(TypeError, match="this needs weights, but watch was told to keep what reduce returned for ''"):
        record.to_frame()


def test_top_may_exceed_the_number_of_keys():
    model, x = Own(), rand(BATCH, QUERIES, SIZE, dtype=torch.float32)
    with regard.watch(model, layers="#2", top=9) as record:
        model(x)
    assert (record["#2"][0].index[..., 3:] == -1).all()
    assert_close(record["#2"][0].weight.sum(-1), torch.ones(BATCH, QUERIES))


@pytest.mark.parametrize("mode", ["train", "no_grad", "inference", "autocast"])
def test_modes_of_torch(mode):
    query, key, value = (rand(BATCH, HEADS, KEYS, SIZE, seed=seed, dtype=torch.float32) for seed in range(3))
    query.requires_grad_(mode == "train")
    model = Call()
    context = {
        "train": torch.enable_grad,
        "no_grad": torch.no_grad,
        "inference": torch.inference_mode,
        "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    }[mode]
    with context():
        before = model(query, key, value)
        with regard.watch(model) as record:
            during = model(query, key, value)
    assert torch.equal(before, during)
    assert during.requires_grad == (mode == "train")
    assert not record[""][0].requires_grad
    if mode == "autocast":
        query, key = query.bfloat16(), key.bfloat16()
    assert record[""][0].dtype == query.dtype == during.dtype
    tolerance = {"rtol": 1e-2, "atol": 1e-3} if mode == "autocast" else {}
    assert_close(record[""][0].double(), definition(query.detach(), key), **tolerance)


def test_tensors_of_a_run_are_not_kept_alive():
    alive = []

    class Remembers(Own):
        def mix(self, query, key):
            alive.extend(map(weakref.ref, (query, key)))
            return super().mix(query, key)

    model = nn.Sequential(Remembers(), Remembers())
    with regard.watch(model, top=1):
        model(rand(BATCH, QUERIES, SIZE, dtype=torch.float32))
        assert not any(reference() is not None for reference in alive)


def test_attend_with_another_weighing_and_an_attend_under_another_name():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.mixer = Attend()

        def forward(self, x):
            return regard.attend(self.mixer(x, x, x), x, x, weigh=weighing.hard)

    x = rand(BATCH, QUERIES, SIZE)
    model = Model()
    with regard.watch(model) as record, regard.watch(model, top=2) as best:
        model(x)
    assert list(record) == ["mixer", ""]
    assert_close(record["mixer"][0], regard.look(x, x))
    assert set(record[""][0].unique().tolist()) == {0.0, 1.0}
    assert_close(best[""][0].weight, record[""][0].topk(2).values)


@pytest.mark.parametrize("separate", [False, True])
def test_torchs_function_for_several_heads_is_heard(separate):
    theirs = nn.MultiheadAttention(SIZE, 2, kdim=3 if separate else None, vdim=3 if separate else None)
    query, key = torch.randn(QUERIES, BATCH, SIZE), torch.randn(KEYS, BATCH, 3 if separate else SIZE)
    weights = {"q_proj_weight": theirs.q_proj_weight, "k_proj_weight": theirs.k_proj_weight}
    given = {
        **(weights | {"v_proj_weight": theirs.v_proj_weight} if separate else {}),
        "use_separate_proj_weight": separate,
        "key_padding_mask": torch.arange(KEYS) >= torch.tensor([[3], [KEYS]]),
        "average_attn_weights": False,
    }
    parameters = (SIZE, 2, theirs.in_proj_weight, theirs.in_proj_bias, None, None, False, 0.0)
    model = Call(functional.multi_head_attention_forward)
    with regard.watch(model) as record:
        _, expected = model(query, key, key, *parameters, theirs.out_proj.weight, theirs.out_proj.bias, **given)
    assert_close(record[""][0], expected)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_watches_may_end_in_any_order(order):
    model, x = Own(), rand(BATCH, QUERIES, SIZE, dtype=torch.float32)
    watches = [regard.watch(model), regard.watch(model)]
    records = [one.__enter__() for one in watches]
    for which in order:
        model(x)
        watches[which].__exit__(None, None, None)
    model(x)
    assert [len(records[which][""]) for which in order] == [1, 2]
    assert not _get_current_function_mode_stack()


def test_another_mode_stays_as_it_was():
    model, x = Mixed().eval(), rand(BATCH, QUERIES, SIZE, dtype=torch.float32)
    with torch.no_grad(), torch.device("cpu"):
        modes, before = _get_current_function_mode_stack(), model(x)
        with regard.watch(model) as record:
            assert torch.equal(model(x), before)
        assert _get_current_function_mode_stack() == modes
    assert all(len(entries) == 1 for entries in record.values())


class ByHand(nn.Module):
    """softmax(QKᵀ) without a function that could be heard."""

    def forward(self, x):
        return (x @ x.mT).softmax(-1) @ x


def test_a_model_that_cannot_be_heard_raises():
    x = rand(BATCH, QUERIES, SIZE)
    message = r"watch heard no attention in ByHand: it must run inside .* softmax\(QKᵀ\) by hand cannot be heard"
    with pytest.raises(ValueError, match=message), regard.watch(ByHand()) as record:
        ByHand()(x)
    assert record == {}
    with pytest.raises(ZeroDivisionError), regard.watch(ByHand()):  # an error in the block comes first
        _ = 1 / 0


def test_wrong_patterns_raise():
    model, x = nn.Sequential(Own(), Own()), torch.randn(BATCH, QUERIES, SIZE)
    for layers in (2, [2], ["0", 2]):
        with pytest.raises(TypeError, match=r"names of modules or patterns of names, such as '\*\.2\.\*', got 2"):
            regard.watch(model, layers=layers).__enter__()
    with pytest.raises(ValueError, match=r"names of modules that may attend, .* got '2'; nearest names: "):
        regard.watch(model, layers="2").__enter__()
    outer = nn.Module()
    outer.part = Call(model)
    message = "no attention ran in a module that matches 'part'; it ran in 'part.function.1'"
    with pytest.raises(ValueError, match=message), regard.watch(outer, layers="part"):
        outer.part(x)
    with pytest.raises(TypeError, match=r"reduce must be callable, .* got int"):
        regard.watch(model, reduce=3).__enter__()


def test_a_matrix_that_is_too_large_raises_and_names_the_module(monkeypatch):
    monkeypatch.setattr(sys.modules["regard.attend"], "_LOOK_LIMIT", 100)
    model, x = nn.Sequential(Own()), rand(BATCH, QUERIES, SIZE, dtype=torch.float32)
    with pytest.raises(ValueError, match=r"above the limit of 2 GiB: .* top=8") as caught, regard.watch(model):
        model(x)
    assert caught.value.__notes__ == ["(regard.watch, in the module '0')"]
    assert not listeners
    assert not _get_current_function_mode_stack()
    with regard.watch(model, top=3) as record:
        model(x)
    assert len(record["0"]) == 1


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*lru_cache")
def test_a_compiled_model_runs_uncompiled_and_warns():
    x = rand(BATCH, QUERIES, SIZE, dtype=torch.float32)
    own = Own()
    own.compile(backend="eager")
    for model, prefix in ((torch.compile(SelfAttention(SIZE), backend="eager"), "_orig_mod"), (own, "")):
        before = model(x)
        watching = regard.watch(model)
        with pytest.warns(UserWarning, match="compiled by torch.compile: it runs uncompiled"):
            record = watching.__enter__()
        assert_close(model(x), before)
        watching.__exit__(None, None, None)
        assert len(record[prefix]) == 1


@pytest.mark.slow
def test_an_exported_model_is_heard():
    x = rand(BATCH, QUERIES, SIZE, dtype=torch.float32)
    model = torch.export.export(Own(), (x,)).module()
    with regard.watch(model) as record:
        model(x)
    assert [len(entries) for entries in record.values()] == [1, 1]
