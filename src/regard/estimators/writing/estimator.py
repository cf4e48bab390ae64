"""A language model, trained on a user's own text, that continues a text and shows what each token looked at.

The network is `regard.models.language`, the loop `regard.training`, the sampling `regard.decoding`. It trains on random
windows of `context` + 1 tokens. The end of the text is held out; the weights with the lowest loss there are used.
"""

import math
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, cast

import torch
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from regard.attend import Look
from regard.checks import positive
from regard.data.text import Batches, checked_text, text_or_file
from regard.data.tokenizers import (
    UNKNOWN,
    bpe_tokenizer,
    character_tokenizer,
    encode_text,
    text_chunks,
    tokenizer_from_json,
    tokenizers_package,
)
from regard.decoding import Sampling, forbid, sample
from regard.estimators.common import (
    OPTIMIZERS,
    State,
    TrainedEstimator,
    checked_top,
    module_arrays,
    restored_module,
)
from regard.estimators.settings import Training, seed_of, setting, with_settings
from regard.estimators.writing.evidence import TextEvidence, text_evidence
from regard.layers import Heads, gelu_tanh
from regard.layers.watch import watch
from regard.models.language import LanguageModel, language_model
from regard.models.transformer import TransformerConfig
from regard.training import Monitor

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_VALIDATED = 1 << 16
"""The maximum number of held-out tokens of a validation."""
_READ_TOKENS = 1 << 14
"""The maximum number of tokens in a batch without gradients."""


def window_batches(ids: Tensor, context: int, size: int, count: int, seed: tuple[int, int]) -> Batches[Tensor, Tensor]:
    """The batches of an epoch: `count` random windows `[size, context + 1]` of the tokens."""
    generator = torch.Generator().manual_seed((seed[0] * 1_000_003 + seed[1]) % 2**63)
    starts = torch.randint(len(ids) - context, (count, size, 1), generator=generator)
    return Batches(list(starts), lambda batch: ids[batch + torch.arange(context + 1)])


