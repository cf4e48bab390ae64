"""Kernel regression is attention: average pooling, a Gaussian kernel, and one that learns its bandwidth.

    python examples/weights.py [--out tour/weights.png]

The data are y = 2 sin x + x^0.8 + noise. Training inputs are the keys, training outputs the values, and
where to predict are the queries. The bandwidth is learned by leave-one-out: the mask `q != k` keeps a
point from looking at itself.
"""

import argparse
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from torch import Tensor, nn

import regard
from regard import scores


def truth(x: Tensor) -> Tensor:
    """The curve without its noise."""
    return 2 * x.sin() + x**0.8


def learn_bandwidth(x: Tensor, y: Tensor, start: float = 1.0, steps: int = 100) -> float:
    """The bandwidth whose leave-one-out error is least, by gradient descent on its logarithm."""
    logarithm = nn.Parameter(torch.tensor(start).log())
    optimizer = torch.optim.Adam([logarithm], lr=0.1)
    for _ in range(steps):
        score = scores.Gaussian(logarithm.exp())
        predicted = regard.attend(x, x, y, score=score, mask=lambda query, key: query != key)
        loss = (predicted - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return logarithm.exp().item()


def draw_map(axes: Axes, weight: Tensor, title: str) -> None:
    """Queries down, keys across, both sorted: a narrow band is a narrow look."""
    image = axes.imshow(weight.numpy(), cmap="cividis", aspect="auto", extent=(0, weight.shape[1], 5, 0))
    axes.set(title=title, xlabel="key: training points, by x", ylabel="query: new x")
    axes.figure.colorbar(image, ax=axes, label="weight")


def main() -> None:
    """Learn, print the errors, and draw the fits and what they look at."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("tour/weights.png"))
    out = parser.parse_args().out

    torch.manual_seed(0)
    x = (torch.rand(50, 1) * 5).sort(dim=0).values  # [50, 1]  keys
    y = truth(x) + 0.5 * torch.randn(50, 1)  # [50, 1]  values
    new = torch.linspace(0, 5, 201)[:-1, None]  # [200, 1] queries

    learned = learn_bandwidth(x, y)
    kinds = {
        "average pooling": scores.constant,
        "Gaussian, bandwidth 1": scores.Gaussian(1.0),
        f"learned, bandwidth {learned:.2f}": scores.Gaussian(learned),
    }
    fits = {name: regard.attend(new, x, y, score=score) for name, score in kinds.items()}
    for name, fit in fits.items():
        error = (fit - truth(new)).square().mean().sqrt()
        print(f"{name:24} error against the true curve {error:.3f}")

    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(14, 4), layout="constrained")
    left.scatter(x.numpy(), y.numpy(), s=14, color="0.6", label="training points")
    left.plot(new.numpy(), truth(new).numpy(), color="black", linestyle="--", label="true curve")
    for (name, fit), colour in zip(fits.items(), ("#E69F00", "#56B4E9", "#D55E00"), strict=True):
        left.plot(new.numpy(), fit.numpy(), color=colour, linewidth=2, label=name)
    left.set(title="Attention over the training points is regression", xlabel="x", ylabel="y")
    left.legend(fontsize=8)
    draw_map(middle, regard.look(new, x, score=scores.Gaussian(1.0)), "What bandwidth 1 looks at")
    draw_map(right, regard.look(new, x, score=scores.Gaussian(learned)), "Learned: it looks closer")
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=110)
    print(f"picture: {out}")


if __name__ == "__main__":
    main()
