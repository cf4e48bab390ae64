"""A language model on a user's own text: learn from a file, write on, and show what each token looked at.

The model is `regard.models.language`, the loop `regard.training`, writing `regard.decoding`. A text is cut into windows
of `context` + 1 tokens, drawn at random; the last part of it is held out, and the state that says it best is kept.
"""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, Self

import torch
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from regard.checks import positive
from regard.data.text import checked_text, text_or_file
from regard.data.tokenizers import (
    UNKNOWN,
    bpe_tokenizer,
    character_tokenizer,
    encode_text,
    text_chunks,
    tokenizer_from_json,
    tokenizers_package,
)
from regard.decoding import forbid, sample
from regard.decoding.sampling import check_sampling
from regard.estimators.common import (
    OPTIMIZERS,
    restored_history,
    run_checkpoint,
    saved_history,
)
from regard.estimators.evidence import checked_top
from regard.estimators.settings import Seeded, Training, check_settings, saved_settings, seed_of, setting, with_settings
from regard.estimators.writing.batches import Windows, mean_loss
from regard.estimators.writing.evidence import TextEvidence, looked_at
from regard.layers.watch import watch
from regard.models.language import LanguageModel, language_model
from regard.saving import to_array, write_folder
from regard.training import Monitor, ProcessGroup, Recipe, train, warm_cosine

VALIDATED = 1 << 16
"""Tokens of the held-out part that a validation reads."""


