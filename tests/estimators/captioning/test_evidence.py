"""Scores of captions agree with their definitions."""

import math
import random

import numpy as np
import pytest

from regard.estimators.captioning.evidence import bleu, caption_scores, cider_d, words


def corpus(seed, images=13, most_references=5, vocabulary=7):
    """Sentences of few different words, so that they have n-grams in common; some are short."""
    choice = random.Random(seed)

    def sentence():
        return " ".join(choice.choice("abcdefg"[:vocabulary]) for _ in range(choice.randint(1, 11)))

    references = [[sentence() for _ in range(choice.randint(1, most_references))] for _ in range(images)]
    captions = [choice.choice([several[0], sentence(), several[-1] + " a a"]) for several in references]
    return captions, references


def split(captions, references):
    return [caption.split() for caption in captions], [[one.split() for one in several] for several in references]


def slow_cider(captions, references):
    """By vectors over all n-grams, in NumPy."""
    caption_words, reference_words = split(captions, references)
    scores = np.zeros((len(caption_words), 4))
    for n in range(1, 5):

        def runs(sentence, n=n):
            return [" ".join(sentence[i : i + n]) for i in range(len(sentence) - n + 1)]

        every = sorted(
            {
                gram
                for s in [*caption_words, *(one for several in reference_words for one in several)]
                for gram in runs(s)
            }
        )
        documents = np.array(
            [max(1, sum(any(g in runs(s) for s in several) for several in reference_words)) for g in every]
        )

        def vector(sentence, every=every, documents=documents, runs=runs):
            return np.array([runs(sentence).count(g) for g in every]) * (
                np.log(len(reference_words)) - np.log(documents)
            )

        for image, (caption, several) in enumerate(zip(caption_words, reference_words, strict=True)):
            for reference in several:
                a, b = vector(caption), vector(reference)
                length = np.linalg.norm(a) * np.linalg.norm(b)
                cosine = np.minimum(a, b) @ b / length if length > 0 else 0.0
                far = np.exp(-((len(caption) - len(reference)) ** 2) / (2 * 6.0**2))
                scores[image, n - 1] += cosine * far / len(several)
    return 10 * scores.mean()


@pytest.mark.parametrize("seed", range(5))
def test_cider_agrees_with_its_definition(seed):
    captions, references = corpus(seed)
    expected = slow_cider(captions, references)
    assert expected > 0.3
    assert cider_d(*split(captions, references)) == pytest.approx(expected, rel=1e-12)
    assert caption_scores(captions, references)["CIDEr-D"] == pytest.approx(expected, rel=1e-12)


def test_cider_by_hand():
    references = [["a b c d e"], ["f g h i"]]
    assert caption_scores(["a b c d e", "f g h i"], references)["CIDEr-D"] == pytest.approx(10)
    assert caption_scores(["f g h i", "a b c d e"], references)["CIDEr-D"] == 0
    # One word of two, of which each is in one of two images: log 2 · log 2 / (log 2 · √2 log 2), one word too short.
    assert caption_scores(["a", "x"], [["a b"], ["c d"]])["CIDEr-D"] == pytest.approx(
        10 / 4 / 2 * math.exp(-1 / 72) / math.sqrt(2)
    )
    # Three repetitions count once, but the caption's vector is three times as long; two words too long.
    assert caption_scores(["a a a", "x"], [["a"], ["c"]])["CIDEr-D"] == pytest.approx(
        10 / 4 / 2 * math.exp(-4 / 72) / 3
    )
    # A word of every image has weight 0.
    assert caption_scores(["a", "a"], [["a"], ["a"]])["CIDEr-D"] == 0
    assert caption_scores(["a b"], [["a b"]])["CIDEr-D"] == 0


