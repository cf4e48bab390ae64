"""A search over many inputs, batch by batch: a translation of each sentence, a caption of each image."""

from collections.abc import Callable, Iterable, Sequence
from typing import Generic, NamedTuple

import torch
from torch import Tensor

from regard.decoding.beam import beam
from regard.decoding.sampling import greedy
from regard.decoding.step import State, Step


class Batch(NamedTuple, Generic[State]):
    """Inputs that are searched together.

    >>> Batch(inputs=[2, 0], state=None, length=5).inputs
    [2, 0]
    """

    inputs: Sequence[int]  # [rows]  the index of each row's input
    state: State
    length: int | Tensor  # the maximum number of tokens, including the end: one number, or one for each row


@torch.inference_mode()
def decode_batches(
    step: Step[State],
    batches: Iterable[Batch[State]],
    *,
    start: int,
    end: int,
    size: int = 1,
    penalty: float = 0.0,
    progress: Callable[[int], None] = lambda done: None,
) -> dict[int, list[int]]:
    """The tokens of each input's best hypothesis, without start and end, by the input's index.

    batches    read one at a time, in inference mode: a generator may encode the next inputs when it is asked for them
    size       the number of open hypotheses of an input; 1 is the greedy search
    penalty    α of the beam's length penalty
    progress   is called with the number of inputs decoded so far, after each batch

    >>> import torch
    >>> table = torch.tensor([[0.0, 0.9, 0.1], [0.3, 0.1, 0.6], [1.0, 0.0, 0.0]]).log()
    >>> batches = [Batch([2, 0], None, length=5), Batch([1], None, length=1)]
    >>> decode_batches(lambda state, last: (state, table[last]), batches, start=1, end=0)
    {2: [2], 0: [2], 1: [2]}
    """
    tokens: dict[int, list[int]] = {}
    for inputs, state, length in batches:
        first = torch.full((len(inputs),), start)
        if size == 1:
            best = greedy(step, state, first, end=end, length=length)
        else:
            ranked = beam(step, state, first, end=end, length=length, size=size, penalty=penalty)
            best = [hypotheses[0] for hypotheses in ranked]
        tokens.update((index, hypothesis.tokens) for index, hypothesis in zip(inputs, best, strict=True))
        progress(len(tokens))
    return tokens
