"""The loops of `recurrence.py`, in Numba: the gates of a GRU and of an LSTM, one pass a step, forward and back.

Arrays are `[rows, …]` with each row contiguous. Gates stand beside each other in torch's order: reset, update, new of a
GRU; enter, forget, new, out of an LSTM. `hidden` is what the state before gave to them, from column `skip` on.
Each loop writes one array, so that few need be found not to overlap before it is vectorised.
"""

from typing import Any

from regard.compiled import compiled
from regard.compiled.math import EXACT, sigmoid, tanh


@compiled(nogil=True, fastmath=EXACT, error_model="numpy")
def gru(gates: Any, hidden: Any, skip: Any, before: Any, after: Any) -> None:
    """gates become reset, update and new; after = new + update · (before − new)."""
    size = before.shape[1]
    for row in range(before.shape[0]):
        both, other = gates[row, : 2 * size], hidden[row, skip : skip + 2 * size]
        for j in range(2 * size):
            both[j] = sigmoid(both[j] + other[j])
        reset, new, given = gates[row, :size], gates[row, 2 * size :], hidden[row, skip + 2 * size :]
        for j in range(size):
            new[j] = tanh(new[j] + reset[j] * given[j])
        update, old, into = gates[row, size : 2 * size], before[row], after[row]
        for j in range(size):
            into[j] = new[j] + update[j] * (old[j] - new[j])


@compiled(nogil=True, fastmath=EXACT, error_model="numpy")
def gru_backward(
    gates: Any, hidden: Any, skip: Any, before: Any, slope: Any, gate_slope: Any, hidden_slope: Any
) -> None:
    """From the slope of `after` to those of both parts of the gates (written), and of `before` directly, in place.

    gates   reset, update and new, as `gru` left them
    """
    size = before.shape[1]
    one = slope.dtype.type(1)
    for row in range(before.shape[0]):
        reset, update, new = gates[row, :size], gates[row, size : 2 * size], gates[row, 2 * size :]
        old, pull, given = before[row], slope[row], hidden[row, skip + 2 * size :]
        outer, inner = gate_slope[row], hidden_slope[row, skip:]
        to_reset, to_update, to_new = outer[:size], outer[size : 2 * size], outer[2 * size :]
        for j in range(size):
            to_new[j] = pull[j] * (one - update[j]) * (one - new[j] * new[j])
        for j in range(size):
            to_update[j] = pull[j] * (old[j] - new[j]) * update[j] * (one - update[j])
        for j in range(size):
            to_reset[j] = to_new[j] * given[j] * reset[j] * (one - reset[j])
        for j in range(size):
            pull[j] *= update[j]
        for j in range(2 * size):
            inner[j] = outer[j]
        last = inner[2 * size :]
        for j in range(size):
            last[j] = to_new[j] * reset[j]


@compiled(nogil=True, fastmath=EXACT, error_model="numpy")
def lstm(gates: Any, hidden: Any, skip: Any, memory: Any, next_memory: Any, after: Any) -> None:
    """gates become enter, forget, new and out; memory goes on, and after = out · tanh(memory)."""
    size = memory.shape[1]
    for row in range(memory.shape[0]):
        both, other = gates[row, : 2 * size], hidden[row, skip : skip + 2 * size]
        for j in range(2 * size):
            both[j] = sigmoid(both[j] + other[j])
        new, given = gates[row, 2 * size : 3 * size], hidden[row, skip + 2 * size : skip + 3 * size]
        for j in range(size):
            new[j] = tanh(new[j] + given[j])
        out, rest = gates[row, 3 * size :], hidden[row, skip + 3 * size :]
        for j in range(size):
            out[j] = sigmoid(out[j] + rest[j])
        enter, forget, old, kept = gates[row, :size], gates[row, size : 2 * size], memory[row], next_memory[row]
        for j in range(size):
            kept[j] = forget[j] * old[j] + enter[j] * new[j]
        into = after[row]
        for j in range(size):
            into[j] = out[j] * tanh(kept[j])


@compiled(nogil=True, fastmath=EXACT, error_model="numpy")
def lstm_backward(
    gates: Any,
    skip: Any,
    memory: Any,
    next_memory: Any,
    slope: Any,
    memory_slope: Any,
    gate_slope: Any,
    hidden_slope: Any,
) -> None:
    """From the slopes of `after` and of the memory to those of the gates (written), and of the memory before, in place.

    The state before plays a part in the gates only: its slope becomes 0.
    """
    size = memory.shape[1]
    one = slope.dtype.type(1)
    for row in range(memory.shape[0]):
        enter, forget = gates[row, :size], gates[row, size : 2 * size]
        new, out = gates[row, 2 * size : 3 * size], gates[row, 3 * size :]
        old, kept, pull, carry = memory[row], next_memory[row], slope[row], memory_slope[row]
        outer, inner = gate_slope[row], hidden_slope[row, skip:]
        to_enter, to_forget = outer[:size], outer[size : 2 * size]
        to_new, to_out = outer[2 * size : 3 * size], outer[3 * size :]
        for j in range(size):
            to_out[j] = tanh(kept[j])
        for j in range(size):
            carry[j] += pull[j] * out[j] * (one - to_out[j] * to_out[j])
        for j in range(size):
            to_out[j] *= pull[j] * out[j] * (one - out[j])
        for j in range(size):
            to_enter[j] = carry[j] * new[j] * enter[j] * (one - enter[j])
        for j in range(size):
            to_forget[j] = carry[j] * old[j] * forget[j] * (one - forget[j])
        for j in range(size):
            to_new[j] = carry[j] * enter[j] * (one - new[j] * new[j])
        for j in range(size):
            carry[j] *= forget[j]
        pull[:] = 0
        for j in range(4 * size):
            inner[j] = outer[j]
