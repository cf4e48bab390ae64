"""Texts: what is read, what an error says, and batches of pairs."""

import pandas as pd
import pytest
import torch

from regard.data.text import (
    as_pairs,
    as_sentences,
    checked_text,
    group_by_tokens,
    read_lines,
    read_pairs,
    split_lines,
    text_or_file,
    token_batches,
)
from regard.data.tokenizers import END, PADDING, START


def test_lines_keep_their_number(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbfeins\r\n\r\nzwei drei\n")
    assert read_lines(path) == ["eins", "", "zwei drei"]
    path.write_text("ohne Ende")
    assert read_lines(path) == ["ohne Ende"]
    assert split_lines("") == []


def test_a_text_is_a_file_or_itself(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "book").write_text("the content\n")
    assert text_or_file("book") == text_or_file(tmp_path / "book") == "the content\n"
    for text in ("see notes.txt", "a\nb.txt", "x" * 10_000, "null\0byte"):
        assert text_or_file(text) == text


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        (None, FileNotFoundError, r"there is no file .*text\.txt"),
        (b"good\nba\xffd\n", ValueError, "not UTF-8: line 2 has the byte 0xff"),
        (b"\n \n", ValueError, r"text\.txt is empty"),
    ],
)
def test_a_file_that_cannot_be_read_raises(tmp_path, content, error, message):
    path = tmp_path / "text.txt"
    if content is not None:
        path.write_bytes(content)
    for given in (path, str(path)):
        with pytest.raises(error, match=message):
            text_or_file(given)


def test_invalid_texts_raise(tmp_path):
    with pytest.raises(IsADirectoryError, match="is a folder, expected a text file"):
        text_or_file(tmp_path)
    with pytest.raises(TypeError, match="a path or a text, got bytes"):
        text_or_file(b"text")
    with pytest.raises(ValueError, match="the text is empty"):
        text_or_file(" \n")
    with pytest.raises(TypeError, match="prompt must be a text, got int"):
        checked_text("prompt", 3)
    with pytest.raises(ValueError, match="prompt is not UTF-8 at character 4: write it in UTF-8"):
        checked_text("prompt", "caf\udce9")
    assert checked_text("prompt", "café ☃") == "café ☃"


def test_columns_after_the_second_are_ignored(tmp_path):
    path = tmp_path / "pairs.tsv"
    path.write_text("Go.\tVa !\tCC-BY\nRun.\tCours !\n")
    assert read_pairs(path) == (["Go.", "Run."], ["Va !", "Cours !"])


def test_an_empty_pair_at_the_end_is_a_pair_but_an_empty_line_is_not(tmp_path):
    path = tmp_path / "pairs.tsv"
    path.write_text("Go.\tVa !\n\t\n \n\n")
    assert read_pairs(path) == (["Go.", ""], ["Va !", ""])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a\tb\nno tab\n", "with a tab between them, got none in line 2: 'no tab'"),
        (b"a\tb\nc\td\xff\n", "is not UTF-8: line 2 has the byte 0xff"),
        (b"\n", "is empty"),
    ],
)
def test_errors_name_the_file_and_the_line(tmp_path, content, message):
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
        (["a"], [3], TypeError, r"targets\[0\] must be a text, got int"),
        (pd.DataFrame({"de": ["a"]}), ["c"], TypeError, "sources must be a list of texts, got DataFrame; of a table"),
        ({"a": 1}, ["c"], TypeError, "sources must be a list of texts, got dict"),
        (None, ["c"], TypeError, "sources must be a list of texts, got NoneType"),
    ],
)
def test_invalid_pairs_raise(sources, targets, error, message):
    with pytest.raises(error, match=message):
        as_pairs(sources, targets)


def rows(lengths):
    return [[9] * length for length in lengths]


def test_each_pair_is_in_one_batch_of_limited_size():
    random = torch.Generator().manual_seed(0)
    sources = [[index + 3] * int(torch.randint(1, 30, (), generator=random)) for index in range(97)]
    targets = rows(torch.randint(1, 30, (97,), generator=random).tolist())
    batches = token_batches(sources, targets, 100, (5, 0))
    indices = []
    for batch in batches:
        assert batch.source.shape[1] == batch.lengths.max()
        assert batch.source.numel() <= 100
        assert batch.target[:, 1:].numel() <= 100
        for source, length, target in zip(*batch, strict=True):
            index = int(source[0]) - 3
            indices.append(index)
            assert source.tolist() == sources[index] + [PADDING] * (len(source) - length)
            assert target[target != PADDING].tolist() == [START, *targets[index], END]
    assert sorted(indices) == list(range(97))
    assert len(batches) == len(list(batches))


def test_the_seed_changes_batches_but_not_their_number():
    sources, targets = rows(range(1, 60)), rows([4] * 59)
    first, again, other = (token_batches(sources, targets, 64, seed) for seed in ((1, 0), (1, 0), (1, 1)))
    assert first.groups == again.groups
    assert first.groups != other.groups
    assert len(first) == len(other)


def test_little_is_padding():
    random = torch.Generator().manual_seed(1)
    lengths = (torch.rand(3000, generator=random) * 25 + 3).long()
    batches = token_batches(rows(lengths.tolist()), rows((lengths + torch.randint(3, (3000,))).tolist()), 1000)
    real = sum(int((batch.target[:, 1:] != PADDING).sum()) for batch in batches)
    assert real > 0.97 * sum(batch.target[:, 1:].numel() for batch in batches)


def test_a_sentence_longer_than_a_batch_is_a_batch():
    assert group_by_tokens([3, 50, 4, 4], 10) == [slice(0, 1), slice(1, 2), slice(2, 4)]
    assert group_by_tokens([], 10) == []


def test_half_a_surrogate_pair_raises():
    with pytest.raises(ValueError, match=r"sentences\[1\] is not UTF-8 at character 2: write it in UTF-8"):
        as_sentences(["a", "b\ud800"])
