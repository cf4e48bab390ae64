"""What a `Captioner` trains on: images and captions, split, tokenized and checked; and the score of an epoch."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import torch

from regard.data.encoder_cache import fingerprint, image_hash
from regard.data.images import (
    CaptionBatch,
    ImageSource,
    SkippedCaptions,
    as_images,
    describe_skipped,
    encode_captions,
    match_captions,
    split_images,
)
from regard.data.tokenizers import PADDING
from regard.estimators.captioning.evidence import caption_scores, has_words
from regard.estimators.captioning.networks import GridEncoder, Grids, caption_text, caption_tokens
from regard.models.captioner import CaptionDecoder

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_VALIDATION_IMAGES = 500
"""The maximum number of images that are captioned in a validation."""

Captions: TypeAlias = Sequence[str | Sequence[str]]
"""Of each image a text, or several."""


class Example(NamedTuple):
    """An image with its captions."""

    image: ImageSource
    captions: list[str]


class TrainingData(NamedTuple):
    """What a captioner is trained and validated with."""

    training: list[Example]
    validation: list[Example]
    tokenizer: "Tokenizer"
    caption_images: list[int]  # the index in `training` of the image of each caption
    tokens: list[list[int]]  # of each caption
    skipped: SkippedCaptions

    @property
    def images(self) -> list[ImageSource]:
        """The images to train on, and after them those to validate with."""
        return [example.image for example in (*self.training, *self.validation)]

    @property
    def validation_indices(self) -> torch.Tensor:
        """The indices in `images` of those to validate with."""
        return torch.arange(len(self.training), len(self.training) + len(self.validation))


class Validation(NamedTuple):
    """How the examples to validate with are chosen."""

    given: tuple[Sequence[ImageSource], Captions] | None
    fraction: float  # of the images, if none are given
    seed: int


def prepare_data(
    images: Sequence[ImageSource],
    captions: Captions,
    validation: Validation,
    make_tokenizer: Callable[[list[str]], "Tokenizer"],
    longest: int,
) -> TrainingData:
    """The data to train and validate with; a warning says what is left out."""
    images = as_images(images)
    matched = match_captions(images, captions)
    training = _examples(images, matched.indices, matched.captions)
    if validation.given is None:
        indices, held_out = split_images(len(training), validation.fraction, validation.seed)
        training, validating = [training[index] for index in indices], [training[index] for index in held_out]
    else:
        others = as_images(validation.given[0])
        given = match_captions(others, validation.given[1])
        validating = _examples(others, given.indices, given.captions)
    scorable = [example for example in validating if has_words(example.captions)]
    if not scorable:
        raise ValueError(
            f"at least one image to validate with must have a caption with a word, got none in {len(validating)} images"
        )
    tokenizer = make_tokenizer(_all_captions(training))
    caption_images, tokens, unused = encode_captions(tokenizer, [example.captions for example in training], longest)
    skipped = matched.skipped | unused
    skipped["unscored"] = len(validating) - len(scorable)
    left_out = describe_skipped(skipped, images)
    if left_out:
        warnings.warn(f"left out: {left_out}", stacklevel=3)
    return TrainingData(training, scorable[:_VALIDATION_IMAGES], tokenizer, caption_images, tokens, skipped)


def _examples(images: Sequence[ImageSource], indices: list[int], captions: list[list[str]]) -> list[Example]:
    """Images by index, with their captions."""
    return [Example(images[index], several) for index, several in zip(indices, captions, strict=True)]


def _all_captions(several: Sequence[Example]) -> list[str]:
    """The captions of all examples."""
    return [caption for example in several for caption in example.captions]


def data_of_run(data: TrainingData, encoder: GridEncoder) -> Iterator[str]:
    """Texts that identify what a run is trained and validated with, so that it is not resumed with other data."""
    yield from _all_captions(data.training)
    yield from _all_captions(data.validation)
    yield from (image_hash(image, encoder.image_size) for image in data.images)
    yield fingerprint(encoder, half=False)


def validation_score(data: TrainingData, decoder: CaptionDecoder, grids: Grids, longest: int) -> float:
    """Minus the BLEU-4 of captions of the validation images, by greedy search."""
    batches = map(grids, torch.split(data.validation_indices, 256))
    tokens = caption_tokens(decoder, batches, data.tokenizer, longest)
    captions = [caption_text(data.tokenizer, ids) for ids in tokens]
    scores = caption_scores(captions, [example.captions for example in data.validation])
    return -scores["BLEU-4"] - 1e-6 * scores["BLEU-1"]  # BLEU-1 orders epochs whose BLEU-4 is 0


def warn_of_soft_epoch(best: int, epochs: int, soft: float) -> None:
    """Warn if the best epoch of hard attention, counted from 1, was one of the soft start, before cells were drawn."""
    if 0 < soft < epochs and best <= soft:
        warnings.warn(
            f"epoch {best} of {epochs} has the best validation, but is part of the soft start: drawing cells did not"
            " improve it. More epochs, or another `reward`, may help",
            stacklevel=4,
        )


def count_words(batch: CaptionBatch) -> int:
    """The number of words to predict, including the end."""
    return int((batch.words[:, 1:] != PADDING).sum())
