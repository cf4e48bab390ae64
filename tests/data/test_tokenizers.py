"""Tokenizers, vocabularies of two languages, and BPE-dropout."""

import pytest

from regard.data import tokenizers
from regard.data.samples import dates
from regard.data.tokenizers import (
    MAX_SPLITS,
    SPECIAL_TOKENS,
    UNKNOWN,
    BPEDropout,
    Vocabularies,
    bpe_tokenizer,
    character_tokenizer,
    encode_text,
    text_chunks,
    tokenizer_from_json,
    train_vocabularies,
    word_tokenizer,
)

SENTENCES = ["Der Hund läuft.", "Die Katze schläft <start> hier.", "Ein Hund und eine Katze ☃"]
LINES = [*dates(90, seed=3)[0], "Größe ☃, naïve?", " two  blanks ", ""]


def test_words_are_frequent_in_lower_case_and_without_punctuation():
    texts = ["A dog's ball, a ball.", "The T-shirt's 2 balls!", "the -- dog's 'ball'"]
    tokenizer = word_tokenizer(texts, 2, ("<padding>",))
    assert tokenizer.get_vocab(with_added_tokens=False) == {
        "<padding>": 0, UNKNOWN: 1, "ball": 2, "a": 3, "dog's": 4, "the": 5,
    }  # fmt: skip
    assert tokenizer.encode("The CAT'S ball...").tokens == ["the", UNKNOWN, "ball"]
    assert tokenizer.encode("<padding>").tokens == [UNKNOWN]
    assert tokenizer_from_json(tokenizer.to_str()).encode("A ball").ids == [3, 2]


def test_invalid_tokenizers_raise():
    with pytest.raises(ValueError, match="vocabulary must be at least 259, the bytes and special tokens, got 258"):
        bpe_tokenizer(["a"], 258, SPECIAL_TOKENS)
    with pytest.raises(ValueError, match="the tokenizer is broken"):
        tokenizer_from_json("{}")


def test_a_long_text_is_encoded_in_chunks_that_end_with_a_line(monkeypatch):
    monkeypatch.setattr(tokenizers, "CHUNK", 10)
    text = "one\ntwo\nthree\n" + "x" * 25 + "\nend"
    chunks = list(text_chunks(text))
    assert "".join(chunks) == text
    assert chunks[0] == "one\ntwo\n"
    assert max(map(len, chunks)) == 10
    tokenizer = character_tokenizer(text)
    assert encode_text(tokenizer, text) == tokenizer.encode(text).ids


@pytest.mark.parametrize("tokens", ["pieces", "characters"])
@pytest.mark.parametrize("joint", [True, False])
def test_decoding_inverts_encoding_and_no_text_has_special_tokens(tokens, joint):
    known = train_vocabularies(SENTENCES, SENTENCES, tokens=tokens, count=300, joint=joint, lower=False)
    ids = known.encode(SENTENCES, target=True)
    assert known.decode(ids) == SENTENCES
    assert min(min(row) for row in ids) >= len(SPECIAL_TOKENS)
    again = Vocabularies.from_json(known.to_json())
    assert again.encode(SENTENCES, target=True) == ids
    assert again.joint == known.joint == joint


def test_a_word_has_the_same_pieces_at_the_start_and_elsewhere():
    known = train_vocabularies(["hund hund hund"] * 9, ["x"], tokens="pieces", count=290, joint=True, lower=False)
    first, second = known.encode(["hund hund"])[0]
    assert first == second


def test_lower_case_is_read_and_written():
    known = train_vocabularies(["ABC"], ["Abc"], tokens="characters", count=0, joint=True, lower=True)
    assert known.encode(["ABC"]) == known.encode(["abc"])
    assert known.decode(known.encode(["ABC"])) == ["abc"]


def test_all_lower_case_letters_are_known():
    """For a Σ at the end of a word Python and the tokenizer give different letters."""
    known = train_vocabularies(["ΟΔΟΣ"], ["a"], tokens="characters", count=0, joint=True, lower=True)
    assert UNKNOWN not in known.labels(known.encode(["ΟΔΟΣ"])[0])


@pytest.fixture(scope="module", params=[False, True], ids=["as it is", "lower"])
def tokenizer(request):
    return bpe_tokenizer(LINES, 320, ("<padding>",), lower=request.param, sentences=True)


def test_a_dropout_rate_of_zero_is_the_tokenizer_itself(tokenizer):
    assert BPEDropout(tokenizer, LINES).sample(0.0, "0") == [tokenizer.encode(line).ids for line in LINES]


def test_random_pieces_are_the_same_text_in_more_pieces(tokenizer):
    usual, random = (BPEDropout(tokenizer, LINES).sample(rate, "7") for rate in (0.0, 0.3))
    assert tokenizer.decode_batch(random) == tokenizer.decode_batch(usual)
    assert sum(map(len, random)) > 1.1 * sum(map(len, usual))


def test_a_dropout_rate_of_one_gives_bytes(tokenizer):
    [ids] = BPEDropout(tokenizer, ["May"]).sample(1.0, "0")
    assert len(ids) == len(" May")


def test_a_merge_is_skipped_with_the_given_probability():
    tokenizer = bpe_tokenizer(["ab"] * 9, 257)
    dropout = BPEDropout(tokenizer, ["ab"])
    [merged] = tokenizer.encode("ab").ids
    samples = [dropout.sample(0.3, str(seed))[0] == [merged] for seed in range(2000)]
    assert sum(samples) / len(samples) == pytest.approx(0.7, abs=0.04)


def test_the_seed_decides_and_equal_words_of_a_text_differ(tokenizer):
    dropout = BPEDropout(tokenizer, ["January"] * 50)
    tokens = dropout.sample(0.3, "0 1")
    assert tokens == dropout.sample(0.3, "0 1") != dropout.sample(0.3, "0 2")
    assert 3 < len(set(map(tuple, tokens))) <= MAX_SPLITS
