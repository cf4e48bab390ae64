"""What a `Captioner` returns in addition to captions: where in the image it looked for each word, and scores.

Scores are against all references of each image: BLEU-1 to BLEU-4 by sacreBLEU, and CIDEr-D.

    BLEU-n   = 100 · BP · exp(1/n Σₖ₌₁ⁿ log pₖ)                                        Papineni et al. 2002
    CIDEr-D  = mean over images and n = 1..4 of                                        Vedantam et al. 2015, section 6
               10/m Σⱼ exp(−(l(c) − l(sⱼ))² / 2σ²) · min(g(c), g(sⱼ)) · g(sⱼ) / (‖g(c)‖ ‖g(sⱼ)‖)

BLEU is that of the corpus, from 0 to 100, without smoothing: without a common 4-gram BLEU-4 is 0. The length of the
references is that of the nearest one, of two equally near ones the shorter.

g(s) is the vector of a sentence's n-grams: the count of each, times log(images / images with it in a reference). The m
references of an image are sⱼ, l is the length in words, and σ = 6. As in the authors' program, n-grams are counted, not
divided by the length, and words are not stemmed. It is from 0 to 10; papers often report it times 100.

As in papers on captions, words are in lower case and without punctuation: "A man 's T-shirt ." is a, man, s, t-shirt.
"""

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from regard.checks import optional_import
from regard.estimators.common import largest_weights

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame

WORD = re.compile(r"\w+(?:['’\-]\w+)*")
_MAX_ORDER, _SIGMA = 4, 6.0
"""Words in the longest n-grams, and σ of CIDEr-D."""

Words: TypeAlias = Sequence[str]
_Ngrams: TypeAlias = Counter[tuple[str, ...]]


@dataclass(frozen=True)
class CaptionEvidence:
    """The weights of all cells of the image's grid for each word; those of a word sum to 1.

    >>> import numpy as np
    >>> weight = np.array([[[0.1, 0.9]], [[0.5, 0.5]]])  # two words, a grid of 1 × 2
    >>> evidence = CaptionEvidence(np.zeros((8, 8, 3), np.uint8), "red circle", ["red", "circle"], weight, top=1)
    >>> evidence.to_frame()[["word", "row", "column", "weight"]].values.tolist()
    [['red', 0, 1, 0.9], ['circle', 0, 0, 0.5]]
    """

    image: NDArray[np.uint8]  # [height, width, 3]  as the encoder got it
    caption: str
    words: list[str]  # of the caption, or its pieces
    weight: NDArray[np.float64]  # [words, rows, columns]  from the top left
    top: int | None = None  # the number of cells of each word in `to_frame`; None: all

    def __len__(self) -> int:
        return len(self.words)

    def to_frame(self) -> "DataFrame":
        """A row for each word and cell: index of the word, word, rank, row and column of the cell from 0, weight."""
        import pandas as pd

        count, rows, columns = self.weight.shape
        flat = self.weight.reshape(count, rows * columns)  # [words, cells]
        word, rank, cell = largest_weights(flat, self.top or rows * columns)
        return pd.DataFrame(
            {
                "place": word,
                "word": np.array(self.words, dtype=object)[word],
                "rank": rank,
                "row": cell // columns,
                "column": cell % columns,
                "weight": flat[word, cell],
            }
        )

    def plot(self) -> "list[Axes]":
        """The image, and for each word the image again, bright where the model looked; the axes of the pictures."""
        from regard.plots import image_strip

        return image_strip(self.image, self.words, self.weight)


def caption_scores(captions: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, float]:
    """BLEU-1 to BLEU-4 and CIDEr-D, by name, of one caption for each image against one or more references each.

    >>> references = [["a dog runs on grass"], ["the red car", "a car"]]
    >>> scores = caption_scores(["A dog runs on grass .", "A red car"], references)
    >>> {name: round(score, 1) for name, score in scores.items()}
    {'BLEU-1': 100.0, 'BLEU-2': 91.3, 'BLEU-3': 85.5, 'BLEU-4': 88.9, 'CIDEr-D': 6.3}
    """
    _check_references(captions, references)
    caption_words = [words(caption) for caption in captions]
    reference_words = [[words(reference) for reference in several] for several in references]
    scores = {f"BLEU-{order}": score for order, score in enumerate(bleu(caption_words, reference_words), 1)}
    return scores | {"CIDEr-D": cider_d(caption_words, reference_words)}


