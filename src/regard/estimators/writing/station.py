"""The Transformer: blocks of heads, stacked. A small one learns to write from Python's own manual.

p(t₁ … t_n) = Π p(tᵢ | t₁ … tᵢ₋₁)        x ← x + heads(norm(x))        x ← x + feed_forward(norm(x))
"""

import math
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np

from regard.data.samples import dates
from regard.estimators import Translator, Writer
from regard.estimators.translation import station as seq2seq
from regard.tour.figures import draw_alignments, draw_maps
from regard.tour.findings import Finding, Passage, Picture, Row, Saved, Station, command

HELD = 20_000
"""Characters at the end of the text that nothing learns from."""
PROMPT, LINE = "The statement", "def f(self):"
SHOWN = 4
"""Heads in the picture."""


def manual() -> str:
    """Python's manual of its own language: every machine that runs this has it."""
    import pydoc_data.topics

    return "\n".join(pydoc_data.topics.topics.values())


def visit(folder: Path, seed: int, quick: bool) -> Iterator[Finding]:
    """Dates again, without recurrence; then a language model of characters."""
    yield from dated(folder, seed, quick)
    yield from written(folder, seed, quick)


def dated(folder: Path, seed: int, quick: bool) -> Iterator[Finding]:
    """A Transformer that reads dates, against the recurrent network that has one vector for all it read."""
    pairs, epochs = dates(400 if quick else 3000, seed), 2 if quick else 8
    settings = seq2seq.SETTINGS | {"hidden": 128, "random_state": seed}
    translator = Translator("transformer", blocks=2, heads=4, epochs=epochs, **settings).fit(*pairs)
    recurrent = Translator("rnn", epochs=epochs, **seq2seq.SETTINGS, random_state=seed).fit(*pairs)
    scores = [seq2seq.exact(one, seed) for one in (translator, recurrent)]
    yield Row("dates", "Transformer, 2 blocks", "exact", scores[0], "rnn, one context", scores[1])
    yield Picture(
        "alignment",
        draw_alignments({"Transformer, the mean of its heads": translator.evidence(seq2seq.ASKED, seq2seq.ANSWER)}),
        "The same alignment, without recurrence",
        "Each block of the decoder looks at the encoder's rows with four heads; this is the mean of all eight. A row"
        " has seen all others before it is looked at: a look can mean more than the character that stands there.",
        f"A heat map of {seq2seq.ANSWER} by {seq2seq.ASKED!r}: the rows of the year are dark at the year, the others"
        " at the month and the day.",
    )
    place = translator.save(folder / "dates")
    yield Saved(place, (seq2seq.asking(place),))


def written(folder: Path, seed: int, quick: bool) -> Iterator[Finding]:
    """A Writer of characters, against counts of which character follows two."""
    text = manual()
    learned, held = text[:-HELD], text[-HELD:]
    steps = {"context": 64, "size": 32, "steps": 60} if quick else {"context": 64, "size": 128, "steps": 600}
    writer = Writer(
        blocks=2,
        heads=4,
        learning_rate=4e-3,
        dropout=0.0,
        validate_every=500,
        random_state=seed,
        **steps,
    ).fit(learned)
    yield Row(
        "Python's manual",
        "Writer, 2 blocks",
        "perplexity",
        writer.perplexity(held),
        "trigrams",
        trigrams(learned, held),
        True,
    )
    yield Passage(
        "What it writes",
        f"It has read {len(learned):,} characters, {steps['steps']} times a thousand of them, and goes on from"
        f" “{PROMPT}”, a character at a time. The words are its own; it was never told what a word is.",
        writer.write(PROMPT, 120 if quick else 400, temperature=0.6, seed=seed),
    )
    evidence = writer.evidence(LINE, top=len(LINE))
    shown = [character.replace(" ", "␣") for character in evidence.tokens]
    maps = [
        (f"block {block}, head {head}", evidence.matrix(block, head), shown)
        for block, head in np.ndindex(*evidence.index.shape[:2])
    ]
    sharpest = sorted(maps, key=lambda found: -found[1].max(axis=1)[1:].mean())[:SHOWN]
    yield Picture(
        "heads",
        draw_maps(sorted(sharpest, key=lambda found: found[0]), 5.4),
        "Heads look at different things, and never ahead",
        f"The {SHOWN} of {len(maps)} heads that look most sharply. A row is a character that looks back, dark is what"
        " it looks at. Nothing is above the diagonal: the mask is causal.",
        f"Maps of the characters of {LINE!r}, one for each of {SHOWN} heads, all empty above the diagonal.",
    )
    place = writer.save(folder / "writer")
    writing = command("regard", "write", place, "--prompt", PROMPT, "--temperature", "0.6")
    yield Saved(place, (writing, command("regard", "info", place)))


def trigrams(learned: str, held: str, smooth: float = 0.1) -> float:
    """The perplexity of a text by how often each character followed the two before it, `smooth` added to all counts."""
    three = Counter(zip(learned, learned[1:], learned[2:], strict=False))
    two = Counter(pairwise(learned))
    letters = len(set(learned))
    loss = 0.0
    for first, second, third in zip(held, held[1:], held[2:], strict=False):
        loss -= math.log((three[first, second, third] + smooth) / (two[first, second] + smooth * letters))
    return math.exp(loss / (len(held) - 2))


STATIONS = (
    Station(
        "transformer",
        "The Transformer",
        "Vaswani and others, 2017: heads, a feed-forward, two residual sums; then the same again. Trained to say"
        " the next"
        " character, it writes.",
        visit,
        findings=7,
        chapter=6,
    ),
)
