"""Captions for images, learned from a user's own: Show, Attend and Tell with soft or hard attention.

The encoder is a network of `regard.models.image_encoders` or a user's own, the decoder `regard.models.captioner`, the
loop `regard.training`, the search `regard.decoding`. An epoch is validated by what users get: the BLEU-4 of captions
that the model writes itself.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import torch
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from regard.data.images import CaptionBatch, ImageSource, as_images, caption_batches, match_captions, read_images
from regard.data.text import Batches, checked_text
from regard.data.tokenizers import SPECIAL_TOKENS, START, bpe_tokenizer, tokenizer_from_json, word_tokenizer
from regard.estimators.captioning.evidence import CaptionEvidence, caption_scores, has_words
from regard.estimators.captioning.training import (
    Captions,
    GridEncoder,
    Grids,
    TrainingData,
    caption_text,
    caption_tokens,
    check_encoder,
    encode_batches,
    make_encoder,
    open_grids,
    prepare_data,
    run_fingerprint,
    validation_score,
    warn_of_soft_epoch,
)
from regard.estimators.common import (
    State,
    TrainedEstimator,
    adamw,
    check_search,
    checked_top,
    module_arrays,
    predicted_tokens,
    restored_module,
)
from regard.estimators.settings import saved_settings, setting, with_settings
from regard.models.captioner import CaptionConfig, CaptionDecoder, HardAttention, HardCaptionDecoder
from regard.progress import ProgressBar
from regard.saving import read_folder
from regard.training import History, Monitor

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_SCALE_IMAGES = 500
"""The maximum number of images from which the scaling of a frozen encoder's grids is computed."""


