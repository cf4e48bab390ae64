"""Pairs of sentences as a translator learns from them: what is held out, what can be used, what looks wrong."""

import warnings
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from regard.data.sentence_pairs import Pairs
from regard.data.tokenizers import Vocabularies


class Coded(NamedTuple):
    """The tokens of sources and of their targets."""

    sources: list[list[int]]
    targets: list[list[int]]


def held_out(pairs: Pairs, fraction: float, seed: int) -> tuple[list[int], list[int]]:
    """The places of pairs to learn from, and of pairs to validate with, drawn by a seed."""
    total = len(pairs.sources)
    count = max(1, round(fraction * total))
    if count >= total:
        raise ValueError(f"{count} of {total} pairs are held out to validate with, which leaves none: give more")
    order = np.random.default_rng(seed).permutation(total).tolist()
    return sorted(order[count:]), sorted(order[:count])


def some(pairs: Pairs, places: Sequence[int]) -> Pairs:
    """The pairs at some places."""
    return Pairs(*([side[place] for place in places] for side in pairs))


def usable(known: Vocabularies, pairs: Pairs, longest: int, among: Sequence[int]) -> tuple[Coded, dict[str, list[int]]]:
    """The tokens of the pairs that can be learned from, and the places of all that cannot be used.

    among   the places of the pairs to learn from; the others are to validate with
    """
    coded = Coded(known.coded(pairs.sources), known.coded(pairs.targets, target=True))
    both = list(zip(*coded, strict=True))
    empty = [place for place, pair in enumerate(both) if not all(pair)]
    long = [place for place, pair in enumerate(both) if max(map(len, pair)) > longest]
    left = {*empty, *long}
    told = f"{len(empty)} of {len(both)} have an empty side, {len(long)} are longer than {longest} tokens, `longest`"
    kept = [place for place in among if place not in left]
    if not kept:
        raise ValueError(f"no pair is left to learn from: {told}")
    if left:
        warnings.warn(f"{len(left)} pairs are left out: {told}", stacklevel=4)
    return Coded(*([side[place] for place in kept] for side in coded)), {"empty": empty, "long": long}


def warn_of_equals(pairs: Pairs) -> None:
    """Where most sources are their own targets, one file was given twice."""
    equal = sum(source.strip() == target.strip() for source, target in zip(*pairs, strict=True))
    if 2 * equal > len(pairs.sources):
        warnings.warn(
            f"{equal} of {len(pairs.sources)} targets are the same as their sources: is one file given twice?",
            stacklevel=4,
        )
