"""`sdpa` does what torch's `scaled_dot_product_attention` does, case by case: values, gradients, masks, errors."""

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right, causal_upper_left
from torch.testing import assert_close

import regard
from regard import masks

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
BATCH, HEADS, QUERIES, KEYS = 2, 3, 11, 17
MASKS = {
    "none": None,
    "rows": (QUERIES, KEYS),
    "keys": (BATCH, 1, 1, KEYS),
    "batch": (BATCH, 1, QUERIES, KEYS),
    "heads": (1, HEADS, QUERIES, KEYS),
    "whole": (BATCH, HEADS, QUERIES, KEYS),
}


def rand(*shape, seed=0, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape))).to(dtype)


def tensors(dtype, size=16, queries=QUERIES, keys=KEYS, heads=HEADS):
    made = (
        rand(BATCH, HEADS, queries, size, seed=1),
        rand(BATCH, heads, keys, size, seed=2),
        rand(BATCH, heads, keys, size, seed=3),
    )
    return [x.to(dtype).requires_grad_() for x in made]


def by_math(*args, **kwargs):
    """torch's own definition, without a fused kernel."""
    with sdpa_kernel(SDPBackend.MATH):
        return functional.scaled_dot_product_attention(*args, **kwargs)


def values_and_gradients(attention, inputs, **kwargs):
    mean = attention(*inputs, **kwargs)
    mix = rand(*mean.shape, seed=4).to(mean.dtype)
    return [mean, *torch.autograd.grad((mean * mix).sum(), inputs)]


def assert_as_good_as_torch(inputs, **kwargs):
    """Values and gradients are at most 2 and 3 times as far from float64 as torch's own, or within its rounding."""
    double = [x.detach().double().requires_grad_() for x in inputs]
    mask = kwargs.get("attn_mask")
    exact_kwargs = {**kwargs, "attn_mask": mask.double()} if mask is not None and mask.dtype != torch.bool else kwargs
    exact = [x.detach() for x in values_and_gradients(by_math, double, **exact_kwargs)]
    # Rounding of the largest scores: with one key the true gradient is 0, and torch's matrix may give just that.
    largest = max(1.0, *(float(x.abs().max()) for x in exact)) * max(1.0, kwargs.get("scale") or 0)
    theirs = values_and_gradients(by_math, inputs, **kwargs)
    ours = values_and_gradients(regard.sdpa, inputs, **kwargs)
    for index, (our, their, true) in enumerate(zip(ours, theirs, exact, strict=True)):
        assert our.dtype == their.dtype == inputs[0].dtype
        assert our.shape == their.shape
        error, allowed = ((x.detach().double() - true).abs().max() for x in (our, their))
        assert error <= (3 if index else 2) * max(float(allowed), 4 * torch.finfo(our.dtype).eps * largest)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", MASKS)
@pytest.mark.parametrize("kind", ["bool", "float"])
def test_masks(dtype, shape, kind):
    if MASKS[shape] is None:
        mask = None
    else:
        mask = rand(*MASKS[shape], seed=5)
        mask = mask > -0.7 if kind == "bool" else mask.to(dtype)
    assert_as_good_as_torch(tensors(dtype), attn_mask=mask)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [8, 15, 16, 64, 100])
@pytest.mark.parametrize("is_causal", [False, True])
def test_head_sizes_and_causal(dtype, size, is_causal):
    assert_as_good_as_torch(tensors(dtype, size), is_causal=is_causal)


@pytest.mark.parametrize("lengths", [(1, 1), (1, 17), (17, 1), (5, 7), (7, 5), (64, 514), (65, 65)])
@pytest.mark.parametrize("is_causal", [False, True])
def test_lengths(lengths, is_causal):
    assert_as_good_as_torch(tensors(torch.float32, 8, *lengths), is_causal=is_causal)


@pytest.mark.parametrize("scale", [None, 0.01, 1.0, 3.5])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("masked", [False, True])
def test_scale(scale, dtype, masked):
    mask = rand(QUERIES, KEYS, seed=5) > -0.7 if masked else None
    assert_as_good_as_torch(tensors(dtype), scale=scale, attn_mask=mask)


def test_a_negative_scale_turns_the_order_round():
    query, key, value = tensors(torch.float64)
    assert_close(regard.sdpa(query, key, value, scale=-0.3), by_math(-query, key, value, scale=0.3))


