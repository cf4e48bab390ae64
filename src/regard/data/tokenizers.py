"""The tokens of two languages: one vocabulary for both, or one for each."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from regard.data import text as texts
from regard.data.sentence_pairs import SPECIAL

if TYPE_CHECKING:
    from tokenizers import Tokenizer


class Vocabularies(NamedTuple):
    """How sentences become tokens, and tokens sentences. A joint vocabulary is the same twice."""

    source: "Tokenizer"
    target: "Tokenizer"

    @property
    def joint(self) -> bool:
        """Whether it is one for both."""
        return self.source is self.target

    @property
    def sizes(self) -> tuple[int, int]:
        """How many tokens there are on either side."""
        return self.source.get_vocab_size(), self.target.get_vocab_size()

    def coded(self, lines: Sequence[str], *, target: bool = False) -> list[list[int]]:
        """The tokens of each sentence."""
        tokenizer = self.target if target else self.source
        return [found.ids for found in tokenizer.encode_batch_fast([line.strip() for line in lines])]

    def written(self, ids: Iterable[Sequence[int]]) -> list[str]:
        """The sentences that target tokens are."""
        return [line.strip() for line in self.target.decode_batch([list(row) for row in ids])]

    def shown(self, ids: Sequence[int], *, target: bool = False) -> list[str]:
        """Each token as a reader knows it."""
        tokenizer = self.target if target else self.source
        return [tokenizer.decode([one], skip_special_tokens=False) or "·" for one in ids]

    def saved(self) -> dict[str, str]:
        """As texts, to be written beside a model."""
        both = {"tokenizer": self.source.to_str()}
        return both if self.joint else {**both, "target_tokenizer": self.target.to_str()}

    @classmethod
    def restored(cls, saved: dict[str, Any]) -> "Vocabularies":
        """What `saved` was taken of."""
        source = texts.restored(saved["tokenizer"])
        target = saved.get("target_tokenizer")
        return cls(source, source if target is None else texts.restored(target))


def vocabularies(
    sources: Sequence[str], targets: Sequence[str], *, tokens: str, count: int, joint: bool, lower: bool
) -> Vocabularies:
    """Vocabularies of pieces or characters, learned from sentences.

    >>> both = vocabularies(["ab"], ["ba c"], tokens="characters", count=0, joint=True, lower=False)
    >>> both.written(both.coded(["ab c"])), both.sizes
    (['ab c'], (8, 8))
    """

    def made(*sides: Sequence[str]) -> "Tokenizer":
        lines = (line.strip() for side in sides for line in side)
        if tokens == "characters":
            return texts.characters(lines, SPECIAL, lower=lower)
        return texts.pieces(lines, count, SPECIAL, lower=lower, sentences=True)

    if joint:
        one = made(sources, targets)
        return Vocabularies(one, one)
    return Vocabularies(made(sources), made(targets))
