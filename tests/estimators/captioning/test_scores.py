"""Scores of captions are their definitions, and those of the programs that people quote."""

import math
import random

import numpy as np
import pytest

from regard.estimators.captioning.scores import bleu, caption_scores, cider_d, nearest, words


def corpus(seed, images=13, most_references=5, vocabulary=7):
    """Sentences of few words, so that they have n-grams in common; some of them are short."""
    drawn = random.Random(seed)

    def sentence():
        return " ".join(drawn.choice("abcdefg"[:vocabulary]) for _ in range(drawn.randint(1, 11)))

    references = [[sentence() for _ in range(drawn.randint(1, most_references))] for _ in range(images)]
    captions = [drawn.choice([several[0], sentence(), several[-1] + " a a"]) for several in references]
    return captions, references


def split(captions, references):
    return [caption.split() for caption in captions], [[one.split() for one in several] for several in references]


def slow_cider(captions, references):
    """By vectors over all n-grams there are, in NumPy."""
    said, meant = split(captions, references)
    scores = np.zeros((len(said), 4))
    for n in range(1, 5):

        def runs(sentence, n=n):
            return [" ".join(sentence[i : i + n]) for i in range(len(sentence) - n + 1)]

        every = sorted({gram for s in [*said, *(one for several in meant for one in several)] for gram in runs(s)})
        documents = np.array([max(1, sum(any(g in runs(s) for s in several) for several in meant)) for g in every])

        def vector(sentence, every=every, documents=documents, runs=runs):
            return np.array([runs(sentence).count(g) for g in every]) * (np.log(len(meant)) - np.log(documents))

        for image, (caption, several) in enumerate(zip(said, meant, strict=True)):
            for reference in several:
                a, b = vector(caption), vector(reference)
                length = np.linalg.norm(a) * np.linalg.norm(b)
                cosine = np.minimum(a, b) @ b / length if length > 0 else 0.0
                far = np.exp(-((len(caption) - len(reference)) ** 2) / (2 * 6.0**2))
                scores[image, n - 1] += cosine * far / len(several)
    return 10 * scores.mean()


@pytest.mark.parametrize("seed", range(5))
def test_cider_is_its_definition(seed):
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
    # Said three times counts once, but the caption's vector is three times as long; two words too long.
    assert caption_scores(["a a a", "x"], [["a"], ["c"]])["CIDEr-D"] == pytest.approx(
        10 / 4 / 2 * math.exp(-4 / 72) / 3
    )
    # What every image has says nothing.
    assert caption_scores(["a", "a"], [["a"], ["a"]])["CIDEr-D"] == 0
    assert caption_scores(["a b"], [["a b"]])["CIDEr-D"] == 0


@pytest.mark.parametrize("seed", range(5))
def test_bleu_is_that_of_sacrebleu(seed):
    sacrebleu = pytest.importorskip("sacrebleu.metrics")
    captions, references = corpus(seed, most_references=1) if seed % 2 else corpus(seed)
    most = max(map(len, references))
    # A reference that is there twice changes nothing, and makes their number equal.
    streams = [[several[min(place, len(several) - 1)] for several in references] for place in range(most)]
    found = bleu(*split(captions, references))
    assert len(found) == 4
    for order in range(1, 5):
        theirs = sacrebleu.BLEU(tokenize="none", smooth_method="none", max_ngram_order=order, effective_order=False)
        assert found[order - 1] == pytest.approx(theirs.corpus_score(captions, streams).score, rel=1e-9)
    assert found[3] > 1


def test_bleu_by_hand():
    scores = caption_scores(["the the the the the the the"], [["the cat is on the mat", "there is a cat on the mat"]])
    assert scores["BLEU-1"] == pytest.approx(100 * 2 / 7)
    assert list(scores.values())[1:] == [0, 0, 0, 0]
    # Six words for seven: precision 1, and e^(1 − 7/6) for brevity.
    assert caption_scores(["a b c d e f"], [["a b c d e f g"]])["BLEU-4"] == pytest.approx(100 * math.exp(1 - 7 / 6))
    assert caption_scores(["", "a"], [["a"], ["a"]])["BLEU-1"] == pytest.approx(100 * math.exp(1 - 2))
    assert set(caption_scores([""], [["a"]]).values()) == {0}


def test_of_two_references_as_near_the_shorter_counts():
    assert nearest(5, [["a"] * 6, ["a"] * 4]) == 4
    assert nearest(5, [["a"] * 4, ["a"] * 6, ["a"] * 5]) == 5
    assert nearest(9, [["a"] * 2, ["a"] * 3]) == 3


def test_case_and_punctuation_do_not_count():
    plain = caption_scores(["a dog , running", "it is a t-shirt"], [["a dog running fast"], ["it is a t-shirt"]])
    marked = caption_scores(["A dog running .", "It is a T-shirt !"], [["A dog running fast ."], ["It is a T-shirt"]])
    assert plain == marked
    assert marked["BLEU-4"] < 100
    assert words("Café, l'eau – 3") == ["café", "l'eau", "3"]


def test_what_is_the_same_has_the_full_score():
    found = caption_scores(["a b c d", "e f g h"], [["a b c d"], ["e f g h", "E F G H !"]])
    assert list(found) == ["BLEU-1", "BLEU-2", "BLEU-3", "BLEU-4", "CIDEr-D"]
    assert list(found.values()) == pytest.approx([100, 100, 100, 100, 10])


@pytest.mark.parametrize(
    ("captions", "references", "kind", "message"),
    [
        (["a"], [["a"], ["b"]], ValueError, "must be of one length, got 1 and 2"),
        ([], [], ValueError, "must be of one length, got 0 and 0"),
        (["a"], ["a"], TypeError, "image 0 must have one caption and a list of references, got 'a', 'a'"),
        (["a", ["b"]], [["a"], ["b"]], TypeError, "image 1 must have one caption"),
        (["a", "b"], [["a"], []], ValueError, r"image 1 must have a reference with at least one word, got \[\]"),
        (["a"], [["."]], ValueError, r"image 0 must have a reference with at least one word, got \['.'\]"),
    ],
)
def test_what_cannot_be_compared_is_refused(captions, references, kind, message):
    with pytest.raises(kind, match=message):
        caption_scores(captions, references)
