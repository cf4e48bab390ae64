"""Decoding: how the probabilities of the next token become a sequence.

    step(state, last) → (state', log p(next | all so far))

    greedy   the likeliest token each time
    beam     the `size` likeliest beginnings each time; of what ended, the best log p / penalty(length)
    sample   a token drawn each time, as it comes

All of it works on a `Step` and knows no model. The state is the step's own affair, an RNN's tensors or a cache of
keys and values: decoding only picks rows of it (`select`), because rows that are over leave the batch, and a
beam's rows change places. A state that is changed in place is used up by a search.

What else a caller wants to know of the winning tokens, such as attention weights, is found by reading them once
more, all at once and teacher-forced: cheaper than keeping it for every hypothesis that loses. Where reading again
would give something else (a drawn look, say), the state can carry it: its rows follow their hypotheses.

Equals are settled always alike: the earlier hypothesis first, then the lower token. No gradient is kept. Dropout
and the like are the model's affair: put it in `eval` mode.
"""

from regard.decoding.beam import beam
from regard.decoding.sampling import greedy, sample
from regard.decoding.step import Fixed, Hypothesis, Step, forbid, select
from regard.decoding.topk import largest, nucleus

__all__ = ["Fixed", "Hypothesis", "Step", "beam", "forbid", "greedy", "largest", "nucleus", "sample", "select"]
