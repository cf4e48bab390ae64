"""Pairs of sentences as a translator learns from them: what is held out, what can be used, what looks wrong."""

import warnings
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from regard.data.vocabularies import Vocabularies


class Pairs(NamedTuple):
    """Sources and their targets."""

    sources: Sequence[str]
    targets: Sequence[str]


class Coded(NamedTuple):
    """The tokens of sources and of their targets."""

    sources: list[list[int]]
    targets: list[list[int]]


def held_out(sources: Sequence[str], targets: Sequence[str], fraction: float, seed: int) -> tuple[Pairs, Pairs]:
    """Pairs to learn from, and pairs to validate with, drawn by a seed."""
    count = max(1, round(fraction * len(sources)))
    if count >= len(sources):
        raise ValueError(f"{count} of {len(sources)} pairs are held out to validate with, which leaves none: give more")
    order = np.random.default_rng(seed).permutation(len(sources))
    learned, validated = (
        Pairs([sources[place] for place in part], [targets[place] for place in part])
        for part in (np.sort(order[count:]), np.sort(order[:count]))
    )
    return learned, validated


def usable(
    known: Vocabularies, sources: Sequence[str], targets: Sequence[str], longest: int
) -> tuple[Coded, dict[str, list[int]]]:
    """The tokens of the pairs that can be learned from, and the places, from 0, of those that cannot."""
    coded = Coded(known.coded(sources), known.coded(targets, target=True))
    pairs = list(zip(*coded, strict=True))
    empty = [place for place, pair in enumerate(pairs) if not all(pair)]
    long = [place for place, pair in enumerate(pairs) if max(map(len, pair)) > longest]
    left = {*empty, *long}
    told = f"{len(empty)} of {len(pairs)} have an empty side, {len(long)} are longer than {longest} tokens, `longest`"
    if len(left) == len(pairs):
        raise ValueError(f"no pair is left to learn from: {told}")
    if left:
        warnings.warn(f"{len(left)} pairs are left out: {told}", stacklevel=3)
    kept = [place for place in range(len(pairs)) if place not in left]
    return Coded(*([side[place] for place in kept] for side in coded)), {"empty": empty, "long": long}


def warn_of_equals(sources: Sequence[str], targets: Sequence[str]) -> None:
    """Where most sources are their own targets, one file was given twice."""
    equal = sum(one.strip() == other.strip() for one, other in zip(sources, targets, strict=True))
    if 2 * equal > len(sources):
        warnings.warn(
            f"{equal} of {len(sources)} targets are the same as their sources: is one file given twice?", stacklevel=3
        )
