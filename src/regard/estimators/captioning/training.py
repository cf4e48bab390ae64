"""The training of a `Captioner`: the encoder of its images, its data, the search for captions, and the validation.

An encoder is trained with the decoder, or frozen. A frozen one encodes each image once; the grids are cached on disk.
"""

import copy
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from regard.data.encoder_cache import cached_grids, fingerprint, image_hash
from regard.data.images import (
    ImageSource,
    as_images,
    describe_left_out,
    encode_captions,
    match_captions,
    read_images,
)
from regard.data.tokenizers import END, PADDING, START, UNKNOWN
from regard.decoding import Batch, decode_batches, forbid
from regard.estimators.captioning.evidence import caption_scores, has_words
from regard.estimators.common import split_held_out
from regard.models.captioner import CaptionDecoder
from regard.models.image_encoders import SmallResNet, check_grid, efficientnet_lite0

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_ENCODERS: dict[str, Callable[[], nn.Module]] = {"small": SmallResNet, "efficientnet-lite0": efficientnet_lite0}
_DEFAULT_SIZE = 224
"""Height and width in pixels of images for an encoder without an `image_size`."""
_IMAGES_PER_BATCH = 64

Grids: TypeAlias = Callable[[Tensor], Tensor]
"""From the indices of images, [batch], to their grids, [batch, cells, channels]."""
_VALIDATION_IMAGES = 500
"""The maximum number of images that are captioned in a validation."""

Captions: TypeAlias = Sequence[str | Sequence[str]]
"""For each image one caption, or several."""


class GridEncoder(nn.Module):
    """An encoder, with the size and the preparation of its images.

    encoder      from prepared images to `[batch, channels, rows, columns]`. If it has them, `image_size` is the height
                 and width of its images, and `prepare` makes its input; else that is `[batch, 3, size, size]` in 0..1
    image_size   instead of the encoder's own
    """

    def __init__(self, encoder: nn.Module, image_size: int | None = None) -> None:
        super().__init__()
        self.encoder = encoder
        self.image_size = int(image_size or getattr(encoder, "image_size", _DEFAULT_SIZE) or _DEFAULT_SIZE)
        self.channels, rows, columns = check_grid(encoder, self.image_size)
        self.shape = rows, columns

    def _get_name(self) -> str:
        return "Sight"  # the name in the fingerprints of caches and checkpoints, where it must not change

    @property
    def frozen(self) -> bool:
        """Whether the encoder has no parameter that requires gradients."""
        return not any(parameter.requires_grad for parameter in self.encoder.parameters())

    def prepare(self, images: NDArray[np.uint8] | Tensor) -> Tensor:
        """The encoder's input, from uint8 images `[batch, size, size, 3]`."""
        if hasattr(self.encoder, "prepare"):
            prepared: Tensor = self.encoder.prepare(images)  # type: ignore[operator]
            return prepared
        return torch.as_tensor(images).movedim(-1, 1).float() / 255  # [batch, 3, size, size]

    def forward(self, prepared: Tensor) -> Tensor:
        grids: Tensor = self.encoder(prepared)
        return grids

    def grids(self, images: NDArray[np.uint8] | Tensor) -> Tensor:
        """The grids of uint8 images, `[batch, cells, channels]`."""
        grids: Tensor = self(self.prepare(images))  # [batch, channels, rows, columns]
        return grids.flatten(2).mT  # [batch, cells, channels]


def check_encoder(name: str, value: object) -> None:
    """Raise unless a setting is the name of an encoder, or a module."""
    if not isinstance(value, nn.Module) and not (isinstance(value, str) and value in _ENCODERS):
        raise ValueError(f"{name} must be {', '.join(_ENCODERS)} or an nn.Module, got {value!r}")


def make_encoder(encoder: str | nn.Module, image_size: int | None) -> GridEncoder:
    """An encoder by name, with new weights; or a copy of a user's encoder."""
    made = _ENCODERS[encoder]() if isinstance(encoder, str) else copy.deepcopy(encoder)
    return GridEncoder(made, image_size)


def encoded_images(encoder: GridEncoder, images: Sequence[ImageSource], mirror: bool = False) -> Grids:
    """Grids that are computed whenever they are used, because the encoder is trained.

    mirror   in training, each time a random half of the images is mirrored left to right
    """
    pixels = torch.from_numpy(read_images(images, encoder.image_size))  # [images, size, size, 3]

    def encode(indices: Tensor) -> Tensor:
        # An image with several captions in the batch is encoded once.
        unique, inverse = torch.unique(indices, return_inverse=True)
        some = pixels[unique]
        if mirror and encoder.training:
            mirrored = torch.rand(len(some)) < 0.5
            some = torch.where(mirrored[:, None, None, None], some.flip(2), some)
        return encoder.grids(some)[inverse]

    return encode


@contextmanager
def open_grids(
    encoder: GridEncoder, images: Sequence[ImageSource], cache: str | Path | None, *, mirror: bool, progress: bool
) -> Iterator[Grids]:
    """The grids of images, for training. Without a cache folder, those of a frozen encoder are removed at the end."""
    if not encoder.frozen:
        yield encoded_images(encoder, images, mirror)
        return
    temporary = tempfile.TemporaryDirectory(prefix="regard-") if cache is None else nullcontext(str(cache))
    with temporary as parent:
        yield cached_grids(images, encoder.eval(), Path(parent) / type(encoder.encoder).__name__, progress=progress)


