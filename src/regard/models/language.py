"""The language model: a Transformer's decoder alone, which predicts the next token.

    p(t₁ … t_n) = Π p(tᵢ | t₁ … tᵢ₋₁)        p = softmax(read(Decoder(embed(t))))

Shapes: tokens `[batch, length]`, logits `[batch, length, vocabulary]`; the logits at i are those of token i + 1.

Sequences of unequal length are padded at their end: what comes after a token has no effect on it. To continue prompts
of unequal length, `read_prompts` moves the padding before them, so that all grow together; no token sees it, and
positions count from the first token of a prompt.
"""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

from regard.layers import Cache, Decoder, LearnedPositions
from regard.models.transformer import Embedding, TransformerConfig, check_lengths


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
        end = (cache.length if cache else 0) + tokens.shape[-1]
        if end > self.context:
            raise ValueError(f"the model's context is at most {self.context} tokens, got {end}")
        return self.decoder(self.embedding(tokens, cache.start if cache else 0), cache=cache)  # type: ignore[no-any-return]

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

    def begin(self, tokens: Tensor, max_length: int | None = None, lengths: Tensor | None = None) -> Cache:
        """The cache that decoding starts from, after tokens `[batch, length]`, which may be none.

        max_length   maximum number of tokens of a sequence, with those given; default: the context
        lengths      number of tokens of each sequence, `[batch]`, if they are padded at their end
        """
        padding = None
        if lengths is not None:
            check_lengths(lengths, tokens)
            longest = int(lengths.max()) if len(lengths) else 0
            padding = longest - lengths
            index = torch.arange(longest, device=tokens.device) - padding.unsqueeze(-1)  # [batch, longest]
            tokens = tokens.gather(1, index.clamp(min=0)) if longest else tokens[:, :0]
        cache = self.decoder.cache(self.context if max_length is None else min(max_length, self.context), padding)
        if tokens.shape[-1]:
            self.rows(tokens, cache)
        return cache

    def read_prompts(
        self, prompts: Sequence[Sequence[int] | Tensor], max_length: int | None = None
    ) -> tuple[Cache, Tensor]:
        """What `regard.decoding` starts from after prompts of any length: the state, and the last token of each.

        max_length   maximum number of tokens of the longest sequence, with its prompt; default: the context

        >>> import torch
        >>> from regard.decoding import greedy
        >>> model = language_model(50, TransformerConfig(blocks=2, heads=4, size=32), context=16).eval()
        >>> prompts = [[3, 1, 4, 1, 5], [9, 2]]
        >>> with torch.inference_mode():
        ...     state, start = model.read_prompts(prompts)
        ...     both = greedy(model.step, state, start, end=0, length=7)
        ...     state, start = model.read_prompts(prompts[1:])
        ...     [alone] = greedy(model.step, state, start, end=0, length=7)
        >>> both[1].tokens == alone.tokens
        True
        """
        device = self.embedding.token.weight.device
        rows = [torch.as_tensor(prompt, dtype=torch.long, device=device) for prompt in prompts]
        empty = [number for number, row in enumerate(rows) if row.ndim != 1 or not len(row)]
        if not rows or empty:
            which = f"prompt {empty[0]} of shape {list(rows[empty[0]].shape)}" if empty else "no prompt"
            raise ValueError(f"prompts must be at least one sequence of at least one token, got {which}")
        lengths = torch.tensor([len(row) - 1 for row in rows], device=device)
        tokens = pad_sequence(rows, batch_first=True)[:, :-1]
        last = torch.stack([row[-1] for row in rows])
        unequal = len({len(row) for row in rows}) > 1
        return self.begin(tokens, max_length, lengths if unequal else None), last

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
