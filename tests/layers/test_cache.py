"""Steps with cached keys and values equal the full pass."""

import pytest
import torch
from helpers.cases import rand
from torch import nn
from torch.testing import assert_close

from regard import masks
from regard.layers import (
    Alibi,
    Block,
    Cache,
    Decoder,
    FeedForward,
    Heads,
    KeyValues,
    MultiHeadAttention,
    Rotary,
    swiglu,
)

SIZE, HEADS, LENGTH, MEMORY = 12, 6, 7, 5
POSITIONS = {
    "none": lambda: None,
    "rotary": lambda: Rotary(2),
    "interleaved": lambda: Rotary(2, interleaved=True),
    "alibi": lambda: Alibi(HEADS),
}


def decoder(positions=None, kv_heads=HEADS, cross=False):
    def block():
        return Block(
            MultiHeadAttention(SIZE, Heads(HEADS, kv=kv_heads), positions=positions),
            FeedForward(SIZE, 17, activation=swiglu),
            cross=MultiHeadAttention(SIZE, HEADS) if cross else None,
        )

    return Decoder(2, block, norm=nn.LayerNorm(SIZE)).double().eval()


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("kv_heads", [6, 2, 1])
@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("steps", [[1] * 7, [4, 1, 1, 1], [3, 4], [7], [2, 3, 2]], ids=str)
def test_steps_with_a_cache_equal_the_full_pass(steps, positions, kv_heads, batch):
    model, x = decoder(POSITIONS[positions](), kv_heads), rand(batch, LENGTH, SIZE)
    cache = model.cache(max_length=9)
    with torch.inference_mode():
        parts = [model(rows, cache=cache) for rows in x.split(steps, dim=1)]
        assert cache.length == LENGTH
    assert_close(torch.cat(parts, dim=1), model(x))


def test_the_memory_is_projected_once():
    model, x, memory = decoder(cross=True), rand(3, LENGTH, SIZE), rand(3, MEMORY, SIZE, seed=2)
    lengths = torch.tensor([5, 2, 3])
    whole = model(x, memory, memory_mask=masks.padding(lengths))
    cache = model.cache(LENGTH)
    with torch.no_grad():
        parts = [model(rows, memory, memory_mask=masks.padding(lengths), cache=cache) for rows in x.split(1, dim=1)]
        assert_close(torch.cat(parts, dim=1), whole)
        assert [block.memory.length for block in cache.blocks] == [MEMORY, MEMORY]
        cache = model.cache(LENGTH)
        model(x[:, :1], memory, cache=cache)
        # A later memory is not read: the keys and values of the first are cached.
        again = model(x[:, 1:], torch.full_like(memory, torch.nan), cache=cache)
    assert_close(again, model(x, memory)[:, 1:])


def test_masks_count_positions_from_the_first_cached_row():
    model, x = decoder(), rand(2, LENGTH, SIZE)
    mask = masks.both(masks.window(2), masks.padding(torch.tensor([7, 3])))
    cache = model.cache(LENGTH)
    with torch.no_grad():
        parts = [model(rows, mask=mask, cache=cache) for rows in x.split([2, 1, 3, 1], dim=1)]
    assert_close(torch.cat(parts, dim=1), model(x, mask=mask))


@pytest.mark.parametrize("cross", [False, True])
@pytest.mark.parametrize("rows", [[2, 0, 1], [1, 1, 0], [2], [0, 0, 1, 1, 2, 2]], ids=str)
def test_select_reorders_the_sequences(rows, cross):
    model, x, memory = decoder(cross=cross), rand(3, LENGTH, SIZE), rand(3, MEMORY, SIZE) if cross else None
    rows = torch.tensor(rows)
    cache = model.cache(LENGTH)
    chosen = None if memory is None else memory[rows]
    with torch.inference_mode():
        model(x[:, :4], memory, cache=cache)
        cache.select(rows)
        last = rand(len(rows), 3, SIZE, seed=6)
        result = model(last, chosen, cache=cache)
    whole = torch.cat([x[rows, :4], last], dim=1)
    assert_close(result, model(whole, chosen)[:, 4:])


def test_select_keeps_the_memory_of_each_sequence():
    model, memory = decoder(cross=True), rand(2, MEMORY, SIZE)
    cache = model.cache(LENGTH)
    selections = [[0, 0, 0, 1, 1, 1], [2, 0, 1, 5, 5, 3], [1, 1, 1, 3, 4, 5], [0, 2, 3, 4], [1, 1, 3, 2]]
    origin, rows_read = list(range(2)), rand(2, 1, SIZE, seed=1)
    stores = []
    with torch.inference_mode():
        model(rows_read, memory, cache=cache)
        for step, rows in enumerate(selections):
            origin, rows_read = [origin[row] for row in rows], rows_read[torch.tensor(rows)]
            cache.select(torch.tensor(rows))
            stores.append(cache.blocks[0].memory.store.clone())
            new = rand(len(rows), 1, SIZE, seed=step + 2)
            result, rows_read = model(new, memory[origin], cache=cache), torch.cat([rows_read, new], dim=1)
            assert_close(result, model(rows_read, memory[origin])[:, -1:])
    assert [len(store) for store in stores] == [6, 6, 6, 4, 4]


