"""merge: a fold over parts of the keys gives the whole, in value and in gradient."""

import functools

import torch
from helpers.cases import QUERIES, gradients, inputs
from torch.testing import assert_close

import regard
from regard import masks


def test_merge_is_associative_and_has_a_unit():
    query, key, value = (x.detach() for x in inputs())
    hidden = masks.both(masks.causal, masks.padding(torch.tensor([4, 0])))
    a, b, c = (
        regard.attend_parts(query, key[..., s, :], value[..., s, :], mask=lambda q, k, s=s: hidden(q, k + s.start))
        for s in (slice(0, 3), slice(3, 4), slice(4, 7))
    )
    assert_close(regard.merge(regard.merge(a, b), c), regard.merge(a, regard.merge(b, c)))
    assert_close(regard.merge(regard.merge(a, b), c), regard.attend_parts(query, key, value, mask=hidden))
    assert_close(regard.merge(a, regard.NOTHING), a)
    assert_close(regard.merge(regard.NOTHING, a), a)
    assert_close(regard.merge(b, a), regard.merge(a, b))


def test_merge_has_the_gradients_of_the_whole():
    tensors = inputs()
    query, key, value = tensors
    nobody = torch.zeros(QUERIES, 1, dtype=torch.bool)
    parts = [
        regard.attend_parts(query, key[..., :3, :], value[..., :3, :]),
        regard.attend_parts(query, key[..., :2, :], value[..., :2, :], mask=nobody),
        regard.attend_parts(query, key[..., 3:, :], value[..., 3:, :]),
    ]
    merged = functools.reduce(regard.merge, parts, regard.NOTHING)
    assert_close(gradients(merged, tensors), gradients(regard.attend_parts(*tensors), tensors))
    empty = regard.merge(parts[1], parts[1])
    assert all(torch.equal(g, torch.zeros_like(g)) for g in gradients(empty, tensors))
