"""The tour's stations for translation, on dates: recurrent networks without and with attention, and the Transformer.

rnn: c = h_n        Bahdanau, Luong: c_t = Σᵢ α_ti hᵢ,  α_t = softmax_i(score(s, hᵢ))
Transformer: x ← x + heads(norm(x)), x ← x + feed_forward(norm(x))
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from regard.data.samples import dates, held_out_dates
from regard.estimators.translation.estimator import Translator
from regard.estimators.translation.evidence import Alignment
from regard.tour.figures import draw_maps
from regard.tour.findings import Command, Finding, Picture, Row, Station, command

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SETTINGS: dict[str, Any] = {
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
"""The settings of every translator here, except for its model."""
_DATE, _ISO_DATE = "Tuesday, 9 August 1988", "1988-08-09"
HELD_OUT, _QUICK_HELD_OUT = 200, 40
"""The number of dates that measure a model, and in a quick tour; none of them is trained on."""


def exact_fraction(translator: Translator, seed: int, count: int = HELD_OUT) -> float:
    """The fraction of held-out dates that are translated without a mistake."""
    sources, targets = held_out_dates(count, seed)
    pairs = zip(translator.translate(sources), targets, strict=True)
    return float(np.mean([translation == target for translation, target in pairs]))


def _visit_recurrent(folder: Path, seed: int, quick: bool) -> Iterator[Finding]:
    """Written dates to ISO dates by recurrent networks, without and with attention."""
    pairs, epochs, count = (dates(200, seed), 2, _QUICK_HELD_OUT) if quick else (dates(3000, seed), 4, HELD_OUT)
    recurrent = Translator("rnn", epochs=epochs, random_state=seed, **_SETTINGS).fit(*pairs)
    baseline = exact_fraction(recurrent, seed, count)
    alignments: dict[str, Alignment] = {}
    models: tuple[Literal["bahdanau", "luong"], ...] = ("bahdanau", "luong")
    for model in models:
        translator = Translator(model, attention="concat", epochs=epochs, random_state=seed, **_SETTINGS).fit(*pairs)
        yield Row("dates", model, "exact", exact_fraction(translator, seed, count), "rnn, one context", baseline)
        alignments[model] = translator.evidence(_DATE, _ISO_DATE)
        saved = translator.save(folder / model)
        yield translate_command(saved)
        yield command("regard", "info", saved)
    yield Picture(
        "alignment",
        _draw_alignments(alignments),
        "The year is read where the year stands",
        "A row is a character of the translation, dark is where it looked in the date as it was written. Nobody told"
        " the model which character belongs to which: the alignment is what it found useful. The ■ is the end.",
        f"Two heat maps of {_ISO_DATE} by {_DATE!r}: the rows of the year are dark at the year, those of the month at"
        " its name, those of the day at the day.",
    )


def _visit_transformer(folder: Path, seed: int, quick: bool) -> Iterator[Finding]:
    """The same dates by a Transformer, against the recurrent network with one context vector."""
    pairs, epochs, count = (dates(200, seed), 2, _QUICK_HELD_OUT) if quick else (dates(3000, seed), 8, HELD_OUT)
    settings = _SETTINGS | {"hidden": 128, "random_state": seed}
    translator = Translator("transformer", blocks=2, heads=4, epochs=epochs, **settings).fit(*pairs)
    recurrent = Translator("rnn", epochs=epochs, **_SETTINGS, random_state=seed).fit(*pairs)
    score, baseline = (exact_fraction(each, seed, count) for each in (translator, recurrent))
    yield Row("dates", "Transformer, 2 blocks", "exact", score, "rnn, one context", baseline)
    yield Picture(
        "alignment",
        _draw_alignments({"Transformer, the mean of its heads": translator.evidence(_DATE, _ISO_DATE)}),
        "The same alignment, without recurrence",
        "Each block of the decoder looks at the encoder's rows with four heads; this is the mean of all eight. A row"
        " has seen all others before it is looked at: a look can mean more than the character that stands there.",
        f"A heat map of {_ISO_DATE} by {_DATE!r}: the rows of the year are dark at the year, the others"
        " at the month and the day.",
    )
    yield translate_command(translator.save(folder / "dates"))


def _draw_alignments(alignments: dict[str, Alignment]) -> "Figure":
    """The maps of alignments, by the names of their models, below each other."""
    maps = {name: (one.weight, one.source, one.target) for name, one in alignments.items()}
    return draw_maps(maps, 0.3 + 3.15 * len(maps), columns=1, labels=("looks at", "writes"))


def translate_command(folder: Path) -> Command:
    """The command that translates the date of the picture."""
    return Command(f"{command('echo', _DATE).line} | {command('regard', 'translate', folder).line}")


STATIONS = (
    Station(
        "seq2seq",
        "Sequence to sequence",
        "An RNN reads a sentence and another writes its translation. If one vector has to carry everything, the"
        " beginning is lost; with attention, each step looks for itself (Bahdanau and others 2015, Luong and others"
        " 2015).",
        _visit_recurrent,
        findings=7,
        chapter=3,
    ),
    Station(
        "transformer",
        "The Transformer",
        "Vaswani and others, 2017: heads, a feed-forward, two residual sums; then the same again. It translates without"
        " recurrence.",
        _visit_transformer,
        findings=3,
        chapter=6,
    ),
)
