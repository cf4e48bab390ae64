"""The encoder–decoder without attention: one vector c carries the whole sentence.

    c = h_n        s_t = cell([y_{t−1}; c], s_{t−1})        p(y_t) = softmax(read(output(s_t, c, y_{t−1})))

(Cho et al. 2014.) s₀ is zero, or tanh(W c). With all words given the decoder runs in one pass.
"""

from torch import Tensor, nn

from regard.layers.cache import FixedTensors
from regard.models.recurrent.cells import Cell, State, run, stack_step, weights_of
from regard.models.recurrent.encoder import RecurrentEncoder
from regard.models.recurrent.parts import DeepOutput, Reading, Recurrent, Start, ends, from_nothing
from regard.models.transformer import Embedding


class Vanilla(Recurrent):
    """One context for all steps.

    source, target, encoder, read, dropout   see `Recurrent`
    decoder   an `nn.GRU` or `nn.LSTM` of [word; context], batch first
    output    a `DeepOutput`
    start     from the context to s₀; None: s₀ = 0

    >>> import torch
    >>> model = vanilla(50, 60, size=8, hidden=16)
    >>> model(torch.randint(50, (2, 7)), torch.tensor([7, 5]), torch.randint(60, (2, 9))).shape
    torch.Size([2, 9, 60])
    """

    def __init__(
        self,
        source: Embedding,
        target: Embedding,
        encoder: RecurrentEncoder,
        decoder: nn.GRU | nn.LSTM,
        output: DeepOutput,
        read: nn.Linear,
        *,
        start: Start | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(source, target, encoder, read, dropout)
        self.decoder, self.output, self.start = decoder, output, start

    def rows(self, source: Tensor, lengths: Tensor, target: Tensor) -> Tensor:
        context = self.encoder.last(self.encode(source, lengths), lengths)
        words = self.target(target)
        states = run(self.decoder, words, self.first(context), constant=context)
        return self.dropout(self.output(states, context.unsqueeze(1), words))  # type: ignore[no-any-return]

    def first(self, context: Tensor) -> list[State]:
        """The states that the decoder starts from."""
        return from_nothing(self.decoder, context) if self.start is None else self.start(context)

    def look(self, source: Tensor, lengths: Tensor, target: Tensor) -> Tensor:
        """There are no weights to be seen."""
        raise ValueError(
            "a model without attention looks at nothing: its decoder sees one vector of the whole sentence;"
            " ask a bahdanau, luong or transformer model"
        )

    def begin(self, source: Tensor, lengths: Tensor, max_length: int) -> Reading:
        """The state that decoding starts from; `max_length` is not used."""
        context = self.encoder.last(self.encode(source, lengths), lengths)
        return Reading(self.first(context), FixedTensors(context))

    def step(self, state: Reading, last: Tensor) -> tuple[Reading, Tensor]:
        """For `regard.decoding`: the last token of each row, `[rows]`, to log probabilities `[rows, vocabulary]`."""
        (context,), word = state.kept.tensors, self.word(last)
        weights = weights_of(self.decoder)
        layers = stack_step(self.decoder, weights.gates(word) + weights.more(context), state.layers)
        logits = self.logits(self.output(layers[-1][0], context, word))
        return state._replace(layers=layers), logits.log_softmax(dim=-1)


def vanilla(
    source: int,
    target: int,
    *,
    size: int = 256,
    hidden: int = 512,
    cell: Cell = nn.GRU,
    layers: int = 1,
    both_ways: bool = False,
    warm: bool = True,
    maxout: bool = True,
    dropout: float = 0.0,
    shared: bool = False,
    tied: bool = False,
) -> Vanilla:
    """The encoder–decoder for two vocabularies of these sizes; what is read has the embedding's size.

    both_ways      whether the encoder also reads from the end
    warm           s₀ = tanh(W c); otherwise 0
    shared, tied   one vector for a token of both sides; and for what its logit is read with

    >>> import torch
    >>> source, lengths, target = torch.randint(50, (2, 7)), torch.tensor([7, 5]), torch.randint(60, (2, 9))
    >>> vanilla(50, 60, size=8, hidden=16, cell=nn.LSTM)(source, lengths, target).shape
    torch.Size([2, 9, 60])
    """
    into, out, read = ends(source, target, size, size, dropout, shared=shared, tied=tied)
    encoder = RecurrentEncoder(size, hidden, cell=cell, layers=layers, both_ways=both_ways, dropout=dropout)
    decoder = cell(size + encoder.width, hidden, layers, batch_first=True, dropout=dropout if layers > 1 else 0.0)
    output = DeepOutput(hidden, encoder.width, size, size, maxout=maxout)
    start = Start(encoder.width, decoder) if warm else None
    return Vanilla(into, out, encoder, decoder, output, read, start=start, dropout=dropout)
