"""Words in other pieces than the tokenizer's own: BPE-dropout.

BPE joins the two neighbours that it learned to join first, again and again. Here each pair that could be joined is
passed over with some probability, each time anew, so that a word is now these pieces and now those, and who learns from
them learns what pieces are made of (Provilkov, Emelianenko and Voita, "BPE-Dropout: Simple and Effective Subword
Regularization", 2020). What is read later is split as ever.

`tokenizers` has a dropout too, but takes its chances from the system. These are drawn by a seed.
"""

import json
from collections import Counter
from collections.abc import Sequence
from itertools import chain, pairwise
from random import Random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenizers import Tokenizer

WAYS = 16
"""In how many ways at most one word is split in one draw: the commonest words are most of a text."""


class Splits:
    """Lines as pieces that are drawn, by a tokenizer of `regard.data.text.pieces`.

    >>> from regard.data.text import pieces
    >>> tokenizer, lines = pieces(["the cat sat on the mat"] * 9, vocabulary=280), ["the cat", "the mat"]
    >>> splits = Splits(tokenizer, lines)
    >>> splits.drawn(0.0, seed="any") == [tokenizer.encode(line).ids for line in lines]
    True
    >>> drawn = splits.drawn(0.5, seed="any")
    >>> [tokenizer.decode(ids) for ids in drawn], drawn == splits.drawn(0.0, seed="any")
    (['the cat', 'the mat'], False)
    """

    def __init__(self, tokenizer: "Tokenizer", lines: Sequence[str]) -> None:
        model = json.loads(tokenizer.to_str())["model"]
        self.rank = {tuple(pair): place for place, pair in enumerate(model["merges"])}
        self.number: dict[str, int] = model["vocab"]
        normal = tokenizer.normalizer.normalize_str if tokenizer.normalizer else str
        words = tokenizer.pre_tokenizer.pre_tokenize_str
        self.lines = [[word for word, _ in words(normal(line))] for line in lines]
        self.count = Counter(chain.from_iterable(self.lines))

    def drawn(self, share: float, seed: str) -> list[list[int]]:
        """The tokens of each line, where each join is passed over with the probability `share`."""
        random = Random(seed)
        ways = {
            word: [self.split(word, share, random) for _ in range(min(count, WAYS))]
            for word, count in self.count.items()
        }
        return [list(chain.from_iterable([random.choice(ways[word]) for word in line])) for line in self.lines]

    def split(self, word: str, share: float, random: Random) -> list[int]:
        """The tokens of a word."""
        parts, rank = list(word), self.rank
        while True:
            joins = [
                (rank[pair], place)
                for place, pair in enumerate(pairwise(parts))
                if pair in rank and random.random() >= share
            ]
            if not joins:
                return [self.number[part] for part in parts]
            _, place = min(joins)
            parts[place : place + 2] = [parts[place] + parts[place + 1]]
