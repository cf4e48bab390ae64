"""The language model: a Transformer's decoder alone, which predicts the next token.

    p(t₁ … t_n) = Π p(tᵢ | t₁ … tᵢ₋₁)        p = softmax(read(Decoder(embed(t))))

Shapes: tokens `[batch, length]`, logits `[batch, length, vocabulary]`; the logits at i are those of token i + 1.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.layers import Cache, Decoder, LearnedPositions
from regard.models.transformer import Embedding, TransformerConfig


class LanguageModel(nn.Module):
    """Decoder only.

    embedding   an `Embedding`
    decoder     a `Decoder`
    context     maximum sequence length; longer input raises ValueError
    read        map from rows to logits; default: tied to the embedding

    >>> import torch
    >>> model = language_model(50, TransformerConfig(blocks=2, heads=4, size=32), context=16)
    >>> model(torch.randint(50, (3, 9))).shape
    torch.Size([3, 9, 50])
    """

    def __init__(
        self, embedding: Embedding, decoder: Decoder, *, context: int, read: Callable[[Tensor], Tensor] | None = None
    ) -> None:
        super().__init__()
        self.embedding, self.decoder, self.read, self.context = embedding, decoder, read, context

    @property
    def vocabulary(self) -> int:
        """Number of tokens of the vocabulary."""
        return self.embedding.vocabulary

    def forward(self, tokens: Tensor, cache: Cache | None = None) -> Tensor:
        """The logits of what follows each token. With a cache, tokens follow those of earlier calls."""
        return self.logits(self.rows(tokens, cache))

    def rows(self, tokens: Tensor, cache: Cache | None = None) -> Tensor:
        """The decoder's output `[batch, length, size]`."""
        start = cache.length if cache else 0
        if start + tokens.shape[-1] > self.context:
            raise ValueError(f"the model's context is at most {self.context} tokens, got {start + tokens.shape[-1]}")
        return self.decoder(self.embedding(tokens, start), cache=cache)  # type: ignore[no-any-return]

    def logits(self, rows: Tensor) -> Tensor:
        """The logits of rows, `[..., vocabulary]`."""
        if self.read is not None:
            return self.read(rows)
        return functional.linear(rows, self.embedding.token.weight)

    def loss(self, tokens: Tensor) -> Tensor:
        """The mean of -log p(token | earlier tokens) over all but the first of `[batch, length]`."""
        if tokens.ndim != 2 or tokens.shape[1] < 2:
            raise ValueError(f"the loss needs at least 2 tokens, [batch, length], got shape {list(tokens.shape)}")
        logits = self(tokens[:, :-1])
        return functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())

    def begin(self, tokens: Tensor, max_length: int | None = None) -> Cache:
        """The cache that decoding starts from, after tokens `[batch, length]`, which may be none."""
        cache = self.decoder.cache(self.context if max_length is None else min(max_length, self.context))
        if tokens.shape[-1]:
            self.rows(tokens, cache)
        return cache

    def step(self, cache: Cache, tokens: Tensor) -> tuple[Cache, Tensor]:
        """For `regard.decoding`: the last token of each row, `[rows]`, to log probabilities `[rows, vocabulary]`."""
        rows = self.rows(tokens.unsqueeze(1), cache)
        return cache, self.logits(rows[:, -1]).log_softmax(dim=-1)


def language_model(vocabulary: int, config: TransformerConfig, *, context: int = 256) -> LanguageModel:
    """A language model like GPT-2: learned positions, pre-norm, tied embedding.

    Weights are initialised as GPT-2's: normal with standard deviation 0.02, divided by √(2 · blocks) for those that
    write into the residual sum.

    >>> import torch
    >>> model = language_model(50, TransformerConfig(blocks=2, heads=4, size=32), context=16)
    >>> tokens = torch.randint(50, (1, 9))
    >>> with torch.inference_mode():
    ...     _, log_p = model.step(model.begin(tokens[:, :-1]), tokens[:, -1])
    ...     bool(torch.allclose(log_p, model(tokens)[:, -1].log_softmax(dim=-1), atol=1e-5))
    True
    """
    positions = LearnedPositions(context, config.size)
    embedding = Embedding(vocabulary, config.size, positions=positions, dropout=config.dropout)
    model = LanguageModel(embedding, config.decoder(), context=context)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1:
                divisor = math.sqrt(2 * config.blocks) if name.endswith("output.weight") else 1.0
                nn.init.normal_(parameter, std=0.02 / divisor)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)
    return model