@with_settings
class Captioner(TrainedEstimator):
    """Show, Attend and Tell: captions of images, and where the model looked for each word.

    A user's own encoder is an nn.Module from images to grids `[batch, channels, rows, columns]`, see `GridEncoder`. It
    is frozen if no parameter requires gradients: then it encodes each image once. Settings of hard attention are those
    of `regard.models.captioner.HardAttention`; `soft_start`, a fraction of all steps, becomes its `soft_steps`. Of a
    user's own encoder `save` writes the weights only: load the model with `Captioner.load(folder, encoder=…)`.

    After `fit`: `encoder_`, `decoder_`, `tokenizer_`, `history_` (validations are -BLEU-4), `left_out_`.

    >>> from regard.data.samples import scenes
    >>> few = scenes(6, seed=0)
    >>> settings = {"least": 1, "size": 8, "hidden": 8, "score_size": 4, "epochs": 1, "verbose": False}
    >>> captioner = Captioner(**settings, random_state=0).fit(few.images, few.captions)
    >>> len(captioner.caption(few.images[:2])), captioner.evidence(few.images[0], "a red circle").weight.shape
    (2, (3, 8, 8))
    """

    attention: Literal["soft", "hard"] = setting(
        "soft: mean of all cells; hard: one sampled cell", default="soft", kw_only=False
    )
    encoder: str | nn.Module = setting(
        "small or efficientnet-lite0; in Python also an nn.Module", default="small", check=check_encoder, parse=str
    )
    image_size: int | None = setting("height and width of images in pixels; by default the encoder's", default=None)
    cache: str | Path | None = setting("folder to keep a frozen encoder's grids in", default=None)
    mirror: bool = setting("mirror images at random; not for captions with left or right", default=False)
    tokens: Literal["words", "pieces"] = setting("words (lower case) or pieces (byte-level BPE)", default="words")
    least: int = setting("occurrences of a word to be in the vocabulary", default=5)
    vocabulary: int = setting("number of pieces", default=4000)
    longest: int = setting("most words of a caption; longer are left out", default=40)
    size: int = setting("size of the word vectors", default=256)
    hidden: int = setting("size of the LSTM", default=512)
    score_size: int = setting("hidden size of the attention score", default=256)
    dropout: float = setting("fraction dropped in training", default=0.5, at_least=0, below=1)
    tied: bool = setting("use the word vectors as the output layer", default=False)
    spread: float = setting("weight of the doubly stochastic term", default=0.01, at_least=0)
    samples: int = setting("hard: copies of each caption, each with its own draws", default=1)
    reward: float = setting("hard: weight of the sampled gradient", default=1.0, at_least=0)
    entropy: float = setting("hard: weight of the entropy", default=0.002, at_least=0)
    expected: float = setting("hard: fraction trained by the expected cell", default=0.5, at_least=0, at_most=1)
    soft_start: float = setting("hard: fraction of steps trained softly first", default=0.5, at_least=0, at_most=1)
    epochs: int = setting("passes over the captions", default=20)
    batch_size: int = setting("captions per batch", default=64)
    learning_rate: float = setting("after warm-up; it falls along a cosine", default=1e-3, above=0)
    warm: int = 200
    smoothing: float = setting("label smoothing", default=0.0, at_least=0, below=1)
    clip: float = 5.0
    average: int = setting("last epochs to average, if that is better", default=1)

    def fit(
        self,
        images: Sequence[ImageSource],
        captions: Captions,
        *,
        validation: tuple[Sequence[ImageSource], Captions] | None = None,
        checkpoint: str | Path | None = None,
        resume: bool = False,
        tensorboard: str | Path | None = None,
    ) -> Self:
        """Train on images and their captions.

        images       paths, or arrays [height, width, 3] or [height, width], uint8 or floats in 0..1
        captions     a text for each image, or several. Images without captions are left out; a warning lists them
        validation   images and captions to choose the best epoch by; by default a fraction of the images
        checkpoint   a folder for the run, written after each epoch; with `resume`, the run in it is resumed
        tensorboard  a folder for TensorBoard
        """
        seed = self._checked_seed()
        data = prepare_data(
            images,
            captions,
            validation,
            self._make_tokenizer,
            longest=self.longest,
            validation_fraction=self.validation_fraction,
            seed=seed,
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            encoder = make_encoder(self.encoder, self.image_size)
            self._check_encoder(encoder)
            decoder = self._make_decoder(data.tokenizer.get_vocab_size(), encoder)
            monitor = Monitor("learning to caption", self.verbose, unit="words", tensorboard=tensorboard)
            run = self._start_run(monitor, checkpoint, resume, seed=seed, data=run_fingerprint(data, encoder))
            with open_grids(encoder, data.images, self.cache, mirror=self.mirror, progress=self.verbose) as grids:
                self.history_ = self._train(data, grids, encoder, decoder, seed, run)
        self.tokenizer_, self.left_out_ = data.tokenizer, data.left_out
        self.encoder_, self.decoder_ = encoder.eval().requires_grad_(False), decoder.eval().requires_grad_(False)
        return self

    def _train(
        self,
        data: TrainingData,
        grids: Grids,
        encoder: GridEncoder,
        decoder: CaptionDecoder,
        seed: int,
        run: Callable[..., History],
    ) -> History:
        """Train the decoder, and an encoder that is not frozen."""
        model: nn.Module = decoder if encoder.frozen else nn.ModuleDict({"sight": encoder, "decoder": decoder})
        if encoder.frozen:
            decoder.fit_scaling(grids(torch.randperm(len(data.training))[:_SCALE_IMAGES]))
        optimizer = adamw(model, lr=self.learning_rate, weight_decay=self.weight_decay)

        def batches(epoch: int) -> Batches[list[int], CaptionBatch]:
            return caption_batches(data.caption_images, data.tokens, self.batch_size, (seed, epoch))

        def loss(batch: CaptionBatch) -> Tensor:
            return decoder.loss(grids(batch.images), batch.words, spread=self.spread, smoothing=self.smoothing)

        per_epoch = len(batches(0))
        steps = self.epochs * math.ceil(per_epoch / self.accumulate)
        if isinstance(decoder, HardCaptionDecoder):
            decoder.hard = replace(decoder.hard, soft_steps=round(self.soft_start * self.epochs * per_epoch))
        recipe = self._recipe(
            optimizer, self.epochs, steps, lambda batch: predicted_tokens(batch.words), average=self.average
        )
        history = run(
            model, batches, loss, recipe, validate=lambda: validation_score(data, decoder, grids, self.longest)
        )
        if isinstance(decoder, HardCaptionDecoder) and not history.averaged:
            warn_of_soft_epoch(history.best_epoch + 1, len(history.validation), decoder.hard.soft_steps / per_epoch)
        return history

    def _make_tokenizer(self, lines: list[str]) -> "Tokenizer":
        if self.tokens == "pieces":
            return bpe_tokenizer(lines, self.vocabulary, SPECIAL_TOKENS, lower=True, sentences=True)
        tokenizer = word_tokenizer(lines, self.least, SPECIAL_TOKENS)
        if tokenizer.get_vocab_size() == len(SPECIAL_TOKENS) + 1:
            raise ValueError(f"no word occurs least={self.least} times in {len(lines)} captions: set `least` lower")
        return tokenizer

    def _make_decoder(self, vocabulary: int, encoder: GridEncoder) -> CaptionDecoder:
        sizes = self.size, self.hidden, self.score_size
        config = CaptionConfig(*sizes, encoder.shape, dropout=self.dropout, tied=self.tied)
        if self.attention == "soft":
            return CaptionDecoder(vocabulary, encoder.channels, config)
        hard = HardAttention(self.samples, self.reward, self.entropy, self.expected)
        return HardCaptionDecoder(vocabulary, encoder.channels, config, hard)

    def _check_encoder(self, encoder: GridEncoder) -> None:
        """Raise on settings that need a frozen encoder, or one that is trained."""
        if encoder.frozen and self.mirror:
            raise ValueError("mirror=True needs an encoder that is trained; a frozen one encodes each image only once")
        if not encoder.frozen and self.cache is not None:
            raise ValueError("cache needs a frozen encoder; the grids of one that is trained cannot be cached")

    def caption(self, images: Sequence[ImageSource], beam: int = 5, penalty: float = 1.0) -> list[str]:
        """A caption of each image, in their order.

        beam      the number of hypotheses of an image; 1 is the greedy search
        penalty   length penalty: the larger, the longer the captions; α of `regard.decoding.beam`
        """
        check_is_fitted(self)
        check_search(beam, penalty)
        images = as_images(images)
        with ProgressBar("writing captions", len(images), shown=self.verbose) as bar:
            tokens = caption_tokens(
                self.decoder_,
                encode_batches(self.encoder_, images),
                self.tokenizer_,
                self.longest,
                beam=beam,
                penalty=penalty,
                progress=bar.update,
            )
        return [caption_text(self.tokenizer_, ids) for ids in tokens]

    def predict(self, images: Sequence[ImageSource]) -> list[str]:
        """The same as `caption`, under scikit-learn's name."""
        return self.caption(images)

    def scores(self, images: Sequence[ImageSource], captions: Captions, beam: int = 5) -> dict[str, float]:
        """BLEU-1 to BLEU-4 and CIDEr-D, by name, of the model's captions: see `caption_scores`."""
        images = as_images(images)
        indices, references, *_ = match_captions(images, captions)
        for index, several in zip(indices, references, strict=True):
            if not has_words(several):
                raise ValueError(f"captions of image {index} must have a word to be scored, got {several}")
        return caption_scores(self.caption([images[index] for index in indices], beam), references)

    def score(self, images: Sequence[ImageSource], captions: Captions) -> float:
        """BLEU-4, from 0 to 100."""
        return self.scores(images, captions)["BLEU-4"]

    def evidence(
        self, image: ImageSource, caption: str | None = None, *, top: int | None = None, beam: int = 5
    ) -> CaptionEvidence:
        """Where the model looked for each word of a caption; by default of its own.

        top   the number of cells of each word in the table; all by default

        The weights of hard attention are the probabilities of the cells, given the likeliest cells of earlier words.
        """
        check_is_fitted(self)
        text = None if caption is None else checked_text("caption", caption)
        checked_top(top, 1, "cells")
        pixels = read_images([image], self.encoder_.image_size)
        with torch.inference_mode():
            grid = self.encoder_.grids(pixels)
        if text is None:
            [ids] = caption_tokens(self.decoder_, [grid], self.tokenizer_, self.longest, beam=beam)
        else:
            ids = self.tokenizer_.encode(text).ids
        with torch.inference_mode():
            weight = self.decoder_.look(grid, torch.tensor([[START, *ids]]))[0, : len(ids)]  # [words, cells]
        cells = weight.double().numpy().reshape(len(ids), *self.encoder_.shape)  # [words, rows, columns]
        words = [self.tokenizer_.decode([one], skip_special_tokens=False).strip() or "·" for one in ids]
        return CaptionEvidence(pixels[0], caption_text(self.tokenizer_, ids), words, cells, top)

    @classmethod
    def load(cls, folder: str | Path, encoder: nn.Module | None = None) -> Self:
        """The model in a folder. A user's own encoder must be passed again; its weights are replaced."""
        config, arrays = read_folder(folder)
        if config.get("estimator") != "Captioner":
            name = config.get("estimator", "training checkpoint")
            raise ValueError(f"{folder} must hold a Captioner, got a {name}: use regard.load")
        with torch.random.fork_rng(devices=[]):
            return cls.from_state(config, arrays, encoder)

    @classmethod
    def from_state(cls, config: dict[str, Any], arrays: dict[str, Any], encoder: nn.Module | None = None) -> Self:
        """The model that `state` was called on."""
        name = config["settings"]["encoder"]
        if encoder is not None and not config["own_encoder"]:
            raise ValueError(f"encoder must not be passed: the model was saved with the encoder {name!r}")
        if encoder is None and config["own_encoder"]:
            raise ValueError(
                f"the model was saved with your own encoder, {name}, which a folder cannot hold:"
                " load it with Captioner.load(folder, encoder=…); only the weights are replaced"
            )
        settings = config["settings"] | ({} if encoder is None else {"encoder": encoder})
        return super().from_state({**config, "settings": settings}, arrays)

    def _learned(self) -> State:
        own = isinstance(self.encoder, nn.Module)
        settings = saved_settings(self) | {"cache": None} | ({"encoder": type(self.encoder).__name__} if own else {})
        config = {"settings": settings, "own_encoder": own, "left_out": self.left_out_}
        arrays = module_arrays(self.decoder_, "decoder.")
        if self.encoder != "efficientnet-lite0":  # its weights are in a package
            arrays |= module_arrays(self.encoder_, "sight.")
        return State(config, arrays, {"tokenizer": self.tokenizer_.to_str()})

    def _restore(self, config: dict[str, Any], arrays: dict[str, Any]) -> None:
        self.tokenizer_ = tokenizer_from_json(config["tokenizer"])
        self.left_out_ = config["left_out"]
        encoder = make_encoder(self.encoder, self.image_size)
        decoder = self._make_decoder(self.tokenizer_.get_vocab_size(), encoder)
        self.decoder_ = restored_module(decoder, arrays, "decoder.")
        if any(name.startswith("sight.") for name in arrays):
            restored_module(encoder, arrays, "sight.")
        self.encoder_ = encoder.eval().requires_grad_(False)
