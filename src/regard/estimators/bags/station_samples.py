"""What attention buys in samples: how many bags a model must see before it predicts new ones.

Bags of 5 instances with 10 features. In the first case the answer is linear attention, tr(XᵀXvuᵀ): a model of 2d
numbers, or one of all d(d+1)/2 products of features, both can be right. In the second it is softmax attention, and
no quadratic form is. A flat model knows an instance by its place, which says nothing here.
"""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from regard import plots
from regard.data.samples import planted_bags
from regard.estimators import BagRegressor, FlatRegressor, QuadraticRegressor

Array = Any
Case = Literal["linear", "softmax"]
TEST, SIZE, FEATURES, RANK = 1000, 5, 10, 4
FLAT, FULL, LOW, LINEAR, SOFTMAX = (
    "flat",
    "full quadratic",
    f"quadratic, rank {RANK}",
    "linear attention",
    "softmax attention",
)
PARAMETERS = {
    FLAT: SIZE * FEATURES,
    FULL: FEATURES * (FEATURES + 1) // 2,
    LOW: RANK * FEATURES - RANK * (RANK - 1) // 2,
    LINEAR: 2 * FEATURES,
    SOFTMAX: 2 * FEATURES,
}
CASES: dict[Case, str] = {
    "linear": "The answer is linear attention:\nit takes half the bags of the full form",
    "softmax": "The answer is softmax attention:\nno quadratic form ever finds it",
}


def models() -> dict[str, Any]:
    """The models that are compared, not yet fitted."""
    return {
        FLAT: FlatRegressor(),
        FULL: QuadraticRegressor(),
        LOW: QuadraticRegressor(rank=RANK),
        LINEAR: BagRegressor("linear", init="spectral"),
        SOFTMAX: BagRegressor(learning_rate=0.03, epochs=300, verbose=False),
    }


def error_after(model: Any, attention: Case, count: int, seed: int) -> float:
    """Of a model that has seen so many bags, in standard deviations."""
    bags, y, _, _ = planted_bags(count + TEST, FEATURES, SIZE, attention, seed=seed)
    predicted = model.fit(bags[:count], y[:count]).predict(bags[count:])
    return float(np.sqrt(np.mean(np.square(predicted - y[count:]))) / y[count:].std())


def sample_errors(attention: Case, counts: Sequence[int], seeds: Sequence[int]) -> dict[str, Array]:
    """Test errors [seeds, counts] of all models, by name."""
    return {
        name: np.array([[error_after(model, attention, count, seed) for count in counts] for seed in seeds])
        for name, model in models().items()
    }


def draw_samples(counts: Sequence[int], errors: dict[Case, dict[str, Array]], figure: Any, axes: Sequence[Any]) -> None:
    """The errors of each case on its axes, and one legend below."""
    for (case, found), on in zip(errors.items(), axes, strict=True):
        plots.error_curves(counts, found, PARAMETERS, on, CASES[case])
        on.set_xlabel("training bags   (bars: parameters)")
        on.get_legend().remove()
    columns = 3 if figure.get_figwidth() > 8 else 1
    handles = axes[0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=columns, frameon=False)
