"""Tokenizers by the package `tokenizers`, vocabularies of two languages, and BPE-dropout.

    character_tokenizer(texts)            a token for each character of the texts
    bpe_tokenizer(texts, vocabulary)      byte-level BPE: frequent pieces of words; no text is unknown to it
    word_tokenizer(texts, min_count)      a token for each frequent word, in lower case and without punctuation

All are `tokenizers.Tokenizer`, which is saved as `tokenizer.json`. A character or word that is not in the vocabulary
becomes `UNKNOWN`.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, pairwise
from random import Random
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple, cast

from regard.checks import optional_import

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel

PADDING, START, END = 0, 1, 2
SPECIAL_TOKENS = ("<padding>", "<start>", "<end>")
"""The first tokens of every vocabulary of sentences."""
UNKNOWN = "�"
CHUNK = 1 << 16
"""The number of characters of a long text that are encoded together."""
MAX_SPLITS = 16
"""The number of random splits of one word in an epoch of BPE-dropout: a text consists mostly of a few common words."""


def tokenizers_package() -> ModuleType:
    """The package tokenizers; if it is not installed, the error says how to install it."""
    with optional_import("tokens need the package tokenizers"):
        import tokenizers
    return tokenizers


def character_tokenizer(texts: Iterable[str], special: tuple[str, ...] = (), *, lower: bool = False) -> "Tokenizer":
    """A token for each character of the texts; special tokens come first.

    >>> tokenizer = character_tokenizer("banana")
    >>> tokenizer.encode("nab").ids, tokenizer.decode([2, 3, 3]), tokenizer.encode("x").tokens
    ([3, 1, 2], 'bnn', ['�'])
    """
    package = tokenizers_package()
    # The package's lower case, not Python's: they differ for a Σ at the end of a word.
    normalize = package.normalizers.Lowercase().normalize_str if lower else str
    characters = {character for text in texts for character in normalize(text)}
    tokenizer: Tokenizer = package.Tokenizer(_word_level([*special, UNKNOWN, *sorted(characters - {UNKNOWN})]))
    if lower:
        tokenizer.normalizer = package.normalizers.Lowercase()
    tokenizer.pre_tokenizer = package.pre_tokenizers.Split(package.Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = package.decoders.Fuse()
    return tokenizer


def bpe_tokenizer(
    texts: Iterable[str],
    vocabulary: int,
    special: tuple[str, ...] = (),
    *,
    lower: bool = False,
    sentences: bool = False,
) -> "Tokenizer":
    """Byte-level BPE with at most `vocabulary` tokens; special tokens come first.

    A text that contains the name of a special token is encoded as ordinary characters. `sentences`: encode each text
    as if a space preceded it, so that its first word has the same pieces as elsewhere.

    >>> tokenizer = bpe_tokenizer(["the cat sat on the mat"] * 9, vocabulary=280)
    >>> tokenizer.decode(tokenizer.encode("the hat ☃").ids)
    'the hat ☃'
    """
    package = tokenizers_package()
    least = 256 + len(special)
    if vocabulary < least:
        raise ValueError(f"vocabulary must be at least {least}, the bytes and special tokens, got {vocabulary}")
    tokenizer: Tokenizer = package.Tokenizer(package.models.BPE())
    if lower:
        tokenizer.normalizer = package.normalizers.Lowercase()
    tokenizer.pre_tokenizer = package.pre_tokenizers.ByteLevel(add_prefix_space=sentences)
    tokenizer.decoder = package.decoders.ByteLevel()
    trainer = package.trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=list(special),
        initial_alphabet=package.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.encode_special_tokens = True
    return tokenizer


def word_tokenizer(texts: Iterable[str], min_count: int = 1, special: tuple[str, ...] = ()) -> "Tokenizer":
    """A token for each word that occurs at least `min_count` times; special tokens come first, then frequent words.

    A word is letters, digits, and apostrophes and hyphens inside it, in lower case; everything else is dropped.

    >>> tokenizer = word_tokenizer(["A dog, a dog's ball!", "a T-shirt ..."])
    >>> tokenizer.encode("A cat's dog.").tokens, tokenizer.decode([1, 2])
    (['a', '�', 'dog'], 'a ball')
    """
    package = tokenizers_package()
    split = package.pre_tokenizers.Split(package.Regex(r"\w+(['’-]\w+)*"), "removed", invert=True)
    counts = Counter(word for text in texts for word, _ in split.pre_tokenize_str(text.lower()))
    words = sorted(counts, key=lambda word: (-counts[word], word))
    frequent = [word for word in words if counts[word] >= min_count]
    tokenizer: Tokenizer = package.Tokenizer(_word_level([*special, UNKNOWN, *frequent]))
    tokenizer.normalizer, tokenizer.pre_tokenizer = package.normalizers.Lowercase(), split
    return tokenizer


def _word_level(tokens: list[str]) -> "WordLevel":
    """The model of the package that looks each word up in a vocabulary."""
    vocabulary = {token: index for index, token in enumerate(tokens)}
    model: WordLevel = tokenizers_package().models.WordLevel(vocabulary, unk_token=UNKNOWN)
    return model


def tokenizer_from_json(text: str) -> "Tokenizer":
    """The tokenizer whose `to_str` gave this text."""
    try:
        tokenizer: Tokenizer = tokenizers_package().Tokenizer.from_str(text)
    except Exception as error:  # the package has no error class of its own
        raise ValueError(f"the tokenizer is broken: {error}") from None
    tokenizer.encode_special_tokens = True  # not saved with it
    return tokenizer


def encode_text(tokenizer: "Tokenizer", text: str) -> list[int]:
    """The tokens of a long text, encoded in chunks."""
    return [token for part in tokenizer.encode_batch(text_chunks(text)) for token in part.ids]


def text_chunks(text: str) -> list[str]:
    """A text in chunks of at most CHUNK characters, that end with a line if lines are not longer."""
    # the rest of the text if it is short enough, else as many whole lines as possible, else a part of a line
    return re.findall(rf"(?s).{{1,{CHUNK}}}\Z|.{{0,{CHUNK - 1}}}\n|.{{1,{CHUNK}}}", text)


class Vocabularies(NamedTuple):
    """The tokenizers of source and target sentences. A joint vocabulary is the same object twice."""

    source: "Tokenizer"
    target: "Tokenizer"

    @property
    def joint(self) -> bool:
        """Whether both languages have one vocabulary."""
        return self.source is self.target

    @property
    def sizes(self) -> tuple[int, int]:
        """The numbers of source and target tokens."""
        return self.source.get_vocab_size(), self.target.get_vocab_size()

    def encode(self, lines: Sequence[str], *, target: bool = False) -> list[list[int]]:
        """The tokens of each source sentence, or of each target sentence."""
        tokenizer = self.target if target else self.source
        return [encoding.ids for encoding in tokenizer.encode_batch_fast([line.strip() for line in lines])]

    def decode(self, ids: Iterable[Sequence[int]]) -> list[str]:
        """The sentences of target tokens."""
        return [line.strip() for line in self.target.decode_batch([list(row) for row in ids])]

    def labels(self, ids: Sequence[int], *, target: bool = False) -> list[str]:
        """Each token as readable text."""
        tokenizer = self.target if target else self.source
        return [tokenizer.decode([token], skip_special_tokens=False) or "·" for token in ids]

    def to_json(self) -> dict[str, str]:
        """The tokenizers as JSON texts by the names of their files."""
        files = {"tokenizer": self.source.to_str()}
        return files if self.joint else {**files, "target_tokenizer": self.target.to_str()}

    @classmethod
    def from_json(cls, files: Mapping[str, object]) -> "Vocabularies":
        """The vocabularies whose `to_json` gave these texts."""
        source = tokenizer_from_json(cast(str, files["tokenizer"]))
        target = cast(str | None, files.get("target_tokenizer"))
        return cls(source, source if target is None else tokenizer_from_json(target))


def train_vocabularies(
    sources: Sequence[str], targets: Sequence[str], *, tokens: str, count: int, joint: bool, lower: bool
) -> Vocabularies:
    """Vocabularies of `tokens` "pieces" (at most `count`) or "characters", learned from sentences.

    >>> both = train_vocabularies(["ab"], ["ba c"], tokens="characters", count=0, joint=True, lower=False)
    >>> both.decode(both.encode(["ab c"])), both.sizes
    (['ab c'], (8, 8))
    """

    def train(*sides: Sequence[str]) -> "Tokenizer":
        lines = (line.strip() for side in sides for line in side)
        if tokens == "characters":
            return character_tokenizer(lines, SPECIAL_TOKENS, lower=lower)
        return bpe_tokenizer(lines, count, SPECIAL_TOKENS, lower=lower, sentences=True)

    if joint:
        both = train(sources, targets)
        return Vocabularies(both, both)
    return Vocabularies(train(sources), train(targets))


class BPEDropout:
    """Lines in random pieces of a `bpe_tokenizer` (Provilkov, Emelianenko and Voita 2020, BPE-Dropout).

    BPE repeatedly merges the pair of neighbours that it learned first. Here each possible merge is skipped with some
    probability, so that a word has different pieces each time, and a model learns what pieces consist of. It is for
    training only. The package `tokenizers` has a dropout too, but without a seed.

    >>> tokenizer, lines = bpe_tokenizer(["the cat sat on the mat"] * 9, vocabulary=280), ["the cat", "the mat"]
    >>> dropout = BPEDropout(tokenizer, lines)
    >>> dropout.sample(0.0, seed="any") == [tokenizer.encode(line).ids for line in lines]
    True
    >>> tokens = dropout.sample(0.5, seed="any")
    >>> [tokenizer.decode(ids) for ids in tokens], tokens == dropout.sample(0.0, seed="any")
    (['the cat', 'the mat'], False)
    """

    def __init__(self, tokenizer: "Tokenizer", lines: Sequence[str]) -> None:
        model = json.loads(tokenizer.to_str())["model"]
        self.rank = {tuple(pair): rank for rank, pair in enumerate(model["merges"])}
        self.token: dict[str, int] = model["vocab"]
        normalize = tokenizer.normalizer.normalize_str if tokenizer.normalizer else str
        words = tokenizer.pre_tokenizer.pre_tokenize_str
        self.lines = [[word for word, _ in words(normalize(line))] for line in lines]
        self.count = Counter(chain.from_iterable(self.lines))

    def sample(self, rate: float, seed: str) -> list[list[int]]:
        """Random tokens of each line, where each merge is skipped with the probability `rate`."""
        random = Random(seed)
        splits = {
            word: [self.split(word, rate, random) for _ in range(min(count, MAX_SPLITS))]
            for word, count in self.count.items()
        }
        return [list(chain.from_iterable([random.choice(splits[word]) for word in line])) for line in self.lines]

    def split(self, word: str, rate: float, random: Random) -> list[int]:
        """Random tokens of a word."""
        parts, rank = list(word), self.rank
        while True:
            merges = [
                (rank[pair], index)
                for index, pair in enumerate(pairwise(parts))
                if pair in rank and random.random() >= rate
            ]
            if not merges:
                return [self.token[part] for part in parts]
            _, index = min(merges)
            parts[index : index + 2] = [parts[index] + parts[index + 1]]
