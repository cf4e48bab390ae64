"""Attention is regression: three ways to look at the same 50 points, and what two of them look at.

    python examples/kernel_regression.py [docs/kernel_regression.png]

Average pooling gives every point the same weight, whatever is asked. A Gaussian kernel looks at the points near
the query. The third learns how near, by leaving each point out in turn: w = 1 / bandwidth of the sources.
"""

import sys
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure

from regard import NadarayaWatson, look, plots
from regard.data.curves import wave
from regard.scores import Gaussian


def main(path: Path) -> None:
    """Fit, print the errors, and draw the fits and their weight maps."""
    x, y, truth = wave(n=50, noise=0.5, seed=0)
    grid = np.linspace(0, 5, 200)
    models = {
        "average pooling": NadarayaWatson(kernel="constant"),
        "kernel, bandwidth 1": NadarayaWatson(bandwidth=1.0),
        "kernel, learned": NadarayaWatson(bandwidth="learn", verbose=False),
    }
    fits = {}
    for name, model in models.items():
        fits[name] = model.fit(x[:, None], y).predict(grid[:, None])
        error = np.sqrt(np.mean((fits[name] - truth(grid)) ** 2))
        print(f"{name:<20} error against the true curve: {error:.3f}")

    learned = float(models["kernel, learned"].bandwidth_[0])
    before, after = (
        look(torch.tensor(grid)[:, None], torch.tensor(x)[:, None], score=Gaussian(width)).numpy()
        for width in (1.0, learned)
    )
    figure = Figure(figsize=(11, 8), dpi=130)
    figure.set_layout_engine("constrained", w_pad=0.12, h_pad=0.12)
    upper, lower = figure.subfigures(2, 1, height_ratios=(1.1, 1))
    axes = plots.fit_curve(x, y, grid, fits, truth=truth(grid), axes=upper.subplots())
    axes.set_title("Attention over the training points is regression", loc="left")
    left, right = lower.subplots(1, 2)
    plots.weight_map(before, grid, x, left, "Bandwidth 1: every query looks at many points")
    plots.weight_map(after, grid, x, right, f"Learned, bandwidth {learned:.2f}: it looks at the nearest")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    print(f"picture: {path}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "kernel_regression.png"))
