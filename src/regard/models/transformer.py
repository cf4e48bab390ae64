"""The Transformer: tokens in, blocks of attention, tokens out (Vaswani et al. 2017).

    encoder–decoder   source → embed → Encoder → memory;  target → embed → Decoder(memory) → read → logits
    encoder only      tokens → embed → Encoder → a row for each token
    decoder only      see `regard.models.language`

Shapes: tokens `[batch, length]`, rows `[batch, length, size]`, logits `[batch, length, vocabulary]`. Sequences are
padded at their end; `lengths` `[batch]` are those without padding. The parts of a model are passed in; `transformer`
and `text_encoder` make the usual ones from a `TransformerConfig`.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.checks import fraction
from regard.layers import Block, Cache, Decoder, Encoder, FeedForward, Heads, MultiHeadAttention, Sinusoidal
from regard.layers.cache import FixedTensors
from regard.layers.feed_forward import Activation
from regard.layers.watch import watch
from regard.masks import padding
from regard.torch_modes import compiling


@dataclass(frozen=True, kw_only=True)
class TransformerConfig:
    """The sizes and parts of a Transformer with pre-norm blocks.

    >>> base = TransformerConfig(blocks=6, heads=8, size=512, activation=torch.relu, dropout=0.1)  # Vaswani et al. 2017
    >>> len(base.encoder().blocks)
    6
    """

    blocks: int  # number of blocks of the encoder, and of the decoder
    heads: int | Heads  # number of attention heads; must divide the size, unless `Heads` says more
    size: int  # size of a row
    hidden: int | None = None  # size inside the feed-forward; default: 4 · size
    activation: Activation = functional.gelu  # of the feed-forward
    dropout: float = 0.0  # fraction dropped of each branch's output and of the embeddings (section 5.4)
    attention_dropout: float = 0.0  # fraction dropped of the attention weights
    bias: bool = True  # whether linear maps and norms add one

    def encoder(self) -> Encoder:
        """An encoder of new blocks."""
        return Encoder(self.blocks, self._block, norm=self._norm(self.size))

    def decoder(self, *, cross: bool = False) -> Decoder:
        """A decoder of new blocks, with or without attention to a memory."""
        return Decoder(self.blocks, lambda: self._block(cross), norm=self._norm(self.size))

    def _block(self, cross: bool = False) -> Block:
        feed_forward = FeedForward(self.size, self.hidden, activation=self.activation, bias=self.bias)
        attention, other = self._attention(), self._attention() if cross else None
        return Block(attention, feed_forward, cross=other, norm=self._norm, dropout=self.dropout)

    def _attention(self) -> MultiHeadAttention:
        return MultiHeadAttention(self.size, self.heads, dropout=self.attention_dropout, bias=self.bias)

    def _norm(self, size: int) -> nn.Module:
        return nn.LayerNorm(size, bias=self.bias)


class Embedding(nn.Module):
    """Tokens as rows: a vector for each token, plus its position.

    vocabulary   number of tokens, which are counted from 0
    positions    adds a vector for each position, such as `Sinusoidal(size)` or `LearnedPositions(length, size)`; None
                 if the attention has positions itself
    types        number of segment types (BERT's two sentences); 0 for none
    norm         applied to the sum
    scale        factor of the tokens' vectors; √size in the first Transformer

    tokens `[batch, length]` give `[batch, length, size]`. `start` is the position of the first token, one number or one
    for each sequence, `[batch]`.

    >>> import torch
    >>> Embedding(100, 8, positions=Sinusoidal(8))(torch.tensor([[5, 7, 99]])).shape
    torch.Size([1, 3, 8])
    """

    def __init__(
        self,
        vocabulary: int,
        size: int,
        *,
        positions: nn.Module | None = None,
        types: int = 0,
        norm: nn.Module | None = None,
        scale: float = 1.0,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.token = nn.Embedding(vocabulary, size)
        self.segment = nn.Embedding(types, size) if types else None
        self.positions, self.norm, self.scale = positions, norm, scale
        self.dropout = nn.Dropout(fraction("dropout", dropout))

    @property
    def vocabulary(self) -> int:
        """Number of tokens."""
        return self.token.num_embeddings

    def forward(self, tokens: Tensor, start: int | Tensor = 0, types: Tensor | None = None) -> Tensor:
        check_tokens(tokens, self.vocabulary)
        rows = self.token(tokens)
        if self.scale != 1:
            rows = rows * self.scale
        if self.positions is not None:
            rows = self.positions(rows, start)
        if self.segment is not None:
            rows = rows + self.segment(torch.zeros_like(tokens) if types is None else types)
        if self.norm is not None:
            rows = self.norm(rows)
        return self.dropout(rows)  # type: ignore[no-any-return]


def check_tokens(tokens: Tensor, vocabulary: int) -> None:
    """Raise unless tokens are whole numbers of the vocabulary, `[batch, length]`."""
    if tokens.ndim != 2 or tokens.is_floating_point():
        raise ValueError(
            f"tokens must be whole numbers [batch, length], got shape {list(tokens.shape)} of {tokens.dtype}"
        )
    _check_range(tokens, 0, vocabulary - 1, f"tokens must be at least 0 and below {vocabulary}, the vocabulary")


def check_lengths(lengths: Tensor, rows: Tensor, least: int = 0) -> None:
    """Raise unless lengths are whole numbers `[batch]`, from `least` to that of the rows `[batch, length, …]`."""
    if lengths.is_floating_point() or lengths.shape != rows.shape[:1]:
        raise ValueError(
            f"lengths must be whole numbers [{len(rows)}], got shape {list(lengths.shape)} of {lengths.dtype}"
        )
    most = rows.shape[1]
    _check_range(lengths, least, most, f"lengths must be at least {least} and at most {most}, the tokens given")


def _check_range(numbers: Tensor, least: int, most: int, must: str) -> None:
    if compiling() or numbers.device.type != "cpu":  # unknown, or to be waited for
        return
    if numbers.numel():
        low, high = torch.aminmax(numbers)
        if low < least or high > most:
            raise ValueError(f"{must}, got {int(low if low < least else high)}")


class SequenceToSequence(nn.Module):
    """Base of the models from one sequence of tokens to another: rows of a decoder, and a linear map to logits."""

    target: Embedding
    read: nn.Linear | None  # the linear map; None: tied to the target's embedding

    def rows(self, source: Tensor, lengths: Tensor, target: Tensor) -> Tensor:
        """Rows `[batch, m, size]`, from which logits are computed."""
        raise NotImplementedError

    def forward(self, source: Tensor, lengths: Tensor, target: Tensor) -> Tensor:
        """The logits of what follows each token of `target` `[batch, m]`: `[batch, m, vocabulary]`."""
        return self.logits(self.rows(source, lengths, target))

    def logits(self, rows: Tensor) -> Tensor:
        """The logits of rows, `[..., vocabulary]`."""
        return functional.linear(rows, *self.output_weights)

    @property
    def output_weights(self) -> tuple[Tensor, Tensor | None]:
        """The linear map to the logits: weight `[vocabulary, size]`, and bias `[vocabulary]` or None."""
        if self.read is None:
            return self.target.token.weight, None
        return self.read.weight, self.read.bias


_DecodingState = tuple[FixedTensors, Cache]
"""The state of decoding a batch of translations: the memory [rows, length, size] and its lengths [rows]; the cache."""


class Transformer(SequenceToSequence):
    """Encoder and decoder, from one sequence of tokens to another.

    source, target   an `Embedding` for each; they may be one
    encoder          an `Encoder`
    decoder          a `Decoder` whose blocks have cross-attention
    read             linear map from rows to logits; default: tied to the target's embedding

    >>> import torch
    >>> model = transformer(50, 60, TransformerConfig(blocks=2, heads=4, size=32))
    >>> model(torch.randint(50, (2, 7)), torch.tensor([7, 5]), torch.randint(60, (2, 9))).shape
    torch.Size([2, 9, 60])
    """

    def __init__(
        self,
        source: Embedding,
        target: Embedding,
        encoder: Encoder,
        decoder: Decoder,
        *,
        read: nn.Linear | None = None,
    ) -> None:
        super().__init__()
        self.source, self.target, self.encoder, self.decoder, self.read = source, target, encoder, decoder, read

    def rows(self, source: Tensor, lengths: Tensor, target: Tensor) -> Tensor:
        return self.decode(self.encode(source, lengths), lengths, target)

    def encode(self, source: Tensor, lengths: Tensor) -> Tensor:
        """The memory `[batch, length, size]` of source tokens `[batch, length]`."""
        check_lengths(lengths, source)
        return self.encoder(self.source(source), mask=padding(lengths))  # type: ignore[no-any-return]

    def decode(self, memory: Tensor, lengths: Tensor, target: Tensor, cache: Cache | None = None) -> Tensor:
        """The decoder's output `[batch, length, size]` for a memory."""
        start = cache.length if cache else 0
        rows = self.target(target, start)
        return self.decoder(rows, memory, memory_mask=padding(lengths), cache=cache)  # type: ignore[no-any-return]

    def look(self, source: Tensor, lengths: Tensor, target: Tensor) -> Tensor:
        """The weights of each target token on the source, `[batch, target, source]`: the mean over all heads."""
        names = [f"decoder.blocks.{number}.cross" for number in range(len(self.decoder.blocks))]
        with torch.no_grad(), watch(self, layers=names) as weights:
            self.rows(source, lengths, target)
        every = [weight for [weight] in weights.values() if isinstance(weight, Tensor)]
        return torch.cat(every, dim=1).mean(dim=1)  # [batch, blocks · heads, target, source] -> without heads

    def begin(self, source: Tensor, lengths: Tensor, max_length: int) -> _DecodingState:
        """The state that decoding starts from, for at most this number of tokens."""
        return FixedTensors(self.encode(source, lengths), lengths), self.decoder.cache(max_length)

    def step(self, state: _DecodingState, tokens: Tensor) -> tuple[_DecodingState, Tensor]:
        """For `regard.decoding`: the last token of each row, `[rows]`, to log probabilities `[rows, vocabulary]`."""
        source, cache = state
        memory, lengths = source.tensors
        rows = self.decode(memory, lengths, tokens.unsqueeze(1), cache)
        return state, self.logits(rows[:, -1]).log_softmax(dim=-1)


class TextEncoder(nn.Module):
    """Encoder only: a row for each token, computed from all tokens.

    >>> import torch
    >>> model = text_encoder(50, TransformerConfig(blocks=2, heads=4, size=32))
    >>> model(torch.randint(50, (2, 7)), torch.tensor([7, 5])).shape
    torch.Size([2, 7, 32])
    """

    def __init__(self, embedding: Embedding, encoder: Encoder) -> None:
        super().__init__()
        self.embedding, self.encoder = embedding, encoder

    def forward(self, tokens: Tensor, lengths: Tensor | None = None, types: Tensor | None = None) -> Tensor:
        """tokens `[batch, length]` and lengths `[batch]`, default: no padding; gives `[batch, length, size]`."""
        if lengths is not None:
            check_lengths(lengths, tokens)
        mask = None if lengths is None else padding(lengths)
        return self.encoder(self.embedding(tokens, types=types), mask=mask)  # type: ignore[no-any-return]


def transformer(source: int, target: int, config: TransformerConfig, *, shared: bool = False) -> Transformer:
    """The encoder–decoder for two vocabularies of these sizes, pre-norm, with sinusoidal positions.

    shared   one vocabulary and one embedding for both

    >>> import torch
    >>> model = transformer(50, 60, TransformerConfig(blocks=2, heads=4, size=32))
    >>> source, lengths, target = torch.randint(50, (2, 7)), torch.tensor([7, 5]), torch.randint(60, (2, 9))
    >>> model(source, lengths, target).shape, model.look(source, lengths, target).shape
    (torch.Size([2, 9, 60]), torch.Size([2, 9, 7]))
    """
    size = config.size

    def embedding(vocabulary: int) -> Embedding:
        layer = Embedding(vocabulary, size, positions=Sinusoidal(size), scale=size**0.5, dropout=config.dropout)
        nn.init.normal_(layer.token.weight, std=size**-0.5)
        return layer

    if shared and source != target:
        raise ValueError(f"a shared vocabulary must have one size, got {source} and {target}")
    first = embedding(source)
    second = first if shared else embedding(target)
    model = Transformer(first, second, config.encoder(), config.decoder(cross=True))
    for parameter in (*model.encoder.parameters(), *model.decoder.parameters()):
        if parameter.ndim > 1:
            nn.init.xavier_uniform_(parameter)
    return model


def text_encoder(vocabulary: int, config: TransformerConfig) -> TextEncoder:
    """The encoder-only Transformer, pre-norm, with sinusoidal positions.

    >>> import torch
    >>> model = text_encoder(50, TransformerConfig(blocks=2, heads=4, size=32))
    >>> tokens = torch.tensor([[5, 7, 9], [5, 7, 0]])
    >>> padded, alone = model(tokens, torch.tensor([3, 2]))[1, :2], model(tokens[1:, :2])[0]
    >>> bool(torch.allclose(padded, alone, atol=1e-5))
    True
    """
    positions = Sinusoidal(config.size)
    embedding = Embedding(vocabulary, config.size, positions=positions, dropout=config.dropout)
    return TextEncoder(embedding, config.encoder())