@pytest.mark.parametrize("heads", [(6, 6), (6, 3), (6, 2), (6, 1)])
@pytest.mark.parametrize("shape", [None, (7, 7), (1, 1, 1, 7), (1, 6, 7, 7)])
@pytest.mark.parametrize("batched", [True, False])
def test_groups_of_query_heads(heads, shape, batched):
    query, key, value = (rand(BATCH, n, 7, 8, seed=n) for n in (heads[0], heads[1], heads[1]))
    mask = rand(*shape, seed=5) > -0.7 if shape else None
    mask = mask[0] if shape and len(shape) == 4 and not batched else mask
    inputs = [(x if batched else x[0]).requires_grad_() for x in (query, key, value)]
    options = {"attn_mask": mask, "enable_gqa": True}
    for ours, theirs in zip(
        values_and_gradients(regard.sdpa, inputs, **options),
        values_and_gradients(by_math, inputs, **options),
        strict=True,
    ):
        assert_close(ours, theirs)


def test_keys_and_values_may_have_different_numbers_of_heads_in_groups():
    query, key, value = (rand(BATCH, n, 7, 8, seed=n) for n in (6, 3, 2))
    assert_close(regard.sdpa(query, key, value, enable_gqa=True), by_math(query, key, value, enable_gqa=True))


@pytest.mark.parametrize(
    "shapes",
    [
        [(5, 4), (7, 4), (7, 3)],
        [(3, 5, 4), (3, 7, 4), (3, 7, 6)],
        [(1, 3, 5, 4), (2, 1, 7, 4), (2, 3, 7, 6)],
        [(2, 3, 2, 5, 4), (2, 3, 2, 7, 4), (2, 3, 2, 7, 4)],
    ],
)
def test_other_ranks_and_broadcasting(shapes):
    inputs = [rand(*shape, seed=index).requires_grad_() for index, shape in enumerate(shapes)]
    for ours, theirs in zip(
        values_and_gradients(regard.sdpa, inputs), values_and_gradients(by_math, inputs), strict=True
    ):
        assert_close(ours, theirs)


@pytest.mark.parametrize("lengths", [(0, 5), (5, 0), (0, 0)])
def test_empty(lengths):
    query, key, value = tensors(torch.float32, 8, *lengths)
    ours, theirs = regard.sdpa(query, key, value), by_math(query, key, value)
    assert_close(ours, theirs)


def test_not_contiguous():
    packed = rand(BATCH, QUERIES, 3, HEADS, 16).requires_grad_()  # as nanoGPT's and timm's projections are

    def attention(packed, sdpa):
        query, key, value = packed.permute(2, 0, 3, 1, 4)  # [3, batch, heads, n, size]
        return sdpa(query, key, value, is_causal=True)

    for ours, theirs in zip(
        values_and_gradients(lambda x: attention(x, regard.sdpa), [packed]),
        values_and_gradients(lambda x: attention(x, by_math), [packed]),
        strict=True,
    ):
        assert_close(ours, theirs)
    mask = (rand(KEYS, QUERIES, seed=5) > -0.7).T
    assert_as_good_as_torch(tensors(torch.float32), attn_mask=mask)


@pytest.mark.parametrize("kind", ["bool", "float"])
@pytest.mark.parametrize("shape", ["rows", "batch", "whole"])
def test_a_query_that_sees_nothing_gets_zeros_and_no_nan(kind, shape):
    inputs = tensors(torch.float32)
    mask = rand(*MASKS[shape], seed=5) > -0.7
    mask[..., 3, :] = False
    mask = mask if kind == "bool" else torch.zeros(mask.shape).masked_fill(~mask, -torch.inf)
    mean, *gradients = values_and_gradients(regard.sdpa, inputs, attn_mask=mask)
    assert (mean[..., 3, :] == 0).all()
    assert all(x.isfinite().all() for x in (mean, *gradients))
    assert_close(mean, by_math(*inputs, attn_mask=mask))


