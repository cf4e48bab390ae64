"""What attention buys in samples: how many bags a model must see before it predicts new ones.

    python examples/bag_samples.py [docs/bag_samples.png] [repeats]

Bags of 5 instances with 10 features. In the first case the answer is linear attention, tr(XXᵀvuᵀ): a model of 2d
numbers, or one of all d(d+1)/2 products of features, both can be right. In the second it is softmax attention, and
no quadratic form is. A flat model knows an instance by its place, which says nothing here.
"""

import sys
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from regard import BagRegressor, FlatRegressor, QuadraticRegressor, plots
from regard.data.planted import planted

COUNTS = (10, 20, 40, 80, 160, 320)
TEST, SIZE, FEATURES, RANK = 1000, 5, 10, 4
MODELS = {
    "flat": FlatRegressor(),
    "full quadratic": QuadraticRegressor(),
    f"quadratic, rank {RANK}": QuadraticRegressor(rank=RANK),
    "linear attention": BagRegressor("linear", init="spectral"),
    "softmax attention": BagRegressor(learning_rate=0.03, epochs=300, verbose=False),
}
PARAMETERS = {
    "flat": SIZE * FEATURES,
    "full quadratic": FEATURES * (FEATURES + 1) // 2,
    f"quadratic, rank {RANK}": RANK * FEATURES - RANK * (RANK - 1) // 2,
    "linear attention": 2 * FEATURES,
    "softmax attention": 2 * FEATURES,
}
CASES = {
    "linear": "The answer is linear attention:\nit is found with half as many bags as the full form needs",
    "softmax": "The answer is softmax attention:\nno quadratic form finds it, whatever the number of bags",
}


def test_error(name: str, attention: str, count: int, seed: int) -> float:
    """Of a model that has seen so many bags, in standard deviations."""
    bags, y, _, _ = planted(count + TEST, FEATURES, SIZE, attention, seed=seed)  # type: ignore[arg-type]
    predicted = MODELS[name].fit(bags[:count], y[:count]).predict(bags[count:])
    return float(np.sqrt(np.mean(np.square(predicted - y[count:]))) / y[count:].std())


def main(path: Path, repeats: int) -> None:
    """Compute all errors, print their medians, and draw them."""
    figure = Figure(figsize=(11.5, 5), dpi=90, layout="constrained")
    for (attention, title), axes in zip(CASES.items(), figure.subplots(1, 2), strict=True):
        errors = {
            name: [[test_error(name, attention, count, seed) for count in COUNTS] for seed in range(repeats)]
            for name in MODELS
        }
        for name, found in errors.items():
            print(f"{attention:<8}  {name:<18}", *(f"{error:5.2f}" for error in np.median(found, axis=0)))
        plots.error_curves(COUNTS, errors, PARAMETERS, axes, title)
        axes.set_xlabel("training bags   (bars: parameters)")
        axes.get_legend().remove()
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, pil_kwargs={"optimize": True})
    print(f"picture: {path}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "bag_samples.png"), int(sys.argv[2]) if len(sys.argv) > 2 else 5)
