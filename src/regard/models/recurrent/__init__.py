"""Sequence to sequence by recurrence: from one context vector to one for each word.

    vanilla    c is the encoder's last state, the same for every step      Cho et al. 2014
    bahdanau   c_t = attend(s_{t−1}, h), and goes into the recurrence      Bahdanau, Cho, Bengio 2015
    luong      c_t = attend(s_t, h), and goes into what is read            Luong, Pham, Manning 2015

All of them, and the Transformer, are called alike. source `[batch, n]` and target `[batch, m]` are whole numbers padded
behind; `lengths` `[batch]` say how much of each source counts; the target is what the decoder reads, start token first.

    rows(source, lengths, target)     [batch, m, size]        what is read out, teacher-forced, all steps
    logits(rows)                      [..., vocabulary]       `output_weights` has its weight and bias
    forward(source, lengths, target)  [batch, m, vocabulary]  logits(rows(…))
    look(source, lengths, target)     [batch, m, n]           how each target position looked at the source
    begin(source, lengths, max_length), step(state, last)     for `regard.decoding`
"""

from regard.models.recurrent.bahdanau import Bahdanau, bahdanau
from regard.models.recurrent.encoder import RecurrentEncoder
from regard.models.recurrent.luong import Global, Local, Location, Luong, concat, luong
from regard.models.recurrent.vanilla import Vanilla, vanilla

__all__ = [
    "Bahdanau",
    "Global",
    "Local",
    "Location",
    "Luong",
    "RecurrentEncoder",
    "Vanilla",
    "bahdanau",
    "concat",
    "luong",
    "vanilla",
]
