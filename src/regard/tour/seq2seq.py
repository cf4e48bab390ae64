"""Sequence to sequence: one context vector for all words, and one for each.

vanilla: c = h_n        Bahdanau, Luong: c_t = Σᵢ α_ti hᵢ,  α_t = softmax_i(score(s, hᵢ))
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np

from regard.data.dates import dates, held_out_dates
from regard.estimators import Translator
from regard.plots import alignment_map
from regard.tour.drawing import tall
from regard.tour.station import Finding, Picture, Row, Saved, Station

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
ASKED = "Tuesday, 9 August 1988"
HELD_OUT = 200


def exact(translator: Translator, seed: int) -> float:
    """The share of days it has never seen that it writes without a mistake."""
    asked, right = held_out_dates(HELD_OUT, seed)
    return float(np.mean([one == other for one, other in zip(translator.translate(asked), right, strict=True)]))


def visit(folder: Path, seed: int, quick: bool) -> Iterator[Finding]:
    """Dates as people write them into ISO's way, without attention and with it."""
    pairs = dates(400 if quick else 3000, seed)
    epochs = 2 if quick else 6
    without = Translator("rnn", epochs=epochs, random_state=seed, **SETTINGS).fit(*pairs)
    before = exact(without, seed)
    drawn = []
    for model in MODELS:
        translator = Translator(model, attention="concat", epochs=epochs, random_state=seed, **SETTINGS).fit(*pairs)
        yield Row("dates", model, "exact", exact(translator, seed), "rnn, one context", before)
        drawn.append((model, translator.evidence(ASKED, "1988-08-09")))
        place = translator.save(folder / model)
    figure = tall(6.6)
    for axes, (model, found) in zip(figure.subplots(2, 1), drawn, strict=True):
        alignment_map(found.weight, [one.replace(" ", "␣") for one in found.source], found.target, axes)
        axes.set_title(model, loc="left", fontsize="medium")
        axes.set(xlabel="looks at", ylabel="writes")
    yield Picture(
        "alignment",
        figure,
        "The year is read where the year stands",
        "A row is a character of the translation, dark is where it looked in the date as it was written. Nobody told"
        " the model which character belongs to which: the alignment is what it found useful. The ■ is the end.",
        f"Two heat maps of 1988-08-09 by {ASKED!r}: the rows of the year are dark at the year, those of the month at"
        " its name, those of the day at the day.",
    )
    yield Saved(place, (f"echo '{ASKED}' | regard translate {place}", f"regard info {place}"))


STATION = Station(
    "seq2seq",
    "Sequence to sequence",
    "An RNN reads a sentence and another writes its translation. Where one vector has to carry everything, what is far"
    " back is lost; with attention, each step looks for itself (Bahdanau and others 2015, Luong and others 2015).",
    visit,
    findings=4,
)
