"""Pairs of sentences: files, vocabularies, batches."""

import pandas as pd
import pytest
import torch

from regard.data.sentence_pairs import (
    END,
    PADDING,
    SPECIAL,
    START,
    TokenBatches,
    as_pairs,
    grouped,
    read_lines,
    read_pairs,
)
from regard.data.tokenizers import Vocabularies, vocabularies


def test_lines_keep_their_number(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"eins\r\n\r\nzwei drei\n")
    assert read_lines(path) == ["eins", "", "zwei drei"]
    path.write_text("ohne Ende")
    assert read_lines(path) == ["ohne Ende"]


def test_pairs_have_a_tab_between_them_and_what_is_behind_is_left_alone(tmp_path):
    path = tmp_path / "pairs.tsv"
    path.write_text("Go.\tVa !\tCC-BY\nRun.\tCours !\n")
    assert read_pairs(path) == (["Go.", "Run."], ["Va !", "Cours !"])


def test_empty_pairs_at_the_end_are_pairs_and_empty_lines_are_none(tmp_path):
    path = tmp_path / "pairs.tsv"
    path.write_text("Go.\tVa !\n\t\n \n\n")
    assert read_pairs(path) == (["Go.", ""], ["Va !", ""])


def test_lower_case_letters_are_all_known():
    """Of a Σ at the end of a word Python and the tokenizer make different letters."""
    known = vocabularies(["ΟΔΟΣ"], ["a"], tokens="characters", count=0, joint=True, lower=True)
    assert "�" not in known.shown(known.coded(["ΟΔΟΣ"])[0])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a\tb\nno tab\n", "with a tab between them, got none in line 2: 'no tab'"),
        (b"a\tb\nc\td\xff\n", "is not UTF-8: line 2 has the byte 0xff"),
        (b"\n", "is empty"),
    ],
)
def test_a_broken_file_is_named_with_its_line(tmp_path, content, message):
    path = tmp_path / "pairs.tsv"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"pairs.tsv.*{message}"):
        read_pairs(path)


@pytest.mark.parametrize(
    ("sources", "targets", "error", "message"),
    [
        (["a", "b"], ["c"], ValueError, "2 sources and 1 targets"),
        ([], [], ValueError, "at least one pair"),
        ("ab", ["c", "d"], TypeError, "sources must be a list of texts, got one text"),
        (["a"], [3], TypeError, "targets must be texts, got int in place 0"),
        (pd.DataFrame({"de": ["a"]}), ["c"], TypeError, "sources must be a list of texts, got DataFrame; of a table"),
        ({"a": 1}, ["c"], TypeError, "sources must be a list of texts, got dict"),
        (None, ["c"], TypeError, "sources must be a list of texts, got NoneType"),
    ],
)
def test_what_is_no_list_of_pairs_is_refused(sources, targets, error, message):
    with pytest.raises(error, match=message):
        as_pairs(sources, targets)


def rows(lengths):
    return [[9] * length for length in lengths]


def test_each_pair_is_in_one_batch_and_a_batch_has_at_most_so_many_tokens():
    drawn = torch.Generator().manual_seed(0)
    sources = [[place + 3] * int(torch.randint(1, 30, (), generator=drawn)) for place in range(97)]
    targets = rows(torch.randint(1, 30, (97,), generator=drawn).tolist())
    batches = TokenBatches(sources, targets, 100, (5, 0))
    seen = []
    for batch in batches:
        assert batch.source.shape[1] == batch.lengths.max()
        assert batch.source.numel() <= 100
        assert batch.target[:, 1:].numel() <= 100
        for source, length, target in zip(*batch, strict=True):
            place = int(source[0]) - 3
            seen.append(place)
            assert source.tolist() == sources[place] + [PADDING] * (len(source) - length)
            assert target[target != PADDING].tolist() == [START, *targets[place], END]
    assert sorted(seen) == list(range(97))
    assert len(batches) == len(list(batches))


def test_batches_are_drawn_by_their_seed_and_their_number_is_not():
    sources, targets = rows(range(1, 60)), rows([4] * 59)
    first, again, other = (TokenBatches(sources, targets, 64, seed) for seed in ((1, 0), (1, 0), (1, 1)))
    assert first.groups == again.groups
    assert first.groups != other.groups
    assert len(first) == len(other)


def test_little_is_padding():
    drawn = torch.Generator().manual_seed(1)
    lengths = (torch.rand(3000, generator=drawn) * 25 + 3).long()
    batches = TokenBatches(rows(lengths.tolist()), rows((lengths + torch.randint(3, (3000,))).tolist()), 1000)
    said = sum(int((batch.target[:, 1:] != PADDING).sum()) for batch in batches)
    assert said > 0.97 * sum(batch.target[:, 1:].numel() for batch in batches)


def test_a_sentence_longer_than_a_batch_is_alone():
    assert grouped([3, 50, 4, 4], 10) == [slice(0, 1), slice(1, 2), slice(2, 4)]
    assert grouped([], 10) == []


SENTENCES = ["Der Hund läuft.", "Die Katze schläft <start> hier.", "Ein Hund und eine Katze ☃"]


@pytest.mark.parametrize("tokens", ["pieces", "characters"])
@pytest.mark.parametrize("joint", [True, False])
def test_what_is_coded_is_written_again_and_special_tokens_are_never_found_in_a_text(tokens, joint):
    known = vocabularies(SENTENCES, SENTENCES, tokens=tokens, count=300, joint=joint, lower=False)
    coded = known.coded(SENTENCES, target=True)
    assert known.written(coded) == SENTENCES
    assert min(min(row) for row in coded) >= len(SPECIAL)
    again = Vocabularies.restored(known.saved())
    assert again.coded(SENTENCES, target=True) == coded
    assert again.joint == known.joint == joint


def test_a_word_is_the_same_pieces_at_the_start_and_elsewhere():
    known = vocabularies(["hund hund hund"] * 9, ["x"], tokens="pieces", count=290, joint=True, lower=False)
    first, second = known.coded(["hund hund"])[0]
    assert first == second


def test_lower_case_is_what_it_reads_and_writes():
    known = vocabularies(["ABC"], ["Abc"], tokens="characters", count=0, joint=True, lower=True)
    assert known.coded(["ABC"]) == known.coded(["abc"])
    assert known.written(known.coded(["ABC"])) == ["abc"]
