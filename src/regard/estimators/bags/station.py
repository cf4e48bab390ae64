"""The tour's station on bags: several instances, one target, and attention that shows which instances matter.

    z = Σᵢ αᵢ xᵢ        ŷ = uᵀz        α = softmax(vᵀxᵢ), or vᵀxᵢ itself: linear attention, tr(XᵀXvuᵀ)

First planted bags: how many training bags each model needs before it predicts new ones. Then bags of digits.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from regard import plots
from regard.data.bags import Floats
from regard.data.samples import planted_bags
from regard.estimators.bags.base import RegressorOverBags
from regard.estimators.bags.estimator import BagClassifier, BagRegressor
from regard.estimators.bags.evidence import BagEvidence
from regard.estimators.bags.quadratic import FlatRegressor, QuadraticRegressor
from regard.tour.figures import draw_bags, tall_figure
from regard.tour.findings import Finding, Picture, Row, Station, command

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Case = Literal["linear", "softmax"]
_TEST_BAGS, SIZE, FEATURES, RANK = 1000, 5, 10, 4
_SHOWN_BAGS = 6
FLAT, _FULL, LOW, LINEAR, SOFTMAX = (
    "flat",
    "full quadratic",
    f"quadratic, rank {RANK}",
    "linear attention",
    "softmax attention",
)
PARAMETERS = {
    FLAT: SIZE * FEATURES,
    _FULL: FEATURES * (FEATURES + 1) // 2,
    LOW: RANK * FEATURES - RANK * (RANK - 1) // 2,
    LINEAR: 2 * FEATURES,
    SOFTMAX: 2 * FEATURES,
}
CASES: dict[Case, str] = {
    "linear": "Targets from linear attention:\nit needs half the bags of the full form",
    "softmax": "Targets from softmax attention:\nno quadratic form can learn them",
}


def visit(folder: Path, seed: int, quick: bool) -> Iterator[Finding]:
    """Planted bags, whose answer is known; then digits, whose answer can be seen."""
    yield from _planted_station(seed, quick)
    yield from _digits_station(folder, seed, quick)


def _planted_station(seed: int, quick: bool) -> Iterator[Finding]:
    """How many bags each model needs."""
    counts, repeats = ((40, 80), 1) if quick else ((10, 20, 40, 80, 160, 320), 3)
    comparisons: tuple[tuple[Case, str, str, int], ...] = (
        ("softmax", SOFTMAX, FLAT, 80),
        ("linear", LINEAR, _FULL, 40),
    )
    errors = {}
    for case, model, baseline, count in comparisons:
        errors[case] = sample_errors(case, counts, range(seed, seed + repeats))
        ours, theirs = (float(np.median(errors[case][name][:, counts.index(count)])) for name in (model, baseline))
        yield Row(f"{count} bags, planted targets", model, "error", ours, baseline, theirs, lower=True)
    figure = tall_figure(8.6)
    draw_samples(counts, {case: errors[case] for case in CASES}, figure, figure.subplots(2, 1))
    yield Picture(
        "samples",
        figure,
        "Attention needs fewer bags if it is the right model",
        "Errors on new bags against the number of training bags; 1 is no better than the mean. Linear attention has 20"
        " parameters, the full quadratic form, of which it is a special case, 55. Softmax attention is not a quadratic"
        " form. The flat model, which identifies instances by their position, learns neither.",
        "Two plots of falling test errors. Above, linear attention falls first, then quadratic forms, the flat model"
        " stays at 1. Below, only softmax attention falls.",
    )


def models() -> dict[str, RegressorOverBags]:
    """The models to compare, not fitted."""
    return {
        FLAT: FlatRegressor(),
        _FULL: QuadraticRegressor(),
        LOW: QuadraticRegressor(rank=RANK),
        LINEAR: BagRegressor("linear", init="spectral"),
        SOFTMAX: BagRegressor(learning_rate=0.03, epochs=300, verbose=False),
    }


def relative_error(model: RegressorOverBags, attention: Case, count: int, seed: int) -> float:
    """The error of a model fitted on `count` bags, in standard deviations of the target."""
    bags, y, _, _ = planted_bags(count + _TEST_BAGS, FEATURES, SIZE, attention, seed=seed)
    predicted = model.fit(bags[:count], y[:count]).predict(bags[count:])
    return float(np.sqrt(np.mean(np.square(predicted - y[count:]))) / y[count:].std())


def sample_errors(attention: Case, counts: Sequence[int], seeds: Sequence[int]) -> dict[str, Floats]:
    """Test errors [seeds, counts] of all models, by name."""
    return {
        name: np.array([[relative_error(model, attention, count, seed) for count in counts] for seed in seeds])
        for name, model in models().items()
    }


def draw_samples(
    counts: Sequence[int], errors: dict[Case, dict[str, Floats]], figure: "Figure", axes: "Sequence[Axes]"
) -> None:
    """The errors of each case on its axes, and one legend below."""
    for (case, by_model), panel in zip(errors.items(), axes, strict=True):
        plots.error_curves(counts, by_model, PARAMETERS, panel, CASES[case])
        panel.set_xlabel("training bags   (bars: parameters)")
        if legend := panel.get_legend():
            legend.remove()
    columns = 3 if figure.get_figwidth() > 8 else 1
    handles = axes[0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=columns, frameon=False)


def _digits_station(folder: Path, seed: int, quick: bool) -> Iterator[Finding]:
    """Is there a 9 among the digits? The model never learns which one it is."""
    import pandas as pd
    from sklearn.datasets import load_digits

    pixels, digit = load_digits(return_X_y=True)
    random = np.random.default_rng(seed)
    training, new = (200, 60) if quick else (600, 200)
    rows = [random.integers(1200, size=random.integers(3, 9)) for _ in range(training)]
    rows += [random.integers(1200, 1797, size=random.integers(3, 9)) for _ in range(new)]
    sizes = [len(some) for some in rows]
    frame = pd.DataFrame(pixels[np.concatenate(rows)], columns=[f"pixel{index}" for index in range(64)])
    frame["bag"] = np.repeat([f"bag {index}" for index in range(len(rows))], sizes)
    label = np.array(["a 9" if (digit[some] == 9).any() else "no 9" for some in rows])
    start = sum(sizes[:training])
    old_frame, new_frame = frame[:start], frame[start:].reset_index(drop=True)
    settings: dict[str, Any] = {"hidden_size": 64, "learning_rate": 0.005, "bag": "bag", "random_state": seed}
    model = BagClassifier("gated", **settings).fit(old_frame, label[:training])
    mean = BagClassifier("mean", **settings).fit(old_frame, label[:training])
    score, mean_score = (each.score(new_frame, label[training:]) for each in (model, mean))
    yield Row(f"“is there a 9?”, {new} new bags", "gated attention", "accuracy", score, "mean pooling", mean_score)
    evidence = model.evidence(new_frame, top=8)
    new_rows = rows[training:]
    nines = np.flatnonzero(label[training:] == "a 9")
    correct = float(np.mean([digit[new_rows[bag][evidence.index[bag, 0]]] == 9 for bag in nines]))
    chance = float(np.mean([(digit[new_rows[bag]] == 9).mean() for bag in nines]))
    yield Row(f"… {len(nines)} with a 9", "largest weight on a 9", "fraction", correct, "at random", chance)
    shown = [bag for bag in nines.tolist() if len(new_rows[bag]) > 4][:_SHOWN_BAGS]
    yield Picture(
        "digits",
        draw_bags([(pixels[new_rows[bag]], instance_weights(evidence, bag)) for bag in shown]),
        "The labels say that there is a 9, not where; the model looks at the 9",
        "Six new bags with a 9 in them. Dark bars are weights, which add up to 1 in a bag. In"
        f" {correct:.0%} of {len(nines)} such bags the largest weight is on a 9.",
        "Six rows of hand-written digits with a bar below each; the long bars are below nines.",
    )
    table = folder / "new_bags.csv"
    new_frame.to_csv(table, index=False)
    saved = model.save(folder / "nines")
    yield command("regard", "predict", saved, table, "--proba")
    yield command("regard", "evidence", saved, table, "--top", "1")


def instance_weights(evidence: BagEvidence, bag: int) -> Floats:
    """The weights of a bag's instances, in the order of the bag."""
    index = evidence.index[bag][evidence.index[bag] >= 0]
    weights = np.zeros(len(index))
    weights[index] = evidence.weight[bag][: len(index)]
    return weights


STATIONS = (
    Station(
        "bags",
        "A bag",
        "Mineiro, 2016; Ilse, Tomczak and Welling, 2018: many instances, one label. A learned query attends to the"
        " instances, and the prediction comes from those that matter.",
        visit,
        findings=8,
        chapter=2,
    ),
)
