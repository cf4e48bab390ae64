"""Drawn pieces against the tokenizer's own, and against what BPE-dropout says of them."""

import pytest

from regard.data.bpe_dropout import WAYS, Splits
from regard.data.samples import dates
from regard.data.text import pieces

LINES = [*dates(90, seed=3)[0], "Größe ☃, naïve?", " two  blanks ", ""]


@pytest.fixture(scope="module", params=[False, True], ids=["as it is", "lower"])
def tokenizer(request):
    return pieces(LINES, 320, ("<padding>",), lower=request.param, sentences=True)


def test_nothing_passed_over_is_the_tokenizer_itself(tokenizer):
    assert Splits(tokenizer, LINES).drawn(0.0, "0") == [tokenizer.encode(line).ids for line in LINES]


def test_whatever_is_drawn_says_the_same_in_more_pieces(tokenizer):
    usual, drawn = (Splits(tokenizer, LINES).drawn(share, "7") for share in (0.0, 0.3))
    assert tokenizer.decode_batch(drawn) == tokenizer.decode_batch(usual)
    assert sum(map(len, drawn)) > 1.1 * sum(map(len, usual))


def test_all_passed_over_is_bytes(tokenizer):
    [ids] = Splits(tokenizer, ["May"]).drawn(1.0, "0")
    assert len(ids) == len(" May")


def test_a_join_is_passed_over_as_often_as_asked_for():
    tokenizer = pieces(["ab"] * 9, 257)
    splits = Splits(tokenizer, ["ab"])
    [joined] = tokenizer.encode("ab").ids
    draws = [splits.drawn(0.3, str(seed))[0] == [joined] for seed in range(2000)]
    assert sum(draws) / len(draws) == pytest.approx(0.7, abs=0.04)


def test_one_seed_one_draw_and_words_of_a_text_differ(tokenizer):
    splits = Splits(tokenizer, ["January"] * 50)
    drawn = splits.drawn(0.3, "0 1")
    assert drawn == splits.drawn(0.3, "0 1") != splits.drawn(0.3, "0 2")
    assert 3 < len(set(map(tuple, drawn))) <= WAYS
