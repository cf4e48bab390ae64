"""Captions: before each word, look at the grid of an image, softly at all cells or hard at one of them.

    z_t = Σᵢ α_ti aᵢ        hard: z_t = a_s, s ~ α_t        α_t = softmax_i(wᵀ tanh(W_q h_{t−1} + W_k aᵢ))

The doubly stochastic term, λ Σᵢ (1 − Σₜ α_ti)², asks that each cell be looked at as much as any other.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from regard.data.samples import Scenes, scenes
from regard.estimators import Captioner
from regard.tour.figures import draw_coverage, draw_strips
from regard.tour.findings import Finding, Picture, Row, Saved, Station, command

Array = Any
SETTINGS: dict[str, Any] = {
    "least": 1,
    "size": 64,
    "hidden": 128,
    "score_size": 64,
    "dropout": 0.0,
    "spread": 0.0,
    "batch_size": 16,
    "learning_rate": 4e-3,
    "warm": 50,
}
"""Of every captioner here, but for how it looks."""
SPREAD = 0.1
"""λ, where the term is on."""
HELD_OUT, LOOKED = 200, 40
"""Scenes that are captioned, and those of them whose weights are counted."""
WORDS, COVERED = 9, 3
"""Words in the caption that is drawn, and scenes whose coverage is."""


class OneVector(nn.Module):
    """An encoder whose grid is one cell, the mean of another's: whoever looks at it sees everything and no place."""

    def __init__(self, encoder: Any) -> None:
        super().__init__()
        self.encoder, self.image_size, self.channels = encoder, encoder.image_size, encoder.channels
        self.prepare = encoder.prepare

    def forward(self, image: Tensor) -> Tensor:
        """Images `[batch, 3, side, side]` to `[batch, channels, 1, 1]`."""
        return self.encoder(image).mean(dim=(2, 3), keepdim=True)  # type: ignore[no-any-return]


def visit(folder: Path, seed: int, quick: bool) -> Iterator[Finding]:
    """Scenes of shapes, one encoder, and four ways to look at its grid."""
    learned, held = scenes(100 if quick else 2000, seed), scenes(LOOKED if quick else HELD_OUT, seed + 1)
    made = SETTINGS | {"random_state": seed, "epochs": 1 if quick else 8}
    soft = Captioner("soft", **made).fit(list(learned.images), learned.captions)
    encoder = soft.encoder_.encoder  # trained, and frozen by now: from here on it sees each image once
    data = f"{len(held.captions)} new scenes"
    blind = Captioner("soft", encoder=OneVector(encoder), **made).fit(list(learned.images), learned.captions)
    without = exact(blind, held)
    yield Row(data, "soft attention", "exact", exact(soft, held), "one vector, the mean", without)
    hard = Captioner("hard", encoder=encoder, **made).fit(list(learned.images), learned.captions)
    yield Row(data, "hard attention", "exact", exact(hard, held), "one vector, the mean", without)
    yield from nouns(soft, hard, held)
    few = made | {"spread": SPREAD, "epochs": 1 if quick else 3}
    even = Captioner("soft", encoder=encoder, **few).fit(list(learned.images), learned.captions)
    yield from coverage(soft, even, held)
    yield from saved(folder, soft, hard, held)


def exact(captioner: Captioner, held: Scenes) -> float:
    """The share of scenes that it has never seen that it tells letter for letter."""
    told = captioner.caption(list(held.images), beam=1)
    return float(np.mean([one == other for one, other in zip(told, held.captions, strict=True)]))


def looks(captioner: Captioner, held: Scenes, count: int) -> list[Array]:
    """Weights `[words, rows, columns]` with which the right captions of some scenes are read."""
    return [captioner.evidence(held.images[scene], held.captions[scene]).weight for scene in range(count)]


