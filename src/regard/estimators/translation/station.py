"""Sequence to sequence: one context vector for all words, and one for each.

vanilla: c = h_n        Bahdanau, Luong: c_t = Σᵢ α_ti hᵢ,  α_t = softmax_i(score(s, hᵢ))
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np

from regard.data.samples import dates, held_out_dates
from regard.estimators import Translator
from regard.estimators.translation.evidence import Alignment
from regard.tour.figures import draw_alignments
from regard.tour.findings import Finding, Picture, Row, Saved, Station, command

SETTINGS: dict[str, Any] = {
    "tokens": "characters",
    "size": 32,
    "hidden": 64,
    "batch_tokens": 512,
    "learning_rate": 0.01,
    "warm": 50,
    "dropout": 0.0,
    "smoothing": 0.0,
    "average": 1,
}
"""Of every translator of dates here, but for its model."""
MODELS: tuple[Literal["bahdanau", "luong"], ...] = ("bahdanau", "luong")
ASKED, ANSWER = "Tuesday, 9 August 1988", "1988-08-09"
HELD_OUT = 200


def exact(translator: Translator, seed: int) -> float:
    """The share of days it has never seen that it writes without a mistake."""
    asked, right = held_out_dates(HELD_OUT, seed)
    return float(np.mean([one == other for one, other in zip(translator.translate(asked), right, strict=True)]))


def visit(folder: Path, seed: int, quick: bool) -> Iterator[Finding]:
    """Dates as people write them into ISO's way, without attention and with it."""
    pairs = dates(400 if quick else 3000, seed)
    epochs = 2 if quick else 4
    without = Translator("rnn", epochs=epochs, random_state=seed, **SETTINGS).fit(*pairs)
    before = exact(without, seed)
    drawn: dict[str, Alignment] = {}
    places = []
    for model in MODELS:
        translator = Translator(model, attention="concat", epochs=epochs, random_state=seed, **SETTINGS).fit(*pairs)
        yield Row("dates", model, "exact", exact(translator, seed), "rnn, one context", before)
        drawn[model] = translator.evidence(ASKED, ANSWER)
        places.append(translator.save(folder / model))
    yield Picture(
        "alignment",
        draw_alignments(drawn),
        "The year is read where the year stands",
        "A row is a character of the translation, dark is where it looked in the date as it was written. Nobody told"
        " the model which character belongs to which: the alignment is what it found useful. The ■ is the end.",
        f"Two heat maps of {ANSWER} by {ASKED!r}: the rows of the year are dark at the year, those of the month at"
        " its name, those of the day at the day.",
    )
    for place in places:
        yield Saved(place, (asking(place), command("regard", "info", place)))


def asking(place: Path) -> str:
    """The command that has a translator read the date of the picture."""
    return f"{command('echo', ASKED)} | {command('regard', 'translate', place)}"


STATIONS = (
    Station(
        "seq2seq",
        "Sequence to sequence",
        "An RNN reads a sentence and another writes its translation. Where one vector has to carry everything, what"
        " is far"
        " back is lost; with attention, each step looks for itself (Bahdanau and others 2015, Luong and others 2015).",
        visit,
        findings=5,
        chapter=3,
    ),
)