@torch.no_grad()
def mean_loss(model: LanguageModel, ids: Tensor, overlap: int = 0) -> float:
    """The mean -log p of all tokens `[n]` except the first, in windows of the context; each token counts once.

    overlap   the number of tokens that a window shares with the one before: they are context, and do not count again
    """
    context = model.context
    starts = [0, *range(context - overlap, max(1, len(ids) - 1 - overlap), context - overlap)]
    full = [start for start in starts if start + context + 1 <= len(ids)]
    rows = max(1, _READ_TOKENS // context)
    batches = [full[i : i + rows] for i in range(0, len(full), rows)] + [[start] for start in starts[len(full) :]]
    total = 0.0
    for batch in batches:
        window = torch.stack([ids[start : start + context + 1] for start in batch])  # [rows, context + 1]
        log_p = model(window[:, :-1]).log_softmax(dim=-1).gather(-1, window[:, 1:, None])[..., 0]
        for start, row in zip(batch, log_p, strict=True):
            total -= float(row[overlap if start else 0 :].sum(dtype=torch.float64))
    return total / (len(ids) - 1)


@with_settings
class Writer(Training, TrainedEstimator):
    """A Transformer that learns to continue a text.

    After `fit`: `model_` (a `LanguageModel`), `tokenizer_`, `history_`.

    >>> writer = Writer(context=16, blocks=1, heads=2, size=16, steps=30, validate_every=10, verbose=False)
    >>> writer = writer.fit("the cat sat on the mat. " * 60)
    >>> writer.perplexity("the cat sat on the mat. ") < 20
    True
    >>> len(writer.write("the c", length=7, seed=0))
    12
    """

    tokens: Literal["characters", "pieces"] = setting(
        "characters, or pieces (byte-level BPE)", default="characters", kw_only=False
    )
    vocabulary: int = setting("number of pieces", default=4096)
    context: int = setting("maximum number of tokens to look back at", default=256)
    blocks: int = setting("number of Transformer blocks", default=4)
    heads: int = setting("attention heads per block", default=4)
    size: int = setting("size of the token vectors", default=128)
    head_size: int | None = setting("size of a head's queries; size / heads by default", default=None)
    dropout: float = setting("fraction dropped in training", default=0.1, at_least=0, below=1)
    steps: int = setting("optimizer steps", default=2000)
    batch_size: int = setting("windows of text per step", default=16)
    learning_rate: float = setting("after warm-up; falls along a cosine", default=2e-3, above=0)
    warm: int = 100
    weight_decay: float = 0.1
    validate_every: int = setting("steps between two validations", default=250)
    validation_fraction: float = 0.1

    def fit(
        self,
        text: str | Path,
        y: None = None,
        *,
        checkpoint: str | Path | None = None,
        resume: bool = False,
        tensorboard: str | Path | None = None,
    ) -> Self:
        """Train on a text, or on the content of a file.

        text         a `Path`, or a string: a path if such a file exists or if it looks like one, else the text itself
        checkpoint   a folder for the run, written each `validate_every` steps; with `resume`, a run there is resumed
        tensorboard  a folder for TensorBoard
        """
        seed = self._checked_seed()
        content = text_or_file(text)
        tokenizer = self._train_tokenizer(content)
        ids = torch.tensor(encode_text(tokenizer, content))
        held_out = max(1, round(self.validation_fraction * len(ids)))
        training, validation = ids[:-held_out], ids[-held_out:]
        if len(training) <= self.context or len(validation) < 2:
            raise ValueError(
                f"the text is too short: context={self.context} needs at least {self.context + 1} tokens to train on"
                f" and 2 held out, got {len(training)} and {len(validation)}; give more text, or a smaller context"
            )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = self._build_network(tokenizer)
            monitor = Monitor("learning to write", self.verbose, unit="tokens", tensorboard=tensorboard)
            every = min(self.validate_every, self.steps)  # an epoch of the loop
            run = self._start_run(monitor, checkpoint, resume, seed=seed, data=[content], every=self.validate_every)

            def batches(epoch: int) -> Batches[Tensor, Tensor]:
                steps = min(every, self.steps - epoch * every)
                return window_batches(training, self.context, self.batch_size, steps * self.accumulate, (seed, epoch))

            optimizer = OPTIMIZERS[self.optimizer](model, lr=self.learning_rate, weight_decay=self.weight_decay)
            epochs = math.ceil(self.steps / every)
            recipe = self._recipe(optimizer, epochs, self.steps, lambda batch: batch[:, 1:].numel(), least=0.1)
            validate = partial(mean_loss, model, validation[:_VALIDATED])
            self.history_ = run(model, batches, model.loss, recipe, validate=validate)
        self.tokenizer_ = tokenizer
        self.model_ = model.eval().requires_grad_(False)
        return self

    def write(
        self,
        prompt: str,
        length: int = 200,
        *,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int | None = None,
    ) -> str:
        """The prompt, continued by `length` tokens.

        `temperature`, `top_k` and `top_p` are those of `regard.decoding.Sampling`; one seed gives one text, default: 0.
        """
        more = self.stream(prompt, length, temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)
        return prompt + "".join(more)

    def stream(
        self,
        prompt: str,
        length: int = 200,
        *,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int | None = None,
    ) -> Iterator[str]:
        """What `write` adds to the prompt, as a stream."""
        check_is_fitted(self)
        length = positive("length", length)
        ids = self.tokenizer_.encode(checked_text("prompt", prompt)).ids
        if not ids:
            raise ValueError("prompt must have at least one character, got an empty text")
        sampling = Sampling(temperature, top_k, top_p)  # raises now, not at the first token
        generator = torch.Generator().manual_seed(seed_of(seed))
        return self._continue(ids, length, partial(sample, sampling=sampling, generator=generator))

    @torch.inference_mode()
    def _continue(self, ids: list[int], length: int, sampling: Callable[..., Iterator[Tensor]]) -> Iterator[str]:
        """The text of `length` new tokens, as a stream. When the context is full, its second half starts a new one."""
        decode = tokenizers_package().decoders.DecodeStream(skip_special_tokens=False)
        unknown = self.tokenizer_.token_to_id(UNKNOWN)
        step = self.model_.step if unknown is None else forbid(self.model_.step, [unknown])
        while length:
            ids = ids[-self.context :] if len(ids) < self.context else ids[-max(1, self.context // 2) :]
            now = min(length, self.context + 1 - len(ids))
            prefix = torch.tensor([ids])
            cache = self.model_.begin(prefix[:, :-1], max_length=len(ids) + now)
            for token in sampling(step, cache, prefix[:, -1], length=now):
                ids.append(int(token))
                piece = decode.step(self.tokenizer_, ids[-1])  # None until the bytes of a character are complete
                if piece:
                    yield piece
            length -= now

    def perplexity(self, text: str | Path) -> float:
        """exp of the mean -log p of a text's tokens, given those before them; lower is better.

        Windows of `context` tokens overlap by half.
        """
        check_is_fitted(self)
        ids = torch.tensor(encode_text(self.tokenizer_, text_or_file(text)))
        if len(ids) < 2:
            raise ValueError(f"text must have at least 2 tokens, got {len(ids)}")
        return math.exp(mean_loss(self.model_, ids, overlap=self.context // 2))

    def score(self, text: str | Path, y: None = None) -> float:
        """-log perplexity: higher is better."""
        return -math.log(self.perplexity(text))

    def evidence(self, text: str, top: int = 5) -> TextEvidence:
        """The tokens that each token of a text looked at, in each block and head: the `top` largest weights."""
        check_is_fitted(self)
        encoding = self.tokenizer_.encode(checked_text("text", text))
        count = len(encoding.ids)
        if not 1 <= count <= self.context:
            raise ValueError(f"text must have 1 to {self.context} tokens, the context, got {count}")
        with torch.inference_mode(), watch(self.model_, top=checked_top(top, count, "tokens")) as records:
            self.model_(torch.tensor([encoding.ids]))
        tokens = [text[start:end] or "·" for start, end in encoding.offsets]
        return text_evidence(tokens, [cast(Look, runs[0]) for runs in records.values()])

    def _learned(self) -> State:
        return State({}, module_arrays(self.model_), {"tokenizer": self.tokenizer_.to_str()})

    def _restore(self, config: dict[str, Any], arrays: dict[str, Any]) -> None:
        self.tokenizer_ = tokenizer_from_json(config["tokenizer"])
        self.model_ = restored_module(self._build_network(self.tokenizer_), arrays, assign=True)

    def _train_tokenizer(self, content: str) -> "Tokenizer":
        """A tokenizer for a text; pieces are learned from the part that is not held out."""
        if self.tokens == "characters":
            return character_tokenizer(content)
        training = content[: max(1, round((1 - self.validation_fraction) * len(content)))]
        return bpe_tokenizer(text_chunks(training), self.vocabulary)

    def _build_network(self, tokenizer: "Tokenizer") -> LanguageModel:
        """A network of the settings for these tokens, with random weights."""
        config = TransformerConfig(
            blocks=self.blocks,
            heads=Heads(self.heads, size=self.head_size),
            size=self.size,
            activation=gelu_tanh,
            dropout=self.dropout,
            attention_dropout=self.dropout,
            bias=False,
        )
        return language_model(tokenizer.get_vocab_size(), config, context=self.context)