@with_settings
class Writer(Training, Seeded, BaseEstimator):  # type: ignore[misc]
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
    context: int = setting("number of tokens that it can look back at", default=256)
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
        """Learn from a text, or from a file of it.

        text         a path of a file, or, where it has more than one line or no such file could be, the text itself
        checkpoint   a folder for the run, written each `validate_every` steps; with `resume`, a run there goes on
        tensorboard  a folder for TensorBoard
        """
        check_settings(self)
        content = text_or_file(text)
        seed = seed_of(self.random_state)
        tokenizer = self.make_tokenizer(content)
        ids = torch.tensor(encode_text(tokenizer, content))
        held = max(1, round(self.validation_fraction * len(ids)))
        learned, validated = ids[:-held], ids[-held:]
        self.check_length(len(learned), len(validated))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = self.make_model(tokenizer)
            every = min(self.validate_every, self.steps)
            optimizer = OPTIMIZERS[self.optimizer](model, self.learning_rate, self.weight_decay)

            def windows(epoch: int) -> Windows:
                steps = min(every, self.steps - epoch * every)
                return Windows(learned, self.context, self.batch_size, steps * self.accumulate, (seed, epoch))

            history = train(
                model,
                windows,
                model.loss,
                Recipe(
                    optimizer,
                    math.ceil(self.steps / every),
                    schedule=warm_cosine(optimizer, self.steps, warm=min(self.warm, self.steps)),
                    clip=self.clip,
                    accumulate=self.accumulate,
                    count=lambda batch: batch[:, 1:].numel(),
                    patience=self.patience,
                ),
                validate=lambda: mean_loss(model, validated[:VALIDATED]),
                monitor=Monitor("learning to write", self.verbose, unit="tokens", tensorboard=tensorboard),
                checkpoint=run_checkpoint(self, checkpoint, resume, every=every, seed=seed, data=[content]),
                group=ProcessGroup.from_environment(),
            )
        self.tokenizer_, self.history_ = tokenizer, history
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
        """The prompt, and so many tokens more.

        `temperature`, `top_k` and `top_p` are those of `regard.decoding.sample`; one seed gives one text, 0 where none
        is given.
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
        """What `write` adds to the prompt, as it comes."""
        check_is_fitted(self)
        length = positive("length", length)
        ids = self.tokenizer_.encode(checked_text("prompt", prompt)).ids
        if not ids:
            raise ValueError("there must be something to go on from: give a prompt of at least one character")
        check_sampling(temperature, top_k, top_p)  # now, not when the first token is asked for
        generator = torch.Generator().manual_seed(seed_of(seed))
        settings: dict[str, Any] = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "generator": generator}
        return self.written(ids, length, settings)

    @torch.inference_mode()
    def written(self, ids: list[int], length: int, settings: dict[str, Any]) -> Iterator[str]:
        """The text of new tokens. Where the context is full, its later half is read again."""
        decode = tokenizers_package().decoders.DecodeStream(skip_special_tokens=False)
        unknown = self.tokenizer_.token_to_id(UNKNOWN)
        step = self.model_.step if unknown is None else forbid(self.model_.step, [unknown])
        while length:
            ids = ids[-self.context :] if len(ids) < self.context else ids[-max(1, self.context // 2) :]
            now = min(length, self.context + 1 - len(ids))
            before = torch.tensor([ids])
            cache = self.model_.begin(before[:, :-1], max_length=len(ids) + now)
            for token in sample(step, cache, before[:, -1], length=now, **settings):
                ids.append(int(token))
                piece = decode.step(self.tokenizer_, ids[-1])
                if piece:
                    yield piece
            length -= now

    def perplexity(self, text: str | Path) -> float:
        """exp of the mean -log p of a text's tokens, each given up to `context` before it; lower is better.

        The text is read in windows of `context` tokens that overlap by half.
        """
        check_is_fitted(self)
        ids = torch.tensor(encode_text(self.tokenizer_, text_or_file(text)))
        if len(ids) < 2:
            raise ValueError(f"a text of at least 2 tokens is needed, got {len(ids)}")
        return math.exp(mean_loss(self.model_, ids, overlap=self.context // 2))

    def score(self, text: str | Path, y: None = None) -> float:
        """-log perplexity: higher is better."""
        return -math.log(self.perplexity(text))

    def evidence(self, text: str, top: int = 5) -> TextEvidence:
        """What each token of a text looked at, in each block and head: the `top` tokens, and the weight of the rest."""
        check_is_fitted(self)
        coded = self.tokenizer_.encode(checked_text("text", text))
        if not 1 <= len(coded.ids) <= self.context:
            raise ValueError(
                f"a text of 1 to {self.context} tokens, the context, can be looked at, got {len(coded.ids)}"
            )
        with torch.inference_mode(), watch(self.model_, top=checked_top(top, len(coded.ids), "tokens")) as seen:
            self.model_(torch.tensor([coded.ids]))
        shown = [text[start:end] or "·" for start, end in coded.offsets]
        return looked_at(shown, [found[0] for found in seen.values()])

    def save(self, folder: str | Path) -> Path:
        """Write the model to a folder, from which `regard.load` reads it."""
        check_is_fitted(self)
        return write_folder(folder, *self.state())

    def state(self) -> tuple[dict[str, Any], dict[str, Any], dict[str, str]]:
        """All there is to a fitted model: what JSON can hold, arrays, and the tokenizer."""
        config = {"estimator": "Writer", "settings": saved_settings(self), **saved_history(self.history_)}
        arrays = {name: to_array(tensor) for name, tensor in self.model_.state_dict().items()}
        return config, arrays, {"tokenizer": self.tokenizer_.to_str()}

    @classmethod
    def from_state(cls, config: dict[str, Any], arrays: dict[str, Any]) -> Self:
        """The model that was saved."""
        writer = cls(**config["settings"])
        writer.tokenizer_ = tokenizer_from_json(config["tokenizer"])
        writer.history_ = restored_history(config)
        model = writer.make_model(writer.tokenizer_)
        model.load_state_dict({name: torch.as_tensor(array) for name, array in arrays.items()}, assign=True)
        writer.model_ = model.eval().requires_grad_(False)
        return writer

    def check_length(self, learned: int, validated: int) -> None:
        """There must be a window to learn from, and something to be held out."""
        if learned <= self.context or validated < 2:
            raise ValueError(
                f"the text is too short: {learned} tokens to learn from and {validated} held out, where a context of"
                f" {self.context} needs at least {self.context + 1} and 2; give more text, or a smaller context"
            )

    def make_tokenizer(self, content: str) -> Any:
        """Tokens for a text; pieces are learned from the part that is not held out."""
        if self.tokens == "characters":
            return character_tokenizer(content)
        part = content[: max(1, round((1 - self.validation_fraction) * len(content)))]
        return bpe_tokenizer(text_chunks(part), self.vocabulary)

    def make_model(self, tokenizer: Any) -> LanguageModel:
        """A model of the settings for these tokens, with new weights."""
        return language_model(
            tokenizer.get_vocab_size(),
            context=self.context,
            blocks=self.blocks,
            heads=self.heads,
            size=self.size,
            head_size=self.head_size,
            dropout=self.dropout,
        )
