"""How near captions are to what people wrote: BLEU-1 to 4 and CIDEr-D, over all references of each image.

    BLEU-n   = 100 · BP · exp(1/n Σₖ₌₁ⁿ log pₖ)                                        Papineni et al. 2002
    CIDEr-D  = mean over images and n = 1..4 of                                        Vedantam et al. 2015, section 6
               10/m Σⱼ exp(−(l(c) − l(sⱼ))² / 2σ²) · min(g(c), g(sⱼ)) · g(sⱼ) / (‖g(c)‖ ‖g(sⱼ)‖)

pₖ is the share of all captions' k-grams that are in a reference of the image, each at most as often as in the one that
has it most often; BP = exp(min(0, 1 − r/c)) for c words in all captions, and r in the references that are nearest in
length, of two the shorter. Nothing is smoothed: without a single common 4-gram BLEU-4 is 0.

g(s) is the vector of the sentence's n-grams, how often each occurs times log(images / images with it in a reference);
the m references of the image are sⱼ, l is the length in words, and σ = 6. As in the authors' program, n-grams are
counted, not divided by the length, and words are not stemmed. It goes from 0 to 10; papers often give it times 100.

Words are in lower case and without punctuation, as papers on captions have it: "A man 's T-shirt ." is a, man, s,
t-shirt. BLEU is from 0 to 100.
"""

import math
import re
from collections import Counter
from collections.abc import Sequence

WORD = re.compile(r"\w+(?:['’\-]\w+)*")
LONGEST, SPREAD = 4, 6.0
"""Words in the longest n-grams, and σ of CIDEr-D."""

Grams = Counter[tuple[str, ...]]


def caption_scores(captions: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, float]:
    """BLEU-1 to BLEU-4 and CIDEr-D, by name, of one caption for each image against one or more references each.

    >>> references = [["a dog runs on grass"], ["the red car", "a car"]]
    >>> found = caption_scores(["A dog runs on grass .", "A red car"], references)
    >>> {name: round(score, 1) for name, score in found.items()}
    {'BLEU-1': 100.0, 'BLEU-2': 91.3, 'BLEU-3': 85.5, 'BLEU-4': 88.9, 'CIDEr-D': 6.3}
    """
    check_pairs(captions, references)
    said = [words(caption) for caption in captions]
    meant = [[words(reference) for reference in several] for several in references]
    scores = {f"BLEU-{order}": score for order, score in enumerate(bleu(said, meant), 1)}
    return scores | {"CIDEr-D": cider_d(said, meant)}


def check_pairs(captions: Sequence[str], references: Sequence[Sequence[str]]) -> None:
    """One caption an image, and at least one reference."""
    if len(captions) != len(references) or not len(captions):
        raise ValueError(f"captions and references must be of one length, got {len(captions)} and {len(references)}")
    for image, (caption, several) in enumerate(zip(captions, references, strict=True)):
        if isinstance(several, str) or not isinstance(caption, str):
            raise TypeError(
                f"image {image} must have one caption and a list of references, got {caption!r}, {several!r}"
            )
        if not has_words(several):
            raise ValueError(f"image {image} must have a reference with at least one word, got {list(several)}")


def has_words(captions: Sequence[str]) -> bool:
    """Whether there is a word in any of some captions."""
    return any(words(caption) for caption in captions)


def words(caption: str) -> list[str]:
    """What is compared: lower case, without punctuation.

    >>> words("A man 's T-shirt ; 2 dogs' toys .")
    ['a', 'man', 's', 't-shirt', '2', 'dogs', 'toys']
    """
    return WORD.findall(caption.lower())


def grams(sentence: Sequence[str], size: int) -> Grams:
    """How often each run of so many words occurs."""
    return Counter(tuple(sentence[start : start + size]) for start in range(len(sentence) - size + 1))


def bleu(captions: Sequence[Sequence[str]], references: Sequence[Sequence[Sequence[str]]]) -> tuple[float, ...]:
    """BLEU-1 to 4 of sentences in words."""
    length = sum(map(len, captions))
    wanted = sum(nearest(len(said), meant) for said, meant in zip(captions, references, strict=True))
    brevity = math.exp(min(0.0, 1 - wanted / length)) if length else 0.0
    logs, scores = 0.0, []
    for size in range(1, LONGEST + 1):
        found = total = 0
        for said, meant in zip(captions, references, strict=True):
            most: Grams = Counter()
            for reference in meant:
                most |= grams(reference, size)
            ours = grams(said, size)
            found, total = found + (ours & most).total(), total + ours.total()
        logs += math.log(found / total) if found else -math.inf
        scores.append(100 * brevity * math.exp(logs / size))
    return tuple(scores)


def nearest(length: int, references: Sequence[Sequence[str]]) -> int:
    """The length of the reference that is nearest in length; of two the shorter."""
    return min((abs(len(reference) - length), len(reference)) for reference in references)[1]


def cider_d(captions: Sequence[Sequence[str]], references: Sequence[Sequence[Sequence[str]]]) -> float:
    """CIDEr-D of sentences in words. How rare an n-gram is, is counted in the references: one image alone scores 0."""
    total = 0.0
    for size in range(1, LONGEST + 1):
        meant = [[grams(reference, size) for reference in several] for several in references]
        images: Grams = Counter(gram for several in meant for gram in set().union(*several))
        rare = {gram: math.log(len(references) / count) for gram, count in images.items()}
        unseen = math.log(len(references))  # as if one image had it
        for said, sentences, vectors in zip(captions, references, meant, strict=True):
            ours = {gram: count * rare.get(gram, unseen) for gram, count in grams(said, size).items()}
            for sentence, counts in zip(sentences, vectors, strict=True):
                theirs = {gram: count * rare[gram] for gram, count in counts.items()}
                nearness = math.exp(-((len(said) - len(sentence)) ** 2) / (2 * SPREAD**2))
                total += nearness * clipped_cosine(ours, theirs) / len(sentences)
    return 10 * total / (LONGEST * len(captions))


def clipped_cosine(ours: dict[tuple[str, ...], float], theirs: dict[tuple[str, ...], float]) -> float:
    """min(a, b) · b / (‖a‖ ‖b‖): what is said more often than in the reference counts no more for it."""
    both = sum(min(value, theirs[gram]) * theirs[gram] for gram, value in ours.items() if gram in theirs)
    size = math.hypot(*ours.values()) * math.hypot(*theirs.values())
    return both / size if size else 0.0
