"""Decoding: from the probabilities of the next token to a sequence.

    step(state, last) → (state', log p(next | all tokens so far))

    greedy   the likeliest token at each step
    beam     the `size` likeliest prefixes at each step; of the finished ones, the best log p / penalty(length)
    sample   a random token at each step, given as a stream

All three work on a `Step` and know no model. The state belongs to the step: an RNN's tensors, or a cache of keys and
values. Decoding only selects rows of it (`select`), because finished rows leave the batch and the rows of a beam are
reordered. A state that is changed in place cannot be used again after a search. `decode_batches` runs a search over
many inputs, a batch at a time.

Anything else about the winning tokens, such as their attention weights, comes from one teacher-forced pass over them:
that is cheaper than keeping it for every hypothesis that loses. If a second pass would give something else (a random
attention, say), the state can carry it: its rows follow their hypotheses.

Ties are always broken the same way: the earlier hypothesis first, then the lower token. No gradient is recorded.
Dropout is up to the model: put it in `eval` mode.
"""

from regard.decoding.beam import Batch, beam, decode_batches, greedy
from regard.decoding.sampling import Sampling, largest, nucleus, sample
from regard.decoding.step import Hypothesis, Step, forbid, select
from regard.layers.cache import FixedTensors

__all__ = [
    "Batch",
    "FixedTensors",
    "Hypothesis",
    "Sampling",
    "Step",
    "beam",
    "decode_batches",
    "forbid",
    "greedy",
    "largest",
    "nucleus",
    "sample",
    "select",
]