def test_the_memory_is_copied_only_if_sequences_are_repeated_or_removed(monkeypatch):
    model = decoder(cross=True)
    cache = model.cache(LENGTH)
    cache.select(torch.tensor([7]))  # nothing is cached yet
    with torch.inference_mode():
        model(rand(2, 1, SIZE), rand(2, MEMORY, SIZE), cache=cache)
    moves = []
    monkeypatch.setattr(KeyValues, "select", lambda cached, rows: moves.append(cached is cache.blocks[0].memory))
    for rows in ([0, 0, 1, 1], [1, 0, 3, 3], [0, 0, 2, 2], [0, 2]):
        cache.select(torch.tensor(rows))
    assert sum(moves) == 2  # when rows were repeated, and when some were removed
    cache.truncate(0)
    with torch.inference_mode():
        model(rand(2, 1, SIZE), rand(2, MEMORY, SIZE), cache=cache)
    cache.select(torch.tensor([0, 1]))
    assert sum(moves) == 3


def test_memory_is_allocated_once_and_modes_may_change():
    model, x = decoder(), rand(2, LENGTH, SIZE)
    cache = model.cache(LENGTH)
    with torch.inference_mode():
        model(x[:, :2], cache=cache)
    address = cache.blocks[0].own.store.data_ptr()
    with torch.no_grad():
        result = [model(x[:, t : t + 1], cache=cache) for t in range(2, LENGTH)]
    assert cache.blocks[0].own.store.data_ptr() == address
    assert cache.blocks[0].own.store.shape == (2, 2, HEADS, LENGTH, 2)
    assert_close(torch.cat(result, dim=1), model(x)[:, 2:])


def test_wrong_arguments_raise():
    model, x = decoder(), rand(2, LENGTH, SIZE)
    cache = model.cache(max_length=5)
    with torch.no_grad():
        model(x[:, :4], cache=cache)
        with pytest.raises(ValueError, match="the cache is for at most 5 positions, got a sequence of 6"):
            model(x[:, 4:6], cache=cache)
        with pytest.raises(ValueError, match="the cache is for 2 sequences, got 1"):
            model(x[:1, 4:5], cache=cache)
        assert_close(model(x[:, 4:5], cache=cache), model(x[:, :5])[:, 4:])  # the errors left the cache unchanged
    with pytest.raises(RuntimeError, match="a cache stores no history for gradients"):
        model(x, cache=model.cache(LENGTH))
    with pytest.raises(ValueError, match="max_length must be a positive whole number, got 0"):
        model.cache(0)
    with pytest.raises(ValueError, match="the cache is for 3 blocks, got a decoder of 2"):
        model(x, cache=Cache(3, LENGTH))


@pytest.mark.parametrize("training", [False, True], ids=["fast", "by blocks"])
@pytest.mark.parametrize("start", [0, 4])
def test_a_failed_step_leaves_the_caches_of_all_blocks_unchanged(start, training):
    model, x, memory = decoder(Rotary(2), cross=True), rand(2, LENGTH, SIZE), rand(2, MEMORY, SIZE, seed=2)
    model.train(training)  # without dropout, the outputs are the same
    cache = model.cache(LENGTH)
    with torch.no_grad():
        if start:
            model(x[:, :start], memory, cache=cache)
        last = model.blocks[1].feed_forward_norm
        weight, last.weight = last.weight, nn.Parameter(torch.ones(SIZE + 1))  # of a wrong size
        with pytest.raises(RuntimeError):
            model(x[:, start : start + 1], memory, cache=cache)
        assert [block.own.length for block in cache.blocks] == [start, start]
        last.weight = weight
        if not start:  # the memory is no longer cached either
            memory = rand(2, MEMORY + 2, SIZE, seed=3)
        result = [model(x[:, t : t + 1], memory, cache=cache) for t in range(start, LENGTH)]
        assert_close(torch.cat(result, dim=1), model(x, memory)[:, start:])


def test_key_values_alone():
    cached = KeyValues()
    assert cached.get() is None
    cached.select(torch.tensor([0]))
    key, value = rand(2, 3, 4, 5), rand(2, 3, 4, 5, seed=1)
    with pytest.raises(ValueError, match=r"the same shape, got \[2, 3, 4, 5\] and \[2, 3, 4, 4\]"):
        cached.append(key, value[..., 1:])
    result = cached.append(key, value)
    assert_close(result, (key, value), rtol=0, atol=0)
    assert_close(cached.get(), (key, value), rtol=0, atol=0)
    with pytest.raises(ValueError, match="at most 4 positions, got a sequence of 5"):
        cached.append(key[:, :, :1], value[:, :, :1])


def test_a_truncated_cache_uses_the_current_weights():
    """From four rows on, transposed weights are made for each run."""
    model = Decoder(2, lambda: Block(MultiHeadAttention(8, heads=2), FeedForward(8))).eval()
    x = torch.randn(5, 3, 8)
    cache = model.cache(max_length=3)
    with torch.no_grad():
        for _ in range(2):
            steps = [model(x[:, t : t + 1], cache=cache) for t in range(3)]
            assert_close(torch.cat(steps, dim=1), model(x), rtol=1e-4, atol=1e-5)
            cache.truncate(0)
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter))


def test_an_empty_batch_works_with_a_cache():
    model = Decoder(2, lambda: Block(MultiHeadAttention(8, heads=2), FeedForward(8))).eval()
    with torch.no_grad():
        assert model(torch.zeros(0, 1, 8), cache=model.cache(max_length=3)).shape == (0, 1, 8)
