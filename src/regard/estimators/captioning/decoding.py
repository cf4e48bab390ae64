"""Writing captions of many images at once: grids in batches, and the search over them."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from regard.data.images import read_images
from regard.data.sentence_pairs import END, PADDING, START
from regard.data.text import UNKNOWN
from regard.decoding import beam, forbid, greedy
from regard.estimators.captioning.encoder import Sight
from regard.models.captioner import CaptionDecoder

AT_ONCE = 64
"""Images that are looked at together."""


@torch.inference_mode()
def grids_of(sight: Sight, images: Sequence[Any]) -> Iterator[Tensor]:
    """The grids of images, `[some, cells, channels]` at a time."""
    for start in range(0, len(images), AT_ONCE):
        yield sight.grids(read_images(images[start : start + AT_ONCE], sight.image_size))


@torch.inference_mode()
def tokens_told(
    decoder: CaptionDecoder, grid: Tensor, tokenizer: Any, longest: int, *, size: int = 1, penalty: float = 1.0
) -> list[list[int]]:
    """What a decoder says of each grid, at most so many tokens, without the end; size 1 is the greedy search."""
    unknown = tokenizer.token_to_id(UNKNOWN)
    step = forbid(decoder.step, [PADDING, START] if unknown is None else [PADDING, START, unknown])
    state, start = decoder.begin(grid), torch.full((len(grid),), START)
    if size == 1:
        best = greedy(step, state, start, end=END, length=longest + 1)
    else:
        best = [some[0] for some in beam(step, state, start, end=END, length=longest + 1, size=size, penalty=penalty)]
    return [[token for token in found.tokens if token != END][:longest] for found in best]


def told(decoder: CaptionDecoder, grid: Tensor, tokenizer: Any, longest: int, **search: Any) -> list[str]:
    """The same, in one line each."""
    return [text_of(tokenizer, tokens) for tokens in tokens_told(decoder, grid, tokenizer, longest, **search)]


def text_of(tokenizer: Any, tokens: list[int]) -> str:
    """Tokens as a line of text."""
    return " ".join(tokenizer.decode(tokens).split())