@pytest.mark.parametrize("keys", [64, 300])  # a small matrix, and one that is not built
def test_dropout_drops_that_fraction_and_keeps_the_mean(keys):
    torch.manual_seed(0)
    query, key = torch.zeros(4, 8, 100, 8), torch.zeros(4, 8, keys, 8)
    value = torch.ones(4, 8, keys, 8)
    mean = regard.sdpa(query, key, value, dropout_p=0.3)
    again = regard.sdpa(query, key, value, dropout_p=0.3)
    # A row's mean is the number of weights that stay, over keys · 0.7.
    expected = (0.3 * 0.7 / keys) ** 0.5 / 0.7
    assert abs(float(mean.mean()) - 1) < 5 * expected / 3200**0.5
    assert abs(float(mean[..., 0].std()) / expected - 1) < 0.1
    assert not torch.equal(mean, again)
    torch.manual_seed(0)
    assert torch.equal(regard.sdpa(query, key, value, dropout_p=0.3), mean)


def test_arguments_in_torchs_order():
    query, key, value = tensors(torch.float32)
    mask = rand(QUERIES, KEYS, seed=5) > -0.7
    assert_close(regard.sdpa(query, key, value, mask, 0.0, False), by_math(query, key, value, mask, 0.0, False))
    assert_close(regard.sdpa(query, key, value, None, 0.0, True), by_math(query, key, value, None, 0.0, True))


def test_in_torchs_place(monkeypatch):
    query, key, value = tensors(torch.float32)
    expected = by_math(query, key, value, is_causal=True)
    monkeypatch.setattr(functional, "scaled_dot_product_attention", regard.sdpa)
    assert_close(functional.scaled_dot_product_attention(query, key, value, is_causal=True), expected)


@pytest.mark.parametrize("lengths", [(5, 5), (5, 9), (9, 5)])
@pytest.mark.parametrize("variant", [causal_upper_left, causal_lower_right])
@pytest.mark.filterwarnings("ignore:Lower right causal bias will produce NaNs")
def test_causal_masks_of_torch(variant, lengths):
    """A `CausalBias` is a tensor that holds no numbers."""
    inputs, mask = tensors(torch.float64, 8, *lengths), variant(*lengths)
    table = torch.ones(lengths).tril(lengths[1] - lengths[0] if variant is causal_lower_right else 0).bool()
    expected = values_and_gradients(by_math, inputs, attn_mask=table)
    for found in (
        values_and_gradients(regard.sdpa, inputs, attn_mask=mask),
        values_and_gradients(lambda *x: regard.attend(*x, mask=masks.both(mask, masks.window(99))), inputs),
    ):
        for ours, theirs in zip(found, expected, strict=True):
            assert_close(ours, theirs.nan_to_num(0.0))

    class Model(nn.Module):
        def forward(self, *x):
            return functional.scaled_dot_product_attention(*x, attn_mask=mask)

    model = Model()
    if lengths[0] <= lengths[1]:  # torch gives NaN for a query that sees nothing
        with regard.watch(model) as record:
            assert_close(model(*inputs), expected[0])
        assert_close(record[""][0], regard.look(*inputs[:2], mask=table))


def test_errors():
    query, key, value = tensors(torch.float32)
    with pytest.raises(ValueError, match="attn_mask and is_causal exclude each other, got both"):
        regard.sdpa(query, key, value, torch.ones(QUERIES, KEYS).bool(), is_causal=True)
    few = torch.randn(BATCH, 2, KEYS, 16)
    six = torch.randn(BATCH, 6, QUERIES, 16)
    with pytest.raises(ValueError, match=r"one number of heads, got 6, 2 and 2: .* set enable_gqa=True"):
        regard.sdpa(six, few, few)
    with pytest.raises(ValueError, match="the heads of key must divide those of query, got 2 and 3"):
        regard.sdpa(query, few, few, enable_gqa=True)
    with pytest.raises(ValueError, match="enable_gqa needs query, key and value with heads"):
        regard.sdpa(query[0, 0], few, few, enable_gqa=True)
    with pytest.raises(TypeError, match="must have one dtype"):
        regard.sdpa(query, key.half(), value.half())
    with pytest.raises(TypeError, match="query must be a torch tensor, got list"):
        regard.sdpa([1.0], key, value)
    with pytest.raises(ValueError, match=r"mask must broadcast to the scores' shape \[2, 3, 11, 17\], got \[4, 4\]"):
        regard.sdpa(query, key, value, torch.ones(4, 4).bool())