@torch.inference_mode()
def encode_batches(encoder: GridEncoder, images: Sequence[ImageSource]) -> Iterator[Tensor]:
    """The grids of images, `[some, cells, channels]` at a time."""
    for start in range(0, len(images), _IMAGES_PER_BATCH):
        yield encoder.grids(read_images(images[start : start + _IMAGES_PER_BATCH], encoder.image_size))


def caption_tokens(
    decoder: CaptionDecoder,
    grids: Iterable[Tensor],
    tokenizer: "Tokenizer",
    longest: int,
    *,
    beam: int = 1,
    penalty: float = 1.0,
    progress: Callable[[int], None] = lambda done: None,
) -> list[list[int]]:
    """The tokens of each image's caption, at most `longest`, from batches of grids `[some, cells, channels]`."""

    def batches() -> Iterator[Batch[Any]]:
        first = 0
        for grid in grids:
            yield Batch(range(first, first + len(grid)), decoder.begin(grid), longest + 1)
            first += len(grid)

    unknown = tokenizer.token_to_id(UNKNOWN)
    step = forbid(decoder.step, [PADDING, START] if unknown is None else [PADDING, START, unknown])
    tokens = decode_batches(step, batches(), start=START, end=END, size=beam, penalty=penalty, progress=progress)
    return [ids[:longest] for ids in tokens.values()]  # a caption that did not end has one token more


def caption_text(tokenizer: "Tokenizer", tokens: list[int]) -> str:
    """Tokens as a line of text."""
    return " ".join(tokenizer.decode(tokens).split())


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
    left_out: dict[str, int | list[int]]  # see `prepare_data`

    @property
    def images(self) -> list[ImageSource]:
        """The images to train on, and after them those to validate with."""
        return [example.image for example in (*self.training, *self.validation)]


def prepare_data(
    images: Sequence[ImageSource],
    captions: Captions,
    validation: tuple[Sequence[ImageSource], Captions] | None,
    make_tokenizer: Callable[[list[str]], "Tokenizer"],
    *,
    longest: int,
    validation_fraction: float,
    seed: int,
) -> TrainingData:
    """The data to train and validate with; a warning says what is left out.

    The names of what is left out are part of the format of saved models: "images" are the indices of images without a
    caption, the others are numbers of captions.

    validation   images and captions to validate with; None: a random `validation_fraction` of the images
    """
    images = as_images(images)
    training, without, blank = _examples(images, captions)
    if validation is None:
        indices, held_out = split_held_out(len(training), validation_fraction, seed, "images")
        training, validating = [training[index] for index in indices], [training[index] for index in held_out]
    else:
        validating, *_ = _examples(as_images(validation[0]), validation[1])
    scorable = [example for example in validating if has_words(example.captions)]
    if not scorable:
        raise ValueError(
            f"at least one image to validate with must have a caption with a word, got none in {len(validating)} images"
        )
    tokenizer = make_tokenizer(_all_captions(training))
    caption_images, tokens, skipped = encode_captions(tokenizer, [example.captions for example in training], longest)
    unscored = len(validating) - len(scorable)
    described = describe_left_out(
        {
            f"of {len(images)} images without a caption": [
                str(index) if hasattr(images[index], "shape") else str(images[index]) for index in without
            ],
            "blank captions of images with others": blank,
            "validation images whose captions have no word": unscored,
            "captions that are too long": skipped["long"],
            "captions without a word": skipped["empty"],
        }
    )
    if described:
        warnings.warn(f"left out: {described}", stacklevel=3)
    left_out: dict[str, int | list[int]] = {"images": without, "blank": blank, "unscored": unscored, **skipped}
    return TrainingData(training, scorable[:_VALIDATION_IMAGES], tokenizer, caption_images, tokens, left_out)


def _examples(images: Sequence[ImageSource], captions: Captions) -> tuple[list[Example], list[int], int]:
    indices, matched, without, blank = match_captions(images, captions)
    examples = [Example(images[index], several) for index, several in zip(indices, matched, strict=True)]
    return examples, without, blank


def _all_captions(several: Sequence[Example]) -> list[str]:
    return [caption for example in several for caption in example.captions]


def run_fingerprint(data: TrainingData, encoder: GridEncoder) -> Iterator[str]:
    """Texts that identify what a run is trained and validated with, so that it is not resumed with other data."""
    yield from _all_captions(data.training)
    yield from _all_captions(data.validation)
    yield from (image_hash(image, encoder.image_size) for image in data.images)
    yield fingerprint(encoder)


def validation_score(data: TrainingData, decoder: CaptionDecoder, grids: Grids, longest: int) -> float:
    """Minus the BLEU-4 of captions of the validation images, by greedy search."""
    indices = torch.arange(len(data.training), len(data.images))  # the validation images follow those of training
    batches = map(grids, torch.split(indices, 256))
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
