"""Attention is regression: three fits of the same 50 points, and the weights of two of them.

    python examples/kernel_regression.py [docs/kernel_regression.png]

Average pooling gives every point the same weight for every query. A Gaussian kernel gives larger weights to nearer
points. The third fit learns the bandwidth by leave-one-out (textbooks write w = 1 / bandwidth).
"""

import sys
from pathlib import Path

from matplotlib.figure import Figure

from regard.estimators.tables.station import draw_fits, draw_weights, three_fits


def main(path: Path) -> None:
    """Fit, print the errors, and plot the fits and their weight maps."""
    fits = three_fits(n=50, noise=0.5, seed=0)
    for name, error in fits.errors.items():
        print(f"{name:<20} error against the true curve: {error:.3f}")
    figure = Figure(figsize=(11, 8), dpi=130)
    figure.set_layout_engine("constrained", w_pad=0.12, h_pad=0.12)
    upper, lower = figure.subfigures(2, 1, height_ratios=(1.1, 1))
    draw_fits(fits, upper.subplots())
    draw_weights(fits, *lower.subplots(1, 2))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    print(f"plot: {path}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "kernel_regression.png"))
