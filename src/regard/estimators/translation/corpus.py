"""Sentence pairs as a translator trains on them: validation pairs, vocabularies, tokens, and what is left out."""

import functools
import warnings
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from regard.data.text import Pairs, as_pairs
from regard.data.tokenizers import BPEDropout, Vocabularies

VALIDATED = 1000
"""The maximum number of sentences that a validation translates."""


class _TokenPairs(NamedTuple):
    """The tokens of sources and of their targets."""

    sources: list[list[int]]
    targets: list[list[int]]


class Corpus(NamedTuple):
    """All that a translator trains on."""

    given: Pairs  # all pairs, usable or not
    validation: Pairs
    training: Pairs
    tokens: _TokenPairs  # of the training pairs
    vocabularies: Vocabularies
    longest: int  # the maximum number of tokens of a sentence
    left_out: dict[str, list[int]]  # indices of the pairs that cannot be used, by the reason

    @property
    def bleu_tokenizer(self) -> str:
        """sacreBLEU's name for the unit of the validation BLEU."""
        return bleu_tokenizer(self.validation.targets[:VALIDATED])

    @property
    def longest_target(self) -> int:
        """The number of tokens of the longest training target."""
        return max(map(len, self.tokens.targets))


def prepare_corpus(
    pairs: Pairs,
    validation: object,
    make_vocabularies: Callable[[Sequence[str], Sequence[str]], Vocabularies],
    *,
    longest: int,
    validation_fraction: float,
    seed: int,
) -> Corpus:
    """Split, tokenize and filter pairs of sentences; a warning counts the pairs that are left out.

    validation          sources and targets to validate with; None: a random `validation_fraction` of the pairs
    make_vocabularies   from training sources and targets to vocabularies
    """
    _warn_of_copies(pairs)
    if validation is None:
        among, held_out = _split_indices(len(pairs.sources), validation_fraction, seed)
        validation_pairs = _select_pairs(pairs, held_out)
    else:
        among, validation_pairs = list(range(len(pairs.sources))), _checked_validation(validation)
    vocabularies = make_vocabularies(*_select_pairs(pairs, among))
    usable, tokens, left_out = _usable_pairs(vocabularies, pairs, longest, among)
    return Corpus(pairs, validation_pairs, _select_pairs(pairs, usable), tokens, vocabularies, longest, left_out)


def _split_indices(total: int, fraction: float, seed: int) -> tuple[list[int], list[int]]:
    """The indices of random pairs to train on, and of those to validate with."""
    count = max(1, round(fraction * total))
    if count >= total:
        raise ValueError(f"{count} of {total} pairs are held out for validation, which leaves none to train on")
    order = np.random.default_rng(seed).permutation(total).tolist()
    return sorted(order[count:]), sorted(order[:count])


def _select_pairs(pairs: Pairs, indices: Sequence[int]) -> Pairs:
    """The pairs at some indices."""
    return Pairs(*([side[index] for index in indices] for side in pairs))


def _usable_pairs(
    vocabularies: Vocabularies, pairs: Pairs, longest: int, among: Sequence[int]
) -> tuple[list[int], _TokenPairs, dict[str, list[int]]]:
    """The indices and tokens of the pairs `among` some indices that can be trained on, and the indices of all that
    cannot be used, by the reason.
    """
    tokens = _TokenPairs(vocabularies.encode(pairs.sources), vocabularies.encode(pairs.targets, target=True))
    both = list(zip(*tokens, strict=True))
    empty = [index for index, pair in enumerate(both) if not all(pair)]
    long = [index for index, pair in enumerate(both) if max(map(len, pair)) > longest]
    left_out = {*empty, *long}
    reasons = f"{len(empty)} of {len(both)} have an empty side, {len(long)} have more than longest={longest} tokens"
    usable = [index for index in among if index not in left_out]
    if not usable:
        raise ValueError(f"no pair is left to train on: {reasons}")
    if left_out:
        warnings.warn(f"{len(left_out)} pairs are left out: {reasons}", stacklevel=4)
    kept = _TokenPairs(*([side[index] for index in usable] for side in tokens))
    return usable, kept, {"empty": empty, "long": long}


def _checked_validation(validation: object) -> Pairs:
    """The given validation pairs, without those that have an empty side: no score can be computed for them."""
    if not isinstance(validation, tuple | list) or len(validation) != 2:
        raise TypeError(f"validation must be two lists, sources and targets, got {type(validation).__name__}")
    pairs = as_pairs(*validation)
    full = [index for index, pair in enumerate(zip(*pairs, strict=True)) if all(side.strip() for side in pair)]
    if not full:
        raise ValueError("validation must have a pair without an empty side, got none")
    empty, total = len(pairs.sources) - len(full), len(pairs.sources)
    if empty:
        warnings.warn(f"{empty} of {total} validation pairs have an empty side and are left out", stacklevel=4)
    return _select_pairs(pairs, full)


def _warn_of_copies(pairs: Pairs) -> None:
    """Warn if most targets equal their sources: probably one file was given twice."""
    equal = sum(source.strip() == target.strip() for source, target in zip(*pairs, strict=True))
    if 2 * equal > len(pairs.sources):
        warnings.warn(
            f"{equal} of {len(pairs.sources)} targets are the same as their sources: is one file given twice?",
            stacklevel=4,
        )


def bleu_tokenizer(targets: Sequence[str]) -> str:
    """sacreBLEU's name for the unit of a validation BLEU: "13a", words, or "char", characters.

    BLEU counts sequences of four. If most targets have fewer words (dates, names, languages without spaces), the BLEU
    of words would be 0 in every epoch.

    >>> bleu_tokenizer(["A dog runs in the park."]), bleu_tokenizer(["19760704", "20260131"])
    ('13a', 'char')
    """
    short = sum(len(target.split()) < 4 for target in targets)
    return "char" if 2 * short > len(targets) else "13a"


def tokens_by_epoch(corpus: Corpus, piece_dropout: float, seed: int) -> Callable[[int], _TokenPairs]:
    """From an epoch to its training tokens: always the same ones, or with `piece_dropout` random pieces."""
    if not piece_dropout:
        return lambda epoch: corpus.tokens
    sides = [
        BPEDropout(tokenizer, [line.strip() for line in lines])
        for tokenizer, lines in zip(corpus.vocabularies, corpus.training, strict=True)
    ]

    @functools.lru_cache(maxsize=1)  # epoch 0 is needed twice: once to count its batches
    def random_tokens(epoch: int) -> _TokenPairs:
        both = [side.sample(piece_dropout, f"{seed} {epoch} {number}") for number, side in enumerate(sides)]
        # More pieces may exceed the maximum length: such a sentence keeps its usual ones.
        return _TokenPairs(
            *(
                [ids if len(ids) <= corpus.longest else usual for ids, usual in zip(new, old, strict=True)]
                for new, old in zip(both, corpus.tokens, strict=True)
            )
        )

    return random_tokens