def _check_references(captions: Sequence[str], references: Sequence[Sequence[str]]) -> None:
    """Raise unless each image has one caption and at least one reference with a word."""
    if len(captions) != len(references) or not len(captions):
        raise ValueError(
            f"captions and references must have the same length, at least 1, got {len(captions)} and {len(references)}"
        )
    for image, (caption, several) in enumerate(zip(captions, references, strict=True)):
        if isinstance(several, str) or not isinstance(caption, str):
            raise TypeError(
                f"image {image} must have one caption and a list of references, got {caption!r}, {several!r}"
            )
        if not has_words(several):
            raise ValueError(f"image {image} must have a reference with at least one word, got {list(several)}")


def has_words(captions: Sequence[str]) -> bool:
    """Whether any of some captions has a word."""
    return any(words(caption) for caption in captions)


def words(caption: str) -> list[str]:
    """The words that are compared: in lower case, without punctuation.

    >>> words("A man 's T-shirt ; 2 dogs' toys .")
    ['a', 'man', 's', 't-shirt', '2', 'dogs', 'toys']
    """
    return WORD.findall(caption.lower())


def bleu(captions: Sequence[Words], references: Sequence[Sequence[Words]]) -> list[float]:
    """BLEU-1 to BLEU-4 of a corpus."""
    with optional_import("scores of captions need the package sacrebleu"):
        from sacrebleu.metrics.bleu import BLEU
    metric = BLEU(tokenize="none", smooth_method="none", force=True)  # words are separated, and in lower case
    # One stream for the first reference of each image, one for the second, …; None where there are fewer.
    streams = zip_longest(*([" ".join(reference) for reference in several] for several in references))
    counts = metric.corpus_score([" ".join(caption) for caption in captions], [list(stream) for stream in streams])
    lengths = {"sys_len": counts.sys_len, "ref_len": counts.ref_len}
    return [
        BLEU.compute_bleu(counts.counts[:order], counts.totals[:order], **lengths, max_ngram_order=order).score
        for order in range(1, _MAX_ORDER + 1)
    ]


def _count_ngrams(sentence: Words, size: int) -> _Ngrams:
    return Counter(tuple(sentence[start : start + size]) for start in range(len(sentence) - size + 1))


def cider_d(captions: Sequence[Words], references: Sequence[Sequence[Words]]) -> float:
    """CIDEr-D of a corpus. Document frequencies are those of the references: one image alone scores 0."""
    total = 0.0
    for size in range(1, _MAX_ORDER + 1):
        counts = [[_count_ngrams(reference, size) for reference in several] for several in references]
        images: _Ngrams = Counter(ngram for several in counts for ngram in set().union(*several))
        idf = {ngram: math.log(len(references) / count) for ngram, count in images.items()}
        unseen = math.log(len(references))  # as if it were in one image
        for caption, sentences, vectors in zip(captions, references, counts, strict=True):
            ours = {ngram: count * idf.get(ngram, unseen) for ngram, count in _count_ngrams(caption, size).items()}
            for sentence, vector in zip(sentences, vectors, strict=True):
                theirs = {ngram: count * idf[ngram] for ngram, count in vector.items()}
                length_factor = math.exp(-((len(caption) - len(sentence)) ** 2) / (2 * _SIGMA**2))
                total += length_factor * _clipped_cosine(ours, theirs) / len(sentences)
    return 10 * total / (_MAX_ORDER * len(captions))


def _clipped_cosine(ours: dict[tuple[str, ...], float], theirs: dict[tuple[str, ...], float]) -> float:
    """min(a, b) · b / (‖a‖ ‖b‖): an n-gram that is repeated more often than in the reference counts no more."""
    product = sum(min(value, theirs[ngram]) * theirs[ngram] for ngram, value in ours.items() if ngram in theirs)
    norms = math.hypot(*ours.values()) * math.hypot(*theirs.values())
    return product / norms if norms else 0.0
