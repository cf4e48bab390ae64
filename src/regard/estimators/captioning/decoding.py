"""Writing captions of many images at once: grids in batches, and the search over them."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from regard.data.images import read_images
from regard.data.sentence_pairs import END, PADDING, START
from regard.data.text import UNKNOWN
from regard.decoding import Batch, decode_batches, forbid
from regard.estimators.captioning.encoder import Sight
from regard.models.captioner import CaptionDecoder

AT_ONCE = 64
"""Images that are looked at together."""


@torch.inference_mode()
def grids_of(sight: Sight, images: Sequence[Any]) -> Iterator[Tensor]:
    """The grids of images, `[some, cells, channels]` at a time."""
    for start in range(0, len(images), AT_ONCE):
        yield sight.grids(read_images(images[start : start + AT_ONCE], sight.image_size))


def caption_tokens(
    decoder: CaptionDecoder,
    grids: Iterable[Tensor],
    tokenizer: Any,
    longest: int,
    *,
    size: int = 1,
    penalty: float = 1.0,
    progress: Callable[[int], None] = lambda done: None,
) -> list[list[int]]:
    """The tokens of each image's caption, at most `longest`, from grids `[some, cells, channels]` in batches."""

    def batches() -> Iterator[Batch[Any]]:
        first = 0
        for grid in grids:
            yield Batch(range(first, first + len(grid)), decoder.begin(grid), longest + 1)
            first += len(grid)

    unknown = tokenizer.token_to_id(UNKNOWN)
    step = forbid(decoder.step, [PADDING, START] if unknown is None else [PADDING, START, unknown])
    tokens = decode_batches(step, batches(), start=START, end=END, size=size, penalty=penalty, progress=progress)
    return [ids[:longest] for ids in tokens.values()]  # what was cut off has one more: no end came


def text_of(tokenizer: Any, tokens: list[int]) -> str:
    """Tokens as a line of text."""
    return " ".join(tokenizer.decode(tokens).split())
