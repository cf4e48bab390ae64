"""Attention is regression: three ways to look at the same 50 points, and what two of them look at.

    python examples/kernel_regression.py [docs/kernel_regression.png]

Average pooling gives every point the same weight, whatever is asked. A Gaussian kernel looks at the points near
the query. The third learns how near, by leaving each point out in turn: w = 1 / bandwidth of the sources.
"""

import sys
from pathlib import Path

from matplotlib.figure import Figure

from regard.estimators.tables.station import draw_fits, draw_maps, three_fits


def main(path: Path) -> None:
    """Fit, print the errors, and draw the fits and their weight maps."""
    found = three_fits(n=50, noise=0.5, seed=0)
    for name, error in found.errors.items():
        print(f"{name:<20} error against the true curve: {error:.3f}")
    figure = Figure(figsize=(11, 8), dpi=130)
    figure.set_layout_engine("constrained", w_pad=0.12, h_pad=0.12)
    upper, lower = figure.subfigures(2, 1, height_ratios=(1.1, 1))
    draw_fits(found, upper.subplots())
    draw_maps(found, *lower.subplots(1, 2))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    print(f"picture: {path}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "kernel_regression.png"))
