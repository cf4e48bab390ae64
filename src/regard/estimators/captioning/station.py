"""The station of the tour: soft attention to all cells of an image, and hard attention to one of them.

z_t = Σᵢ α_ti aᵢ        hard: z_t = a_s, s ~ α_t        α_t = softmax_i(wᵀ tanh(W_q h_{t−1} + W_k aᵢ))
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from regard.data.samples import Scenes, scenes
from regard.estimators import Captioner
from regard.models.image_encoders import SmallResNet
from regard.tour.figures import draw_coverage, draw_strips
from regard.tour.findings import Finding, Picture, Row, Station, command

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
"""The settings that all captioners here share."""
_SPREAD = 0.1
"""λ of the captioner with the doubly stochastic term."""
_TEST_SCENES, _WEIGHED_SCENES = 200, 40
"""The number of new scenes that are captioned, and of those whose weights are measured."""
_DRAWN_WORDS, _DRAWN_SCENES = 9, 3
"""The number of words of the caption that is drawn, and of scenes whose total weights are drawn."""


class OneVector(nn.Module):
    """An encoder whose grid is one cell, the mean of another encoder's: what is in the image, but not where."""

    def __init__(self, encoder: SmallResNet) -> None:
        super().__init__()
        self.encoder, self.image_size, self.channels = encoder, encoder.image_size, encoder.channels
        self.prepare = encoder.prepare

    def forward(self, image: Tensor) -> Tensor:
        """Images `[batch, 3, size, size]` to `[batch, channels, 1, 1]`."""
        grid: Tensor = self.encoder(image)  # [batch, channels, rows, columns]
        return grid.mean(dim=(2, 3), keepdim=True)


def visit(folder: Path, seed: int, quick: bool) -> Iterator[Finding]:
    """Scenes of shapes, one encoder, and four ways to use its grid."""
    from PIL import Image

    training, test = scenes(100 if quick else 2000, seed), scenes(_WEIGHED_SCENES if quick else _TEST_SCENES, seed + 1)
    settings = SETTINGS | {"random_state": seed, "epochs": 1 if quick else 8}

    def fit(attention: str, **changed: Any) -> Captioner:
        return Captioner(attention, **settings | changed).fit(list(training.images), training.captions)

    soft = fit("soft")
    encoder = soft.encoder_.encoder  # trained, and now frozen: the captioners below encode each image once
    data = f"{len(test.captions)} new scenes"
    baseline = _exact(fit("soft", encoder=OneVector(encoder)), test)
    yield Row(data, "soft attention", "exact", _exact(soft, test), "one vector, the mean", baseline)
    hard = fit("hard", encoder=encoder)
    yield Row(data, "hard attention", "exact", _exact(hard, test), "one vector, the mean", baseline)
    yield from nouns(soft, hard, test)
    even = fit("soft", encoder=encoder, spread=_SPREAD, epochs=1 if quick else 3)
    yield from coverage(soft, even, test)
    scene = folder / "scene.png"
    Image.fromarray(test.images[0]).save(scene)
    first, second = soft.save(folder / "soft"), hard.set_params(encoder="small").save(folder / "hard")
    yield command("regard", "caption", first, scene)
    yield command("regard", "info", first)
    yield command("regard", "caption", second, scene, "--plot", folder / "looked.png")


def _exact(captioner: Captioner, test: Scenes) -> float:
    """The fraction of scenes whose captions are right to the letter."""
    captions = captioner.caption(list(test.images), beam=1)
    return float(np.mean([one == other for one, other in zip(captions, test.captions, strict=True)]))


def weights(captioner: Captioner, test: Scenes) -> list[NDArray[np.float64]]:
    """The weights `[words, rows, columns]` of the right captions of some scenes."""
    return [captioner.evidence(test.images[i], test.captions[i]).weight for i in range(_WEIGHED_SCENES)]


def nouns(soft: Captioner, hard: Captioner, test: Scenes) -> Iterator[Finding]:
    """Where the model looks for nouns, compared with where their objects are."""
    fractions, areas = [], []
    for scene, weight in enumerate(weights(soft, test)):
        for noun in test.nouns[scene]:
            cells = test.cells(scene, noun, weight.shape[1])
            fractions.append(float(weight[noun][cells].sum()))
            areas.append(float(cells.mean()))
    fraction, area = float(np.mean(fractions)), float(np.mean(areas))
    yield Row(f"… {len(fractions)} nouns", "weight on the object", "fraction", fraction, "equal weights", area)
    index = next(index for index, caption in enumerate(test.captions) if len(caption.split()) == _DRAWN_WORDS)
    image, caption = test.images[index], test.captions[index]
    evidence = {"soft": soft.evidence(image, caption), "hard": hard.evidence(image, caption)}
    yield Picture(
        "words",
        draw_strips(image, {name: (one.words, one.weight) for name, one in evidence.items()}),
        "For a noun the model looks at the object it names",
        "Bright cells have large weights for the word; the line is around cells with at least half of the largest"
        " brightness. The weights of soft attention are those of the mean; those of hard attention, which takes one"
        f" cell, are probabilities. With soft attention, {fraction:.0%} of a noun's weight is on the object that it"
        f" names, which is {area:.0%} of the image.",
        f"The image of “{caption}” once for each word, above with soft and below with hard attention; bright where the"
        " model looks for the word.",
    )


def coverage(without: Captioner, even: Captioner, test: Scenes) -> Iterator[Finding]:
    """The total weights of cells over all words, without the doubly stochastic term and with it."""
    totals = {
        name: [weight.sum(axis=0) for weight in weights(captioner, test)]
        for name, captioner in (("without the term", without), ("with it", even))
    }
    variation = {name: float(np.mean([unevenness(one) for one in several])) for name, several in totals.items()}
    yield Row(
        f"… {_WEIGHED_SCENES} of them",
        f"soft, λ = {_SPREAD}",
        "unevenness",
        variation["with it"],
        "λ = 0",
        variation["without the term"],
        True,
    )
    yield Picture(
        "coverage",
        draw_coverage(test.images[:_DRAWN_SCENES], {name: several[:_DRAWN_SCENES] for name, several in totals.items()}),
        "With the doubly stochastic term, the words look at more cells",
        "The total weight of each cell over all words, Σₜ α_ti; the grey lines are the objects. There are fewer words"
        " than cells, so not every cell can have the weight 1 that the term λ Σᵢ (1 − Σₜ α_ti)² asks for; it spreads"
        f" the weight. The standard deviation of the weights is {variation['without the term']:.1f} times their mean"
        f" without the term, and {variation['with it']:.1f} times with it.",
        "Three scenes, each with two maps of its cells: without the term some cells are dark and most are white, with"
        " it more cells have weight.",
    )


def unevenness(weight: NDArray[np.float64]) -> float:
    """The standard deviation of the weights of cells, divided by their mean: 0 if all are equal."""
    return float(weight.std() / weight.mean())


STATIONS = (
    Station(
        "captions",
        "Captions",
        "Show, Attend and Tell (Xu and others, 2015): an image is a grid of vectors. Before each word, the model looks"
        " at all of them with different weights, or at one. A scene has shapes on a canvas, and one right caption.",
        visit,
        findings=9,
        chapter=4,
    ),
)