def nouns(soft: Captioner, hard: Captioner, held: Scenes) -> Iterator[Finding]:
    """Where the words look; of those that name an object, it is known where it stands."""
    shares, chance = [], []
    for scene, weight in enumerate(looks(soft, held, LOOKED)):
        for noun in held.nouns[scene]:
            cells = held.cells(scene, noun, weight.shape[1])
            shares.append(float(weight[noun][cells].sum()))
            chance.append(float(cells.mean()))
    on, anywhere = float(np.mean(shares)), float(np.mean(chance))
    yield Row(f"… {len(shares)} nouns", "weight on what is named", "share", on, "anywhere", anywhere)
    place = next(place for place, caption in enumerate(held.captions) if len(caption.split()) == WORDS)
    image, caption = held.images[place], held.captions[place]
    found = {"soft": soft.evidence(image, caption), "hard": hard.evidence(image, caption)}
    yield Picture(
        "words",
        draw_strips(image, {name: (one.words, one.weight) for name, one in found.items()}),
        "Each word looks for itself, and a noun at what it names",
        "Bright is where the word was looked for, and the line is around all that is at least half as bright as the"
        " brightest. Of soft attention it is how much each cell counts; of hard attention,"
        f" which takes one cell, how likely each is. Soft attention's nouns have {on:.0%} of their weight on the object"
        f" that they name, which is {anywhere:.0%} of the image.",
        f"The image of “{caption}” once for each word, above with soft and below with hard attention; dark but for"
        " where the word looks.",
    )


def coverage(without: Captioner, even: Captioner, held: Scenes) -> Iterator[Finding]:
    """How much each cell was looked at by all words together, without the doubly stochastic term and with it."""
    sums = {
        name: [weight.sum(axis=0) for weight in looks(captioner, held, LOOKED)]
        for name, captioner in (("without the term", without), ("with it", even))
    }
    off = {name: float(np.mean([unevenness(one) for one in found])) for name, found in sums.items()}
    yield Row(
        f"… {LOOKED} of them",
        f"soft, λ = {SPREAD}",
        "unevenness",
        off["with it"],
        "λ = 0",
        off["without the term"],
        True,
    )
    yield Picture(
        "coverage",
        draw_coverage(held.images[:COVERED], {name: found[:COVERED] for name, found in sums.items()}),
        "Asked to look at everything once, it lets its look wander",
        "The weight that each cell had from all words together, Σₜ α_ti; the grey lines are the objects. Words are"
        " fewer than cells, so that not every cell can have the 1 that the term λ Σᵢ (1 − Σₜ α_ti)² asks for; it"
        f" spreads what there is. Relative to its mean the weight varies by {off['without the term']:.1f} from cell to"
        f" cell without the term, and by {off['with it']:.1f} with it.",
        "Three scenes, each with two maps of its cells: without the term some cells are dark and most are white, with"
        " it weight lies on more of them.",
    )


def unevenness(looked: Array) -> float:
    """The standard deviation of the cells' weight over its mean: 0 where all have the same."""
    return float(looked.std() / looked.mean())


def saved(folder: Path, soft: Captioner, hard: Captioner, held: Scenes) -> Iterator[Finding]:
    """Model folders, and a scene to try them on."""
    from PIL import Image

    scene = folder / "scene.png"
    Image.fromarray(held.images[0]).save(scene)
    places = soft.save(folder / "soft"), hard.set_params(encoder="small").save(folder / "hard")
    yield Saved(places[0], (command("regard", "caption", places[0], scene), command("regard", "info", places[0])))
    yield Saved(places[1], (command("regard", "caption", places[1], scene, "--plot", folder / "looked.png"),))


STATIONS = (
    Station(
        "captions",
        "Captions",
        "Show, Attend and Tell (Xu and others, 2015): an image is a grid of vectors, and before each word the"
        " writer looks"
        " at all of them a little, or at one. Scenes are shapes on a canvas, and one sentence is right.",
        visit,
        findings=8,
        chapter=4,
    ),
)
