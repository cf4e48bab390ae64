"""A bag: several instances, one answer for all of them, and attention that says which of them it was.

z = Σᵢ αᵢ xᵢ        ŷ = uᵀz        α = softmax(vᵀxᵢ), or vᵀxᵢ itself: linear attention, tr(XᵀXvuᵀ)
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from regard.estimators import BagClassifier
from regard.estimators.bags.station_samples import CASES, FLAT, FULL, LINEAR, SOFTMAX, draw_samples, sample_errors
from regard.tour.figures import draw_bags, tall
from regard.tour.findings import Finding, Picture, Row, Saved, Station, typed

Array = Any
SHOWN = 6
"""Bags in the picture."""


def visit(folder: Path, seed: int, quick: bool) -> Iterator[Finding]:
    """Planted bags, whose answer is known; then digits, whose answer can be seen."""
    yield from samples(seed, quick)
    yield from digits(folder, seed, quick)


def samples(seed: int, quick: bool) -> Iterator[Finding]:
    """How many bags each model needs."""
    counts, repeats = ((20, 40, 80), 1) if quick else ((10, 20, 40, 80, 160, 320), 3)
    errors = {}
    for case, model, baseline, count in (("softmax", SOFTMAX, FLAT, 80), ("linear", LINEAR, FULL, 40)):
        errors[case] = sample_errors(case, counts, range(seed, seed + repeats))  # type: ignore[arg-type]
        ours, theirs = (float(np.median(errors[case][name][:, counts.index(count)])) for name in (model, baseline))
        yield Row(f"{count} bags, answer planted", model, "error", ours, baseline, theirs, lower=True)
    figure = tall(8.6)
    draw_samples(counts, {case: errors[case] for case in CASES}, figure, figure.subplots(2, 1))
    yield Picture(
        "samples",
        figure,
        "Attention needs fewer bags, where it is the answer",
        "Errors on new bags against the number of bags seen; 1 is no better than the mean. Linear attention has 20"
        " numbers to learn, the full quadratic form, of which it is a special case, 55. Softmax attention is no"
        " quadratic form. The flat model, which knows instances by their places, learns neither.",
        "Two plots of falling test errors. Above, linear attention falls first, then quadratic forms, the flat model"
        " stays at 1. Below, only softmax attention falls.",
    )


def digits(folder: Path, seed: int, quick: bool) -> Iterator[Finding]:
    """Is there a 9 among the digits? The model is never told which."""
    import pandas as pd
    from sklearn.datasets import load_digits

    pixels, digit = load_digits(return_X_y=True)
    random = np.random.default_rng(seed)
    learned, asked = (200, 60) if quick else (600, 200)
    rows = [random.integers(1200, size=random.integers(3, 9)) for _ in range(learned)]
    rows += [random.integers(1200, 1797, size=random.integers(3, 9)) for _ in range(asked)]
    sizes = [len(some) for some in rows]
    frame = pd.DataFrame(pixels[np.concatenate(rows)], columns=[f"pixel{place}" for place in range(64)])
    frame["bag"] = np.repeat([f"bag {place}" for place in range(len(rows))], sizes)
    label = np.array(["a 9" if (digit[some] == 9).any() else "no 9" for some in rows])
    start = sum(sizes[:learned])
    first, then = frame[:start], frame[start:].reset_index(drop=True)
    made: dict[str, Any] = {"hidden_size": 64, "learning_rate": 0.005, "bag": "bag", "random_state": seed}
    model = BagClassifier("gated", **made).fit(first, label[:learned])
    mean = BagClassifier("mean", **made).fit(first, label[:learned])
    score, other = model.score(then, label[learned:]), mean.score(then, label[learned:])
    yield Row(f"“is there a 9?”, {asked} new bags", "gated attention", "accuracy", score, "mean pooling", other)
    evidence = model.evidence(then, top=8)
    nines = np.flatnonzero(label[learned:] == "a 9")
    found = [digit[rows[learned + bag][evidence.index[bag, 0]]] == 9 for bag in nines]
    chance = [(digit[rows[learned + bag]] == 9).mean() for bag in nines]
    yield Row(
        f"… {len(nines)} with a 9",
        "largest weight on a 9",
        "share",
        float(np.mean(found)),
        "any",
        float(np.mean(chance)),
    )
    several = [bag for bag in nines.tolist() if len(rows[learned + bag]) > 4][:SHOWN]
    yield Picture(
        "digits",
        draw_bags([(pixels[rows[learned + bag]], weights_of(evidence, bag)) for bag in several]),
        "It was told that there is a 9, never where; it looks at the 9",
        "Six new bags with a 9 in them. Dark bars are weights, which add up to 1 in a bag. In"
        f" {np.mean(found):.0%} of {len(nines)} such bags the largest weight is on a 9.",
        "Six rows of hand-written digits with a bar below each; the long bars stand below nines.",
    )
    then.to_csv(folder / "new_bags.csv", index=False)
    place = model.save(folder / "nines")
    asking = place, folder / "new_bags.csv"
    commands = typed("regard", "predict", *asking, "--proba"), typed("regard", "evidence", *asking, "--top", "1")
    yield Saved(place, commands)


def weights_of(evidence: Any, bag: int) -> Array:
    """The weights of a bag's instances, in their order."""
    seen = evidence.index[bag] >= 0
    weights = np.zeros(int(seen.sum()))
    weights[evidence.index[bag][seen]] = evidence.weight[bag][seen]
    return weights


STATION = Station(
    "bags",
    "A bag",
    "Mineiro, 2016; Ilse, Tomczak and Welling, 2018: many instances, one label. A learned query looks at the instances,"
    " and predicts from those that matter.",
    visit,
    findings=7,
)
