"""NaN in the input gives NaN in the output, also where torch's kernel loses it, and is looked for only there."""

import math

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional

import regard
from regard import masks
from regard.engines import flash


def sick_inputs(what, queries, keys, dtype):
    generator = torch.Generator().manual_seed(queries * 1009 + keys)
    query, key, value = (
        torch.randn(1, 2, length, 8, dtype=dtype, generator=generator) for length in (queries, keys, keys)
    )
    if what == "query":
        query[0, 1, queries // 2] = math.nan
    elif what == "key":
        key[0, 1, keys // 2, 3] = math.nan
    else:
        query[0, 1], key[0, 1] = (x[0, 1] * torch.finfo(dtype).max ** 0.6 for x in (query, key))
    return query, key, value


def by_definition(query, key, value, is_causal):
    scores = (query * 8**-0.5) @ key.mT
    rows = []
    for row in range(query.shape[2]):
        seen = slice(0, row + 1 if is_causal else key.shape[2])
        visible = scores[:, :, row, seen]
        mean = (visible.softmax(-1).unsqueeze(-2) @ value[:, :, seen]).squeeze(-2)
        rows.append(mean.masked_fill((visible == -math.inf).all(-1, keepdim=True), 0.0))
    return torch.stack(rows, dim=2)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("what", ["query", "key", "overflow"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_nan_is_kept_for_any_number_of_keys(dtype, what, is_causal):
    for keys in (1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 23, 33, 513):
        query, key, value = sick_inputs(what, keys if is_causal else 5, keys, dtype)
        found = regard.attend(query, key, value, mask=masks.causal if is_causal else None)
        expected = by_definition(query, key, value, is_causal)
        assert torch.equal(found.isnan(), expected.isnan()), keys


def test_nan_is_kept_by_a_kernel_that_loses_it(monkeypatch):
    """As that of torch 2.5, which returned 0 for a row of NaN of any length."""

    def forgetful(*args, **kwargs):
        return functional.scaled_dot_product_attention(*args, **kwargs).nan_to_num(nan=0.0)

    monkeypatch.setattr(flash, "torch_attention", forgetful)
    flash._keeps_nan.cache_clear()
    try:
        query, key, value = sick_inputs("query", 5, 40, torch.float32)
        assert regard.attend(query, key, value).isnan().any(-1).nonzero().tolist() == [[0, 1, 2]]
    finally:
        flash._keeps_nan.cache_clear()


def test_rows_of_zeros_are_looked_at_only_where_nan_can_be_lost(monkeypatch):
    asked = []
    monkeypatch.setattr(flash, "bounded", lambda *given: asked.append(given) or True)
    few, many = (torch.zeros(1, 2, keys, 8) for keys in (3, 16))
    assert flash._keeps_nan(torch.float32), "this version of torch loses NaN: the look at each result costs some µs"
    regard.attend(many, many, many)
    regard.attend(many, many, many, mask=masks.causal)
    assert not asked
    regard.attend(many, few, few)
    regard.attend(many, many, many, mask=torch.ones(1, 1, 1, 16, dtype=torch.bool))
    assert len(asked) == 2


def test_the_short_way_takes_any_scale():
    query, key, value = sick_inputs("query", 5, 17, torch.float64)
    query = query.nan_to_num(nan=0.5)
    for scale in (None, 0.3, 0.0, -0.7):
        found = regard.attend(query, key, value, scale=scale)
        expected = regard.attend(query, key, value, scale=scale, engine="dense")
        torch.testing.assert_close(found, expected)


def test_tensors_without_numbers():
    """Stand-ins of FakeTensorMode and meta tensors have shapes, and nothing to look at."""
    for keys in (3, 40):
        x = torch.randn(1, 2, keys, 8)
        with FakeTensorMode() as mode:
            assert regard.attend(*[mode.from_tensor(x)] * 3).shape == x.shape
        assert regard.attend(*[x.to("meta")] * 3, mask=masks.causal).is_meta
