"""The recurrent encoder: a state for each source token, which has read those before it, or those on both sides.

    →h_i = cell(x_i, →h_{i−1})      ←h_i = cell(x_i, ←h_{i+1})      h_i = [→h_i; ←h_i]

rows `[batch, n, size]` and lengths `[batch]` give states `[batch, n, width]`, 0 behind each end. A sentence has the
same states alone and in a padded batch.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from regard.checks import fraction, positive
from regard.models.recurrent.cells import Cell, Weights, between, weights_of
from regard.ops.additive import fusible
from regard.ops.attentive_rnn import recurrence


class RecurrentEncoder(nn.Module):
    """Layers of a GRU or an LSTM over padded sequences.

    cell       `nn.GRU` or `nn.LSTM`
    both_ways  whether each layer also reads from the end, with `hidden` numbers for each way
    dropout    the share dropped between layers, in training

    >>> import torch
    >>> encoder = RecurrentEncoder(5, 3)
    >>> encoder(torch.randn(2, 7, 5), torch.tensor([7, 4])).shape
    torch.Size([2, 7, 6])
    """

    def __init__(
        self,
        size: int,
        hidden: int,
        *,
        cell: Cell = nn.GRU,
        layers: int = 1,
        both_ways: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.hidden, self.both_ways = positive("hidden", hidden), both_ways
        drop = fraction("dropout", dropout) if positive("layers", layers) > 1 else 0.0
        self.rnn = cell(positive("size", size), hidden, layers, batch_first=True, bidirectional=both_ways, dropout=drop)

    @property
    def width(self) -> int:
        """How many numbers a state has."""
        return self.hidden * (2 if self.both_ways else 1)

    def forward(self, rows: Tensor, lengths: Tensor) -> Tensor:
        check_lengths(lengths, rows)
        if not fusible(rows, weights_of(self.rnn).input):
            return self.packed(rows, lengths)
        x, place = rows.transpose(0, 1), torch.arange(rows.shape[1]).unsqueeze(1)
        seen = place < lengths  # [n, batch]
        # Each sentence turned round in its own place; turned twice it is as before.
        turn = torch.where(seen, lengths - 1 - place, place) * len(rows) + torch.arange(len(rows))
        for layer in range(self.rnn.num_layers):
            x = between(self.rnn, x) if layer else x
            ways = [self.way(x, weights_of(self.rnn, layer))]
            if self.both_ways:
                back = self.way(picked(x, turn), weights_of(self.rnn, layer, back=True))
                ways.append(picked(back, turn))
            x = torch.cat(ways, dim=-1)
        return (x * seen.unsqueeze(-1)).transpose(0, 1).contiguous()

    def way(self, x: Tensor, weights: Weights) -> Tensor:
        """One layer, one way, over all steps: `[n, batch, …]`, steps first."""
        zero = x.new_zeros(x.shape[1], self.hidden)
        start = (zero, zero) if isinstance(self.rnn, nn.LSTM) else (zero,)
        return recurrence(weights.gates(x), start, weights.hidden, weights.hidden_bias)

    def packed(self, rows: Tensor, lengths: Tensor) -> Tensor:
        """The same by torch."""
        packed = pack_padded_sequence(rows, lengths.cpu(), batch_first=True, enforce_sorted=False)
        states, _ = pad_packed_sequence(self.rnn(packed)[0], batch_first=True, total_length=rows.shape[1])
        return states

    def last(self, states: Tensor, lengths: Tensor) -> Tensor:
        """What each way has read when it is through, `[batch, width]`: at the true end, and at the first token."""
        ahead = states[torch.arange(len(states), device=states.device), lengths - 1, : self.hidden]
        return torch.cat([ahead, self.turned(states)], dim=-1) if self.both_ways else ahead

    def turned(self, states: Tensor) -> Tensor:
        """The state of the way back when it is through, at the first token: `[batch, hidden]`."""
        return states[:, 0, self.hidden :]


def picked(x: Tensor, index: Tensor) -> Tensor:
    """Rows of `[n, batch, size]` by their numbers `[n, batch]`. (An embedding has torch's quickest backward for it.)"""
    return functional.embedding(index, x.flatten(0, 1))


def check_lengths(lengths: Tensor, rows: Tensor) -> None:
    """Each sentence has a token at least, and no more than there are."""
    if lengths.is_floating_point() or lengths.shape != rows.shape[:1]:
        raise ValueError(
            f"lengths must be whole numbers [{len(rows)}], got shape {list(lengths.shape)} of {lengths.dtype}"
        )
    if len(lengths) and not lengths.is_cuda:
        least, most = (int(bound) for bound in torch.aminmax(lengths))
        if least < 1 or most > rows.shape[1]:
            wrong = least if least < 1 else most
            raise ValueError(f"lengths must be at least 1 and at most {rows.shape[1]}, the tokens given, got {wrong}")
