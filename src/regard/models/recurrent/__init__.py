"""Recurrent sequence-to-sequence models, with one context vector for all words or one for each.

    Vanilla    c is the encoder's final state, the same for every step     Cho et al. 2014
    Bahdanau   c_t = attend(s_{t−1}, h), an input of the recurrence        Bahdanau, Cho, Bengio 2015
    Luong      c_t = attend(s_t, h), an input of the output layer          Luong, Pham, Manning 2015

These models and the Transformer have the same methods. source `[batch, n]` and target `[batch, m]` are integers, padded
at the end; `lengths` `[batch]` are the numbers of source tokens; the target starts with the start token.

    rows(source, lengths, target)     [batch, m, size]        inputs of the output layer, teacher-forced, all steps
    logits(rows)                      [..., vocabulary]       `output_weights` has its weight and bias
    forward(source, lengths, target)  [batch, m, vocabulary]  logits(rows(…))
    look(source, lengths, target)     [batch, m, n]           the attention weights of each target position
    begin(source, lengths, max_length), step(state, last)     for `regard.decoding`
"""

from regard.models.recurrent.bahdanau import Bahdanau
from regard.models.recurrent.cells import RecurrentConfig
from regard.models.recurrent.encoder_decoder import RecurrentEncoder, Vanilla
from regard.models.recurrent.luong import Global, Local, Location, Luong, concat

__all__ = [
    "Bahdanau",
    "Global",
    "Local",
    "Location",
    "Luong",
    "RecurrentConfig",
    "RecurrentEncoder",
    "Vanilla",
    "concat",
]
