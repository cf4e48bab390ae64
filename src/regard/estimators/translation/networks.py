"""From a translator's settings to its model."""

from typing import Any

from torch import nn

from regard.models.recurrent import Location, bahdanau, concat, luong, vanilla
from regard.models.recurrent.parts import Recurrent
from regard.models.transformer import Transformer, transformer
from regard.scores import Bilinear

CHOICES: dict[str, tuple[str | None, ...]] = {
    "model": ("transformer", "bahdanau", "luong", "rnn"),
    "cell": ("gru", "lstm"),
    "attention": ("dot", "general", "concat", "location"),
    "window": (None, "local-m", "local-p"),
}
"""Settings that are one of some words."""


Seq2Seq = Transformer | Recurrent
"""The models from one sequence to another, which are called alike; see `regard.models.recurrent`."""


def seq2seq(
    source: int,
    target: int,
    *,
    shared: bool,
    model: str,
    size: int,
    hidden: int | None,
    blocks: int,
    heads: int,
    cell: str,
    layers: int,
    attention: str,
    window: str | None,
    radius: int,
    input_feeding: bool,
    longest: int,
    dropout: float,
    attention_dropout: float,
) -> Seq2Seq:
    """The model of these settings for vocabularies of `source` and `target` tokens, with new weights."""
    size, blocks, heads, layers = (int(number) for number in (size, blocks, heads, layers))  # NumPy's too
    hidden, dropout = None if hidden is None else int(hidden), float(dropout)
    if model == "transformer":
        return transformer(
            source,
            target,
            blocks=blocks,
            heads=heads,
            size=size,
            hidden=hidden,
            dropout=dropout,
            attention_dropout=float(attention_dropout),
            shared=shared,
        )
    kind = {"gru": nn.GRU, "lstm": nn.LSTM}[cell]
    state = 2 * size if hidden is None else hidden
    common: dict[str, Any] = {"size": size, "cell": kind, "layers": layers, "dropout": dropout, "shared": shared}
    if model == "rnn":
        return vanilla(source, target, hidden=state, tied=True, **common)
    if model == "bahdanau":
        return bahdanau(source, target, hidden=state, tied=True, **common)
    scores: dict[str, Any] = {
        "dot": None,
        "general": Bilinear,
        "concat": concat,
        "location": lambda state, _: Location(state, room=longest),
    }
    return luong(
        source,
        target,
        hidden=state,
        tied=True,
        score=scores[attention],
        both_ways=attention != "dot",
        radius=None if window is None else radius,
        predicted=window == "local-p",
        feeding=input_feeding,
        **common,
    )
