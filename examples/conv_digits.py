"""Attention in a convolutional network: every cell of a digit attends to all others.

    python examples/conv_digits.py [conv_digits.png]

Two convolutions, `ConvSelfAttention` on the 8 × 8 grid, the mean over the cells, ten outputs. It trains in seconds on
scikit-learn's digits, prints the accuracy on held-out digits, and plots where some cells attend.
"""

import math
import sys
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

from regard.layers import ConvSelfAttention
from regard.plots import image_strip
from regard.training import Recipe, train

CELLS = ((2, 3), (3, 5), (5, 2), (6, 4))
"""Rows and columns of the plotted cells."""


class DigitNet(nn.Module):
    """Images [batch, 1, 8, 8] → logits [batch, 10]."""

    def __init__(self, channels: int = 32) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(
            nn.Conv2d(1, channels, 3, padding=1),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
        )
        self.attention = ConvSelfAttention(channels, size=16)
        self.output = nn.Linear(channels, 10)

    def forward(self, image: Tensor) -> Tensor:
        return self.output(self.attention(self.convolutions(image)).mean((2, 3)))  # type: ignore[no-any-return]


def digits() -> list[Tensor]:
    """Images in 0..1 and their digits, for training and for testing."""
    data = load_digits()
    images = torch.tensor(data.images / 16, dtype=torch.float32).unsqueeze(1)  # [n, 1, 8, 8]
    parts = train_test_split(images, torch.tensor(data.target), test_size=0.25, random_state=0)
    return [parts[0], parts[2], parts[1], parts[3]]


def train_network(images: Tensor, labels: Tensor, epochs: int = 12) -> DigitNet:
    """The network after `epochs` passes over the digits."""
    torch.manual_seed(0)
    model = DigitNet()
    optimizer = torch.optim.Adam(model.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.01, total_steps=epochs * math.ceil(len(images) / 64))
    cross_entropy = nn.CrossEntropyLoss()

    def batches(epoch: int) -> list[tuple[Tensor, Tensor]]:
        order = torch.randperm(len(images), generator=torch.Generator().manual_seed(epoch))
        return [(images[rows], labels[rows]) for rows in order.split(64)]

    def loss(batch: tuple[Tensor, Tensor]) -> Tensor:
        image, label = batch
        return cross_entropy(model(image), label)  # type: ignore[no-any-return]

    train(model, batches, loss, Recipe(optimizer, epochs, schedule))
    return model.eval()


def main(path: Path) -> None:
    """Train, print the accuracy, plot where some cells attend."""
    images, labels, new, truth = digits()
    model = train_network(images, labels)
    with torch.no_grad():
        accuracy = float((model(new).argmax(-1) == truth).float().mean())
        some = torch.stack([new[truth == digit][0] for digit in (3, 7, 9)])
        weights = model.attention.look(model.convolutions(some))[:, 0].unflatten(-1, (8, 8))  # type: ignore[union-attr]
    print(f"accuracy on {len(new)} held-out digits: {accuracy:.3f}   gain {model.attention.gain.item():.2f}")
    figure = Figure(figsize=(9, 6), dpi=110, layout="constrained")
    rows = [8 * row + column for row, column in CELLS]
    for image, looks, axes in zip(some, weights, figure.subplots(len(some), len(CELLS) + 1), strict=True):
        names = [f"cell ({row}, {column})" for row, column in CELLS]
        bright = 0.35 + 0.65 * np.kron(image[0].numpy(), np.ones((9, 9)))
        image_strip(bright, names, looks[rows].numpy(), axes, CELLS)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    print(f"plot: {path}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "conv_digits.png"))
