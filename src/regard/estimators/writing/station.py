"""The tour's station for language models: a small Transformer learns to write from Python's own manual.

p(t₁ … t_n) = Π p(tᵢ | t₁ … tᵢ₋₁)
"""

import math
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np

from regard.estimators.writing.estimator import Writer
from regard.estimators.writing.evidence import TextEvidence
from regard.tour.figures import draw_maps
from regard.tour.findings import Finding, Passage, Picture, Row, Station, command

_HELD_OUT, _QUICK_HELD_OUT = 20_000, 4_000
"""The number of characters at the end of the text that measure a model; nothing is trained on them."""
_PROMPT, LINE = "The statement", "def f(self):"
HEADS = 4
"""The number of heads in the picture."""


def python_manual() -> str:
    """Python's manual of its own language: it is part of every Python."""
    import pydoc_data.topics

    return "\n".join(pydoc_data.topics.topics.values())


def visit(folder: Path, seed: int, quick: bool) -> Iterator[Finding]:
    """A Writer of characters, against trigrams."""
    text = python_manual()
    count = _QUICK_HELD_OUT if quick else _HELD_OUT
    training, held_out = text[:-count], text[-count:]
    size, steps = (32, 60) if quick else (128, 600)
    writer = Writer(
        context=64,
        blocks=2,
        heads=4,
        size=size,
        steps=steps,
        learning_rate=4e-3,
        dropout=0.0,
        validate_every=500,
        random_state=seed,
    ).fit(training)
    score, baseline = writer.perplexity(held_out), trigram_perplexity(training, held_out)
    yield Row("Python's manual", "Writer, 2 blocks", "perplexity", score, "trigrams", baseline, lower=True)
    yield Passage(
        "What it writes",
        f"It was trained on {len(training):,} characters, {steps} times a thousand of them, and continues"
        f" “{_PROMPT}”, a character at a time. The words are its own; it was never told what a word is.",
        writer.write(_PROMPT, 120 if quick else 400, temperature=0.6, seed=seed),
    )
    yield heads_picture(writer.evidence(LINE, top=len(LINE)))
    saved = writer.save(folder / "writer")
    yield command("regard", "write", saved, "--prompt", _PROMPT, "--temperature", "0.6")
    yield command("regard", "info", saved)


def heads_picture(evidence: TextEvidence) -> Picture:
    """The attention of the heads with the largest weights."""
    maps = {(block, head): evidence.matrix(block, head) for block, head in np.ndindex(*evidence.index.shape[:2])}
    sharpest = sorted(maps, key=lambda head: -maps[head].max(axis=1)[1:].mean())[:HEADS]
    shown = {
        f"block {block}, head {head}": (maps[block, head], evidence.tokens, evidence.tokens)
        for block, head in sorted(sharpest)
    }
    return Picture(
        "heads",
        draw_maps(shown, 5.4),
        "Heads look at different things, and never ahead",
        f"The {HEADS} of {len(maps)} heads that look most sharply. A row is a character that looks back, dark is what"
        " it looks at. Nothing is above the diagonal: the mask is causal.",
        f"Maps of the characters of {LINE!r}, one for each of {HEADS} heads, all empty above the diagonal.",
    )


def trigram_perplexity(training: str, held_out: str, smoothing: float = 0.1) -> float:
    """The perplexity of a text by the counts of each character after the two before it, plus `smoothing` each."""
    three = Counter(zip(training, training[1:], training[2:], strict=False))
    two = Counter(pairwise(training))
    letters = len(set(training))
    loss = 0.0
    for first, second, third in zip(held_out, held_out[1:], held_out[2:], strict=False):
        loss -= math.log((three[first, second, third] + smoothing) / (two[first, second] + smoothing * letters))
    return math.exp(loss / (len(held_out) - 2))


STATIONS = (
    Station(
        "writer",
        "The language model",
        "A Transformer without an encoder, trained to predict the next character: it writes.",
        visit,
        findings=5,
        chapter=7,
    ),
)
