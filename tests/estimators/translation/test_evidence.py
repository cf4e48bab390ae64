"""An alignment as a table, as JSON and as a picture; the score of translations."""

import json

import numpy as np
import pytest
import sacrebleu

from regard.estimators.translation.evidence import Alignment, translation_score

WEIGHT = np.array([[0.7, 0.1, 0.2], [0.25, 0.5, 0.25]])
ALIGNMENT = Alignment(["4", " ", "July"], [" 07", "■"], WEIGHT, "07")


def test_a_table_has_the_largest_weights_of_each_target_token():
    frame = ALIGNMENT.to_frame(top=2)
    assert list(frame.columns) == ["place", "token", "rank", "looked_at", "looked_at_place", "weight"]
    assert frame.to_numpy().tolist() == [
        [0, " 07", 1, "4", 0, 0.7],
        [0, " 07", 2, "July", 2, 0.2],
        [1, "■", 1, " ", 1, 0.5],
        [1, "■", 2, "4", 0, 0.25],  # of equal weights the first
    ]
    assert len(ALIGNMENT.to_frame()) == 6


@pytest.mark.parametrize("top", [0, -1])
def test_an_invalid_number_of_tokens_raises(top):
    with pytest.raises(ValueError, match=f"top must be a positive whole number, or None for all tokens, got {top}"):
        ALIGNMENT.to_frame(top=top)


def test_json_has_the_tokens_and_rounded_weights():
    alignment = Alignment(["a"], ["b"], np.array([[1 / 3]]), "b")
    assert json.loads(json.dumps(alignment.to_json())) == {"source": ["a"], "target": ["b"], "weight": [[0.3333]]}


def test_a_heat_map_has_the_tokens_as_labels():
    axes = ALIGNMENT.plot()
    assert [label.get_text() for label in axes.get_yticklabels()] == ["07", "■"]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["4", "␣", "July"]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("source", "translation")


def test_the_score_is_sacrebleus_and_a_number():
    translations, references = ["the cat sat on the mat today", "a dog"], ["the cat sat on a mat today", "a dog"]
    score = translation_score(translations, references)
    assert score == sacrebleu.corpus_bleu(translations, [references]).score
    assert score.chrf == sacrebleu.corpus_chrf(translations, [references]).score
    assert score + 1 > score
    assert "version" in score.signature
    assert "tok:13a" in repr(score)
    assert "tok:none" in translation_score(translations, references, tokenize="none").signature
    lower = [line.upper() for line in translations]
    assert translation_score(lower, references, lowercase=True) == score
