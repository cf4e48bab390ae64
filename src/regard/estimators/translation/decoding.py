"""Translating many sentences at once: sorted by length, searched in batches, given back in their order."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from regard.data.sentence_pairs import END, PADDING, START, grouped, padded
from regard.decoding import beam, forbid, greedy

AT_ONCE = 1 << 13
"""Source tokens times hypotheses that are searched at a time."""


@torch.inference_mode()
def searched(
    model: Any,
    sources: Sequence[list[int]],
    *,
    size: int,
    penalty: float,
    limit: Callable[[Any], Any],
    done: Callable[[int], None] = lambda count: None,
) -> list[list[int]]:
    """The target tokens of each source; nothing for nothing.

    size      how many hypotheses; 1 is the greedy search
    limit     from the sources' lengths to the most tokens of their targets, the end included
    done      is told how many sentences are through, as it goes
    """
    found: list[list[int]] = [[] for _ in sources]
    lengths = np.array([len(source) for source in sources], dtype=int)
    order = np.argsort(-lengths, kind="stable")
    order = order[lengths[order] > 0]
    step = forbid(model.step, [PADDING, START])
    finished = len(sources) - len(order)
    for group in grouped(lengths[order], AT_ONCE // size):
        places = order[group]
        most = torch.from_numpy(limit(lengths[places]))
        source = padded([sources[place] for place in places])
        state = model.begin(source, torch.from_numpy(lengths[places]), int(most.max()))
        start = torch.full((len(places),), START)
        if size == 1:
            best = greedy(step, state, start, end=END, length=most)
        else:
            best = [some[0] for some in beam(step, state, start, end=END, length=most, size=size, penalty=penalty)]
        for place, hypothesis in zip(places, best, strict=True):
            found[place] = hypothesis.tokens
        finished += len(places)
        done(finished)
    return found