def slow_bleu(captions, references):
    """BLEU-1 to BLEU-4 by their definition."""
    captions, references = split(captions, references)
    length = sum(map(len, captions))
    nearest = [
        min((abs(len(reference) - len(caption)), len(reference)) for reference in several)[1]
        for caption, several in zip(captions, references, strict=True)
    ]
    brevity = math.exp(min(0.0, 1 - sum(nearest) / length))
    precisions = []
    for n in range(1, 5):
        common = total = 0
        for caption, several in zip(captions, references, strict=True):
            ngrams = [tuple(caption[i : i + n]) for i in range(len(caption) - n + 1)]
            for ngram in set(ngrams):
                counts = [[tuple(s[i : i + n]) for i in range(len(s) - n + 1)].count(ngram) for s in several]
                common += min(ngrams.count(ngram), max(counts))
            total += len(ngrams)
        precisions.append(common / total)
    return [100 * brevity * math.prod(precisions[:n]) ** (1 / n) for n in range(1, 5)]


@pytest.mark.parametrize("seed", range(5))
def test_bleu_agrees_with_its_definition(seed):
    captions, references = corpus(seed, most_references=1) if seed % 2 else corpus(seed)
    expected = slow_bleu(captions, references)
    assert expected[3] > 1
    assert bleu(*split(captions, references)) == pytest.approx(expected, rel=1e-12)


def test_bleu_by_hand():
    scores = caption_scores(["the the the the the the the"], [["the cat is on the mat", "there is a cat on the mat"]])
    assert scores["BLEU-1"] == pytest.approx(100 * 2 / 7)
    assert list(scores.values())[1:] == [0, 0, 0, 0]
    # Six words for seven: precision 1, and e^(1 − 7/6) for brevity.
    assert caption_scores(["a b c d e f"], [["a b c d e f g"]])["BLEU-4"] == pytest.approx(100 * math.exp(1 - 7 / 6))
    assert caption_scores(["", "a"], [["a"], ["a"]])["BLEU-1"] == pytest.approx(100 * math.exp(1 - 2))
    assert set(caption_scores([""], [["a"]]).values()) == {0}


@pytest.mark.parametrize(("caption", "lengths", "expected"), [(5, (6, 4), 4), (5, (4, 6, 5), 5), (2, (9, 3), 3)])
def test_the_nearest_reference_has_the_length_that_counts(caption, lengths, expected):
    """Of two equally near references, the shorter."""
    score = caption_scores([" ".join("a" * caption)], [[" ".join("a" * length) for length in lengths]])["BLEU-1"]
    assert score == pytest.approx(100 * math.exp(min(0, 1 - expected / caption)))


def test_a_reference_without_words_has_length_0():
    assert caption_scores(["a"], [["a a a", "."]])["BLEU-1"] == pytest.approx(100)


def test_case_and_punctuation_are_ignored():
    plain = caption_scores(["a dog , running", "it is a t-shirt"], [["a dog running fast"], ["it is a t-shirt"]])
    marked = caption_scores(["A dog running .", "It is a T-shirt !"], [["A dog running fast ."], ["It is a T-shirt"]])
    assert plain == marked
    assert marked["BLEU-4"] < 100
    assert words("Café, l'eau – 3") == ["café", "l'eau", "3"]


def test_captions_equal_to_a_reference_have_the_maximum_score():
    scores = caption_scores(["a b c d", "e f g h"], [["a b c d"], ["e f g h", "E F G H !"]])
    assert list(scores) == ["BLEU-1", "BLEU-2", "BLEU-3", "BLEU-4", "CIDEr-D"]
    assert list(scores.values()) == pytest.approx([100, 100, 100, 100, 10])


@pytest.mark.parametrize(
    ("captions", "references", "kind", "message"),
    [
        (["a"], [["a"], ["b"]], ValueError, "must have the same length, at least 1, got 1 and 2"),
        ([], [], ValueError, "must have the same length, at least 1, got 0 and 0"),
        (["a"], ["a"], TypeError, "image 0 must have one caption and a list of references, got 'a', 'a'"),
        (["a", ["b"]], [["a"], ["b"]], TypeError, "image 1 must have one caption"),
        (["a", "b"], [["a"], []], ValueError, r"image 1 must have a reference with at least one word, got \[\]"),
        (["a"], [["."]], ValueError, r"image 0 must have a reference with at least one word, got \['.'\]"),
    ],
)
def test_invalid_captions_and_references_raise(captions, references, kind, message):
    with pytest.raises(kind, match=message):
        caption_scores(captions, references)
