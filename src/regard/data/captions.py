"""Images with their captions, as a captioner learns from them.

Captions are a text for each image, or several; a batch is of captions of about one length, so that little of it is
padding, each with the place of its image.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from regard.data.sentence_pairs import END, START, padded
from regard.data.tables import quote_names

if TYPE_CHECKING:
    from tokenizers import Tokenizer


Array = Any


class CaptionBatch(NamedTuple):
    """Some captions as a decoder takes them."""

    images: Tensor  # [rows]  the place of each one's image
    words: Tensor  # [rows, m + 1], from START to END, padded behind


class CaptionBatches:
    """The batches of an epoch: captions of about one length, so many at most, drawn by a seed.

    images     the place of each caption's image
    captions   the tokens of each, without START and END
    """

    def __init__(
        self, images: Sequence[int], captions: Sequence[list[int]], size: int, seed: tuple[int, int] = (0, 0)
    ) -> None:
        self.images, self.captions = np.asarray(images), captions
        random = np.random.default_rng(seed)
        order = np.lexsort((random.random(len(captions)), np.array([len(caption) for caption in captions])))
        self.groups = [order[start : start + size] for start in range(0, len(order), size)]
        random.shuffle(self.groups)

    def __len__(self) -> int:
        return len(self.groups)

    def __iter__(self) -> Iterator[CaptionBatch]:
        for group in self.groups:
            yield caption_batch(self.images[group], [self.captions[place] for place in group])


def caption_batch(images: Sequence[int] | Array, captions: Sequence[Sequence[int]]) -> CaptionBatch:
    """Captions of tokens as a batch.

    >>> caption_batch([4, 7], [[8], [9, 9]]).words.tolist()
    [[1, 8, 2, 0], [1, 9, 9, 2]]
    """
    return CaptionBatch(torch.as_tensor(images), padded([[START, *caption, END] for caption in captions]))


def as_images(images: Sequence[Any]) -> Sequence[Any]:
    """Images by their places, once they are several: paths, arrays, or one array of them all.

    >>> import pandas as pd
    >>> as_images(pd.Series(["a.jpg", "b.jpg"], index=[1, 0]))[0]
    'a.jpg'
    """
    if isinstance(images, str | bytes) or not hasattr(images, "__len__") or not hasattr(images, "__getitem__"):
        raise TypeError(f"images must be a list of paths or arrays, got {type(images).__name__}: put one in a list")
    shape = getattr(images, "shape", None)
    if shape is not None and len(shape) in (2, 3):
        raise ValueError(f"images must be several, [count, height, width, 3], got one array of shape {list(shape)}")
    return images if shape is not None and len(shape) == 4 else list(images)


def captions_of(images: Sequence[Any], captions: Sequence[Any]) -> tuple[list[int], list[list[str]], dict[str, Any]]:
    """Which images have captions, what these are, and what was left out, by place from 0.

    captions   for each image a text, or several; what is None, NaN or blank is none
    """
    images = as_images(images)
    if isinstance(captions, str) or not hasattr(captions, "__len__"):
        raise TypeError("captions must be a list: for each image a text, or a list of texts")
    if len(images) != len(captions):
        raise ValueError(f"each image needs its captions, got {len(images)} images and captions of {len(captions)}")
    kept, said, idle, blank = [], [], [], 0
    for place, own in enumerate(captions):
        several = [own] if isinstance(own, str) or not isinstance(own, Iterable) else list(own)
        wrong = next((one for one in several if not isinstance(one, str) and not is_none(one)), None)
        if wrong is not None:
            raise TypeError(f"captions must be texts, got {wrong!r} for image {place}")
        told = [one.strip() for one in several if isinstance(one, str) and one.strip()]
        if told:
            blank += len(several) - len(told)
            kept.append(place)
            said.append(told)
        else:
            idle.append(place)
    if not kept:
        raise ValueError(f"there must be an image with a caption, got {len(images)} images, none with one")
    return kept, said, {"images": idle, "blank": blank}


def is_none(caption: Any) -> bool:
    """Whether it is what stands for no text: None, or the NaN of an empty cell."""
    return caption is None or (isinstance(caption, float) and caption != caption)


def held_out(
    images: Sequence[Any], said: Sequence[list[str]], fraction: float, seed: int
) -> tuple[tuple[list[Any], list[list[str]]], tuple[list[Any], list[list[str]]]]:
    """Images and captions to learn from, and a fraction of them, drawn by a seed, to validate with."""
    count = max(1, round(fraction * len(images)))
    if count >= len(images):
        raise ValueError(f"{count} of {len(images)} images are held out to validate with, which leaves none: give more")
    order = np.random.default_rng(seed).permutation(len(images))
    first, second = (np.sort(part).tolist() for part in (order[count:], order[:count]))
    return ([images[i] for i in first], [said[i] for i in first]), (
        [images[i] for i in second],
        [said[i] for i in second],
    )


def usable(
    tokenizer: "Tokenizer", said: Sequence[list[str]], longest: int
) -> tuple[list[int], list[list[int]], dict[str, int]]:
    """The image and the tokens of each caption that can be learned from, and how many are too long or empty."""
    places = [place for place, own in enumerate(said) for _ in own]
    coded = [found.ids for found in tokenizer.encode_batch_fast([one for own in said for one in own])]
    left = {"long": sum(len(ids) > longest for ids in coded), "empty": sum(not ids for ids in coded)}
    kept = [number for number, ids in enumerate(coded) if 0 < len(ids) <= longest]
    if not kept:
        raise ValueError(
            f"no caption is left to learn from: of {len(coded)}, {left['long']} have more than {longest} words,"
            f" `longest`, and {left['empty']} have none"
        )
    return [places[number] for number in kept], [coded[number] for number in kept], left


def said_of(left_out: dict[str, Any], images: Sequence[Any]) -> str:
    """What was left out, in words; nothing where nothing was."""
    parts = []
    if left_out["images"]:
        names = [
            str(images[place]) if not hasattr(images[place], "shape") else str(place) for place in left_out["images"]
        ]
        parts.append(f"{len(names)} of {len(images)} images without a caption ({quote_names(names, 5)})")
    if left_out.get("blank"):
        parts.append(f"{left_out['blank']} blank captions beside others")
    if left_out.get("unscored"):
        parts.append(f"{left_out['unscored']} images to validate with, whose captions have no word")
    if left_out.get("long"):
        parts.append(f"{left_out['long']} captions that are too long")
    if left_out.get("empty"):
        parts.append(f"{left_out['empty']} captions without a word")
    return ", ".join(parts)
