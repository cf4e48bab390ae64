"""Captions for images, learned from a user's own: Show, Attend and Tell with soft or hard attention.

The encoder is a network of `regard.models.image_encoders` or any other, the decoder `regard.models.captioner`, the loop
`regard.training`, the search `regard.decoding`. What is validated is what is asked for later: captions that the model
wrote itself, by BLEU-4.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, Self

import torch
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted
from torch import nn

from regard.checks import positive
from regard.data import text as texts
from regard.data.captions import as_images, captions_of
from regard.data.encoder_cache import fingerprint, key_of
from regard.data.images import read_images
from regard.data.sentence_pairs import START
from regard.estimators.captioning.decoding import caption_tokens, grids_of, text_of
from regard.estimators.captioning.encoder import Sight, sight
from regard.estimators.captioning.evidence import CaptionEvidence
from regard.estimators.captioning.networks import check_settings, check_sight, make_decoder
from regard.estimators.captioning.scores import caption_scores, has_words
from regard.estimators.captioning.training import Material, learn, material
from regard.estimators.common import check_search, kept_run, restored_history, saved_history
from regard.estimators.settings import saved_settings, seed_of
from regard.models.captioner import CaptionDecoder
from regard.progress import ProgressBar
from regard.saving import read, write
from regard.training import History


class Captioner(BaseEstimator):  # type: ignore[misc]
    """Learns to say what is in an image, and shows where it looked for each word.

    attention       "soft": the mean of all cells; or "hard": one cell, drawn, learned by sampling
    encoder         "small": a small residual network, trained along; "efficientnet-lite0": a pretrained one, frozen;
                    or an nn.Module from images to grids `[batch, channels, rows, columns]`, see `Sight`. One without
                    parameters that need gradients is frozen: it sees each image once
    image_size      the side in pixels that images are cut and scaled to; None: the encoder's own
    cache           a folder for what a frozen encoder gave, to be used again; None: it is kept only while `fit` lasts
    mirror          turn images left to right at random, where the encoder is trained along; not for captions that tell
                    left from right
    tokens          "words": in lower case, without punctuation; or "pieces": byte-level BPE
    least           how often a word must occur to be known
    vocabulary      how many pieces
    longest         the most words of a caption; longer ones are left out, counted and reported
    size, hidden    of the words' vectors, and of the LSTM
    score_size      of the score's hidden layer
    dropout         the share that is dropped of word vectors and of rows that words are read from
    tied            words are read by their own vectors
    spread          λ of the doubly stochastic term, which asks that each cell be looked at about once; 0: off
    samples, reward, entropy, expected   of hard attention, see `HardCaptionDecoder`
    soft_start      the share of its steps, the first ones, in which hard attention learns as soft attention does
    epochs          passes over the captions, in batches of `batch_size`
    learning_rate   of AdamW, after `warm` steps; it falls along a cosine
    smoothing       how much of each target is given to all words alike
    average         the mean of the weights after so many last epochs is tried too, and kept where it validates better
    validation_fraction   of the images, held out, where `fit` is not given any to validate with
    patience        stop after so many epochs without a better validation; None: go on to the end
    random_state    a seed: one seed, one result
    verbose         progress bars, where it takes longer than a second

    After `fit`: `sight_`, `decoder_`, `tokenizer_`, `history_` (validations are -BLEU-4), `left_out_`.

    >>> from regard.data.samples import scenes
    >>> few = scenes(6, seed=0)
    >>> settings = {"least": 1, "size": 8, "hidden": 8, "score_size": 4, "epochs": 1, "verbose": False}
    >>> captioner = Captioner(**settings, random_state=0).fit(few.images, few.captions)
    >>> len(captioner.caption(few.images[:2])), captioner.evidence(few.images[0], "a red circle").weight.shape
    (2, (3, 8, 8))
    """

    sight_: Sight
    decoder_: CaptionDecoder
    history_: History
    left_out_: dict[str, Any]

    def __init__(
        self,
        attention: Literal["soft", "hard"] = "soft",
        *,
        encoder: str | nn.Module = "small",
        image_size: int | None = None,
        cache: str | Path | None = None,
        mirror: bool = False,
        tokens: Literal["words", "pieces"] = "words",
        least: int = 5,
        vocabulary: int = 4000,
        longest: int = 40,
        size: int = 256,
        hidden: int = 512,
        score_size: int = 256,
        dropout: float = 0.5,
        tied: bool = False,
        spread: float = 0.01,
        samples: int = 1,
        reward: float = 1.0,
        entropy: float = 0.002,
        expected: float = 0.5,
        soft_start: float = 0.5,
        epochs: int = 20,
        batch_size: int = 64,
        accumulate: int = 1,
        learning_rate: float = 1e-3,
        warm: int = 200,
        weight_decay: float = 0.01,
        smoothing: float = 0.0,
        clip: float = 5.0,
        average: int = 1,
        validation_fraction: float = 0.05,
        patience: int | None = None,
        random_state: int | None = None,
        verbose: bool = True,
    ) -> None:
        self.attention = attention
        self.encoder = encoder
        self.image_size = image_size
        self.cache = cache
        self.mirror = mirror
        self.tokens = tokens
        self.least = least
        self.vocabulary = vocabulary
        self.longest = longest
        self.size = size
        self.hidden = hidden
        self.score_size = score_size
        self.dropout = dropout
        self.tied = tied
        self.spread = spread
        self.samples = samples
        self.reward = reward
        self.entropy = entropy
        self.expected = expected
        self.soft_start = soft_start
        self.epochs = epochs
        self.batch_size = batch_size
        self.accumulate = accumulate
        self.learning_rate = learning_rate
        self.warm = warm
        self.weight_decay = weight_decay
        self.smoothing = smoothing
        self.clip = clip
        self.average = average
        self.validation_fraction = validation_fraction
        self.patience = patience
        self.random_state = random_state
        self.verbose = verbose

    def fit(
        self,
        images: Sequence[Any],
        captions: Sequence[str | Sequence[str]],
        *,
        validation: tuple[Sequence[Any], Sequence[str | Sequence[str]]] | None = None,
        checkpoint: str | Path | None = None,
        resume: bool = False,
        board: str | Path | None = None,
    ) -> Self:
        """Learn from images and their captions.

        images       paths, or arrays [height, width, 3] or [height, width], uint8 or floats in 0..1
        captions     a text for each image, or several. An image without any is left out, counted and reported
        validation   images and captions to choose the best epoch by; a part of the images where it is not given
        checkpoint   a folder for the run, written after each epoch; with `resume`, a run there goes on
        board        a folder for TensorBoard
        """
        check_settings(self)
        seed = seed_of(self.random_state)
        found = material(self, images, captions, validation, seed)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            seen = sight(self.encoder, self.image_size)
            check_sight(self, seen)
            decoder = make_decoder(self, found.tokenizer.get_vocab_size(), seen)
            kept = kept_run(self, checkpoint, resume, every=1 << 30, seed=seed, data=all_of(found, seen))
            self.history_ = learn(self, found, seen, decoder, seed, kept, board)
        self.tokenizer_, self.left_out_ = found.tokenizer, found.left_out
        self.sight_, self.decoder_ = seen.eval().requires_grad_(False), decoder.eval().requires_grad_(False)
        return self

    def caption(self, images: Sequence[Any], beam: int = 5, penalty: float = 1.0) -> list[str]:
        """What is in each image, in their order.

        beam      how many hypotheses an image has; 1 takes the likeliest word each time
        penalty   how much longer captions are favoured, α of `regard.decoding.beam`
        """
        check_is_fitted(self)
        check_search(beam, penalty)
        images = as_images(images)
        with ProgressBar("writing captions", len(images), shown=self.verbose) as bar:
            found = caption_tokens(
                self.decoder_,
                grids_of(self.sight_, images),
                self.tokenizer_,
                self.longest,
                size=beam,
                penalty=penalty,
                progress=bar.note,
            )
        return [text_of(self.tokenizer_, ids) for ids in found]

    def predict(self, images: Sequence[Any]) -> list[str]:
        """The same, under scikit-learn's name."""
        return self.caption(images)

    def scores(self, images: Sequence[Any], captions: Sequence[str | Sequence[str]], beam: int = 5) -> dict[str, float]:
        """BLEU-1 to BLEU-4 and CIDEr-D, by name, of the captions written, over all references: see `caption_scores`."""
        images = as_images(images)
        kept, said, _ = captions_of(images, captions)
        for place, own in zip(kept, said, strict=True):
            if not has_words(own):
                raise ValueError(f"image {place} cannot be scored: its captions have no word, got {own}")
        return caption_scores(self.caption([images[place] for place in kept], beam), said)

    def score(self, images: Sequence[Any], captions: Sequence[str | Sequence[str]]) -> float:
        """BLEU-4, from 0 to 100."""
        return self.scores(images, captions)["BLEU-4"]

    def evidence(
        self, image: Any, caption: str | None = None, *, top: int | None = None, beam: int = 5
    ) -> CaptionEvidence:
        """Where each word of a caption looked: of the model's own, where none is given.

        top   how many cells of each word its table has; all of them where it is not given

        Of hard attention it is the probability of each cell, when the likeliest was taken before.
        """
        check_is_fitted(self)
        if caption is not None and not isinstance(caption, str):
            raise TypeError(f"caption must be a text, got {type(caption).__name__}")
        if top is not None:
            positive("top", top)
        seen = read_images([image], self.sight_.image_size)
        with torch.inference_mode():
            grid = self.sight_.grids(seen)
        if caption is None:
            [ids] = caption_tokens(self.decoder_, [grid], self.tokenizer_, self.longest, size=beam)
        else:
            ids = self.tokenizer_.encode(caption).ids
        with torch.inference_mode():
            weight = self.decoder_.look(grid, torch.tensor([[START, *ids]]))[0, : len(ids)]
        shape = len(ids), *self.sight_.shape
        words = [self.tokenizer_.decode([one], skip_special_tokens=False).strip() or "·" for one in ids]
        told = text_of(self.tokenizer_, ids)
        return CaptionEvidence(seen[0], told, words, weight.double().numpy().reshape(shape), top)

    def save(self, folder: str | Path) -> Path:
        """Write the model to a folder, from which `regard.load` reads it.

        Of an encoder of your own only the weights are written: `Captioner.load(folder, encoder=…)` reads it again.
        """
        check_is_fitted(self)
        return write(folder, *self.state())

    @classmethod
    def load(cls, folder: str | Path, encoder: nn.Module | None = None) -> Self:
        """The model in a folder; with the encoder that it was made with, where that was a user's own."""
        config, arrays = read(folder)
        if config.get("estimator") != "Captioner":
            kind = config.get("estimator", "run")
            raise ValueError(f"{folder} holds a {kind}, and no Captioner: regard.load reads all that are models")
        with torch.random.fork_rng(devices=[]):
            return cls.from_state(config, arrays, encoder)

    def state(self) -> tuple[dict[str, Any], dict[str, Any], dict[str, str]]:
        """All there is to a fitted model: what JSON can hold, arrays, and the tokenizer."""
        own = isinstance(self.encoder, nn.Module)
        settings = saved_settings(self) | {"cache": None} | ({"encoder": type(self.encoder).__name__} if own else {})
        config = {
            "estimator": "Captioner",
            "settings": settings,
            "own_encoder": own,
            **saved_history(self.history_),
            "left_out": self.left_out_,
        }
        parts = {"decoder": self.decoder_} | ({} if self.encoder == "efficientnet-lite0" else {"sight": self.sight_})
        arrays = {
            f"{part}.{name}": tensor.numpy()
            for part, module in parts.items()
            for name, tensor in module.state_dict().items()
        }
        return config, arrays, {"tokenizer": self.tokenizer_.to_str()}

    @classmethod
    def from_state(cls, config: dict[str, Any], arrays: dict[str, Any], encoder: nn.Module | None = None) -> Self:
        """The model that was saved."""
        settings = dict(config["settings"])
        if encoder is not None and not config["own_encoder"]:
            raise ValueError(f"this model was made with the encoder {settings['encoder']!r}, and needs no other")
        if config["own_encoder"]:
            if encoder is None:
                raise ValueError(
                    f"this model was made with an encoder of your own, {settings['encoder']}, which a folder cannot"
                    " hold: read it by Captioner.load(folder, encoder=…), whose weights do not matter"
                )
            settings["encoder"] = encoder
        captioner = cls(**settings)
        captioner.tokenizer_ = texts.restored(config["tokenizer"])
        captioner.left_out_ = config["left_out"]
        captioner.history_ = restored_history(config)
        seen = sight(captioner.encoder, captioner.image_size)
        decoder = make_decoder(captioner, captioner.tokenizer_.get_vocab_size(), seen)
        for name, module in (("sight", seen), ("decoder", decoder)):
            found = {key.removeprefix(f"{name}."): value for key, value in arrays.items() if key.startswith(f"{name}.")}
            if found or name == "decoder":
                module.load_state_dict({key: torch.from_numpy(array) for key, array in found.items()})
        captioner.sight_, captioner.decoder_ = seen.eval().requires_grad_(False), decoder.eval().requires_grad_(False)
        return captioner


def all_of(found: Material, seen: Sight) -> Iterator[str]:
    """All that a run learns from and is judged by, so that it does not go on with something else."""
    yield from found.lines
    yield from (one for own in found.held_captions for one in own)
    yield from (key_of(image, seen.image_size) for image in [*found.images, *found.held_images])
    yield fingerprint(seen, half=False)
