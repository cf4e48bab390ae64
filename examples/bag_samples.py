"""Sample efficiency of attention: test error against the number of training bags, for five models.

    python examples/bag_samples.py [docs/bag_samples.png] [repeats]

What is compared, and on which bags, is in `regard.estimators.bags.station`.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from regard.estimators.bags.station import CASES, draw_samples, sample_errors

COUNTS = (10, 20, 40, 80, 160, 320)


def main(path: Path, repeats: int, counts: Sequence[int] = COUNTS) -> None:
    """Compute all errors, print their medians, and plot them."""
    errors = {}
    for case in CASES:
        errors[case] = sample_errors(case, counts, range(repeats))
        for name, found in errors[case].items():
            print(f"{case:<8}  {name:<18}", *(f"{error:5.2f}" for error in np.median(found, axis=0)))
    figure = Figure(figsize=(11.5, 5), dpi=90, layout="constrained")
    draw_samples(counts, errors, figure, figure.subplots(1, 2))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, pil_kwargs={"optimize": True})
    print(f"plot: {path}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "bag_samples.png"), int(sys.argv[2]) if len(sys.argv) > 2 else 5)
