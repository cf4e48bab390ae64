"""One query a sequence against what is kept, on torch's threads, beside the plain definition."""

import ctypes
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

import regard
from regard.engines import one_query, openmp

pytestmark = pytest.mark.skipif(not openmp.team(), reason="torch has no GNU OpenMP here")


def case(rows=3, heads=6, kv_heads=2, size=32, room=41, seed=0):
    torch.manual_seed(seed)
    return torch.randn(rows, heads, size), 3 * torch.randn(rows, 2, kv_heads, room, size)


def plainly(query, store, length):
    """Each head by itself."""
    heads, kv_heads = query.shape[1], store.shape[2]
    key, value = (part.repeat_interleave(heads // kv_heads, dim=1)[:, :, :length] for part in store.double().unbind(1))
    return regard.attend(query.double().unsqueeze(2), key, value, engine="dense").squeeze(2).float()


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 17, 40, 41])
@pytest.mark.parametrize("size", [32, 64, 96])
def test_it_is_attention_to_what_is_kept(length, size):
    query, store = case(size=size)
    assert_close(one_query.attend_one(query, store, length), plainly(query, store, length))


@pytest.mark.parametrize(("rows", "heads", "kv_heads"), [(1, 1, 1), (5, 7, 7), (2, 8, 1), (13, 4, 2)])
def test_heads_share_keys_by_turns(rows, heads, kv_heads):
    query, store = case(rows, heads, kv_heads)
    assert_close(one_query.attend_one(query, store, 29), plainly(query, store, 29))


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_the_answer_does_not_depend_on_the_threads(threads):
    query, store = case(rows=11)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        found = one_query.attend_one(query, store, 40)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found, one_query.attend_one(query, store, 40))


def test_queries_may_be_parts_of_wider_rows_or_lie_otherwise():
    query, store = case()
    wide = torch.cat([query, torch.randn(3, 5, 32)], dim=1)
    right = one_query.attend_one(query, store, 19)
    assert torch.equal(one_query.attend_one(wide[:, :6], store, 19), right)
    assert torch.equal(one_query.attend_one(query.mT.contiguous().mT, store, 19), right)


def test_large_scores_do_not_overflow_and_what_is_not_a_number_stays_so():
    query, store = case()
    assert_close(one_query.attend_one(100 * query, store, 41), plainly(100 * query, store, 41))
    store[1, 0, 0, 3, 2] = torch.nan  # a key of the first three heads of a row
    found = one_query.attend_one(query, store, 41)
    assert found[1, :3].isnan().all()
    assert not found[1, 3:].isnan().any()
    assert not found[[0, 2]].isnan().any()


def test_it_is_for_much_in_float32_in_heads_of_whole_vectors(monkeypatch):
    query, store = case(size=64)
    assert not one_query.fits(query, store)
    monkeypatch.setattr(one_query, "WORTH", store.numel())
    assert one_query.fits(query, store)
    assert not one_query.fits(query.double(), store.double())
    assert not one_query.fits(query[..., :48], store[..., :48])
    assert not one_query.fits(query.to("meta"), store.to("meta"))
    monkeypatch.setattr(openmp, "gnu", lambda: None)
    assert not one_query.fits(query, store)


def test_a_library_that_torch_has_not_loaded_is_not_used(monkeypatch, tmp_path):
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libgomp.so.1").write_bytes(b"no library")
    monkeypatch.setattr(torch, "__file__", str(tmp_path / "__init__.py"))
    assert openmp.gnu.__wrapped__() is None


def test_all_threads_are_asked():
    met = []
    back = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda address: met.append(address))
    numbers = torch.arange(3).numpy()
    openmp.run(ctypes.cast(back, ctypes.c_void_p).value, numbers)
    assert met == [numbers.ctypes.data] * torch.get_num_threads()


def test_the_library_lies_beside_torch():
    assert list(Path(torch.__file__).parent.glob("lib/libgomp*"))
