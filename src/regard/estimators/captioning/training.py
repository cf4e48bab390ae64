"""How a `Captioner` learns: what of images and captions can be learned from, and the training on it."""

import math
import warnings
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from regard.data import text as texts
from regard.data.captions import CaptionBatch, CaptionBatches, as_images, captions_of, held_out, said_of, usable
from regard.data.sentence_pairs import PADDING, SPECIAL
from regard.estimators.captioning.decoding import caption_tokens, text_of
from regard.estimators.captioning.encoder import Kept, Shown, Sight, kept
from regard.estimators.captioning.scores import caption_scores, has_words
from regard.estimators.common import adamw
from regard.models.captioner import CaptionDecoder
from regard.models.hard_captioner import HardCaptionDecoder
from regard.training import Checkpoint, History, Monitor, ProcessGroup, Recipe, train, warm_cosine

MEASURED = 500
"""Images by whose grids those of a frozen encoder are scaled."""
VALIDATED = 500
"""Images that a validation writes captions of."""


class Material(NamedTuple):
    """What is learned from."""

    images: list[Any]
    lines: list[str]  # all captions
    places: list[int]  # the image of each caption that can be learned from
    coded: list[list[int]]  # its tokens
    held_images: list[Any]  # to validate with
    held_captions: list[list[str]]
    tokenizer: Any
    left_out: dict[str, Any]


def material(settings: Any, images: Sequence[Any], captions: Sequence[Any], validation: Any, seed: int) -> Material:
    """What a captioner of these settings learns from; what it does not is reported."""
    images = as_images(images)
    kept, said, left_out = captions_of(images, captions)
    shown = [images[place] for place in kept]
    if validation is None:
        (shown, said), (held, right) = held_out(shown, said, settings.validation_fraction, seed)
    else:
        others = as_images(validation[0])
        places, right, _ = captions_of(others, validation[1])
        held = [others[place] for place in places]
    held, right = scorable(held, right, left_out)
    lines = [one for own in said for one in own]
    tokenizer = make_tokenizer(settings, lines)
    places, coded, unused = usable(tokenizer, said, settings.longest)
    left_out |= unused
    if said_of(left_out, images):
        warnings.warn(f"left out: {said_of(left_out, images)}", stacklevel=3)
    return Material(shown, lines, places, coded, held[:VALIDATED], right[:VALIDATED], tokenizer, left_out)


def scorable(images: list[Any], said: list[list[str]], left_out: dict[str, Any]) -> tuple[list[Any], list[list[str]]]:
    """Images to validate with, and their captions; those without a word in any are left out."""
    kept = [place for place, own in enumerate(said) if has_words(own)]
    if not kept:
        raise ValueError(f"no image is left to validate with: of {len(images)}, none has a caption with a word in it")
    left_out["unscored"] = len(images) - len(kept)
    return [images[place] for place in kept], [said[place] for place in kept]


def make_tokenizer(settings: Any, lines: list[str]) -> Any:
    """Tokens for captions."""
    if settings.tokens == "pieces":
        return texts.pieces(lines, settings.vocabulary, SPECIAL, lower=True, sentences=True)
    made = texts.words(lines, settings.least, SPECIAL)
    if made.get_vocab_size() == len(SPECIAL) + 1:
        raise ValueError(f"no word occurs {settings.least} times in {len(lines)} captions: set `least` lower")
    return made


def learn(
    settings: Any,
    found: Material,
    seen: Sight,
    decoder: CaptionDecoder,
    seed: int,
    checkpoint: Checkpoint | None,
    board: str | Path | None,
) -> History:
    """Trains the decoder, and an encoder that is not frozen along with it."""
    images = [*found.images, *found.held_images]
    looking: AbstractContextManager[Kept | Shown] = (
        kept(seen, images, settings.cache, progress=settings.verbose)
        if seen.frozen
        else nullcontext(Shown(seen, images, settings.mirror))
    )
    with looking as grids:
        if seen.frozen:
            decoder.adapt(grids(torch.randperm(len(found.images))[:MEASURED]))
        model: nn.Module = decoder if seen.frozen else nn.ModuleDict({"sight": seen, "decoder": decoder})
        optimizer = adamw(model, settings.learning_rate, settings.weight_decay)

        def batches(epoch: int) -> CaptionBatches:
            return CaptionBatches(found.places, found.coded, settings.batch_size, (seed, epoch))

        def loss(batch: CaptionBatch) -> Tensor:
            return decoder.loss(grids(batch.images), batch.words, spread=settings.spread, smoothing=settings.smoothing)

        steps = settings.epochs * math.ceil(len(batches(0)) / settings.accumulate)
        if isinstance(decoder, HardCaptionDecoder):
            decoder.soft_steps = round(settings.soft_start * settings.epochs * len(batches(0)))
        history = train(
            model,
            batches,
            loss,
            Recipe(
                optimizer,
                settings.epochs,
                schedule=warm_cosine(optimizer, steps, warm=min(settings.warm, steps), least=0.02),
                clip=settings.clip,
                accumulate=settings.accumulate,
                count=words_of,
                average=settings.average,
                patience=settings.patience,
            ),
            validate=lambda: validated(settings, found, decoder, grids),
            monitor=Monitor("learning to caption", settings.verbose, unit="words", tensorboard=board),
            checkpoint=checkpoint,
            group=ProcessGroup.from_environment(),
        )
        if isinstance(decoder, HardCaptionDecoder) and not history.averaged:
            check_drawn(history.best_epoch + 1, len(history.validation), decoder.soft_steps / len(batches(0)))
        return history


def validated(settings: Any, found: Material, decoder: CaptionDecoder, grids: Kept | Shown) -> float:
    """-BLEU-4 of the captions of images that were held out, which stand behind those that are learned from."""
    first = len(found.images)
    some = torch.split(torch.arange(first, first + len(found.held_images)), 256)
    tokens = caption_tokens(decoder, map(grids, some), found.tokenizer, settings.longest)
    scores = caption_scores([text_of(found.tokenizer, ids) for ids in tokens], found.held_captions)
    return -scores["BLEU-4"] - 1e-6 * scores["BLEU-1"]  # which tells those apart that have no BLEU-4


def check_drawn(kept: int, epochs: int, soft: float) -> None:
    """Who asked for hard attention is told where the best epoch is one that has not drawn yet."""
    if 0 < soft < epochs and kept <= soft:
        warnings.warn(
            f"epoch {kept} of {epochs} validated best, and was still of the soft start: those that drew cells did not"
            " become better. More epochs, or another `reward`, may help",
            stacklevel=4,
        )


def words_of(batch: CaptionBatch) -> int:
    """How many words are to be said."""
    return int((batch.words[:, 1:] != PADDING).sum())
