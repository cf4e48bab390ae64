"""From a translator's settings to its model."""

from typing import Any, Protocol

from torch import Tensor, nn

from regard.models.recurrent import Location, bahdanau, concat, luong, vanilla
from regard.models.transformer import transformer
from regard.scores import Bilinear

CHOICES = {
    "model": ("transformer", "bahdanau", "luong", "rnn"),
    "cell": ("gru", "lstm"),
    "attention": ("dot", "general", "concat", "location"),
    "window": (None, "local-m", "local-p"),
}
"""Settings that are one of some words."""


class Seq2Seq(Protocol):
    """What all models from one sequence to another have; see `regard.models.recurrent`."""

    reader: tuple[Tensor, Tensor | None]

    def rows(self, source: Tensor, lengths: Tensor, target: Tensor) -> Tensor: ...
    def look(self, source: Tensor, lengths: Tensor, target: Tensor) -> Tensor: ...
    def begin(self, source: Tensor, lengths: Tensor, room: int) -> Any: ...
    def step(self, state: Any, last: Tensor) -> tuple[Any, Tensor]: ...


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
) -> nn.Module:
    """The model of these settings for vocabularies of `source` and `target` tokens, with new weights."""
    if model == "transformer":
        return transformer(
            source, target, blocks=blocks, heads=heads, size=size, hidden=hidden, dropout=dropout, shared=shared
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
