"""The attention layer: from one query to many heads, what order and masks do, and a grid that looks at itself.

q, k, v = W_q x, W_k x, W_v x        f(x) = W_o [head₁; …; head_H]        head = attend(q, k, v)
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from regard.layers import (
    Block,
    ConvSelfAttention,
    FeedForward,
    LearnedPositions,
    MultiHeadAttention,
    SelfAttention,
    Sinusoidal,
)
from regard.layers.watch import watch
from regard.masks import causal
from regard.tour.figures import draw_cells, draw_maps
from regard.tour.findings import Finding, Picture, Row, Station
from regard.training import Monitor, Recipe, train

_SENTENCE, _SWAPPED = ["the", "dog", "bit", "the", "man"], ["the", "man", "bit", "the", "dog"]
SIZE, _LENGTH, _LETTERS, HEADS = 32, 10, "abcdefgh", 2
_CHANNELS, LEARNED = 16, 1200


def visit(folder: Path, seed: int, quick: bool) -> Iterator[Finding]:
    """Words without training, a block that learns two rules, and digits."""
    yield from words()
    yield from _two_rules(quick)
    yield from grids(seed, quick)


def words() -> Iterator[Finding]:
    """A layer as it is made, and the same five words in two orders."""
    vectors = {word: torch.randn(SIZE) for word in sorted(set(_SENTENCE))}
    first, then = (torch.stack([vectors[word] for word in some]) for some in (_SENTENCE, _SWAPPED))
    order = [0, 4, 2, 3, 1]  # SWAPPED is SENTENCE in this order
    layer, positions = SelfAttention(SIZE), Sinusoidal(SIZE)
    nn.init.normal_(layer.projection.weight, std=0.25)
    with torch.no_grad():
        plain = float((layer(then) - layer(first)[order]).abs().max())
        placed = float((layer(positions(then)) - layer(positions(first))[order]).abs().max())
        other = torch.cat([first[:-1], torch.randn(1, SIZE)])  # another last word
        after = float((layer(other, mask=causal) - layer(first, mask=causal))[:-1].abs().max())
        without = float((layer(other) - layer(first))[:-1].abs().max())
        looks = {
            "dog bit man": (layer.look(first), _SENTENCE),
            "man bit dog: same rows": (layer.look(then), _SWAPPED),
            "… with positions": (layer.look(positions(then)), _SWAPPED),
            "causal: no future": (layer.look(first, mask=causal), _SENTENCE),
        }
    yield Row("two words swapped", "self-attention", "change", plain, "with positions", placed, lower=True)
    yield Row("another last word", "causal mask", "change before", after, "no mask", without, lower=True)
    yield Picture(
        "order",
        draw_maps({title: (weights.numpy(), some, some) for title, (weights, some) in looks.items()}, 5.6),  # type: ignore[union-attr]
        "Without positions, it cannot tell who bit whom",
        "A row is a word that looks, a column a word that is looked at; white is 0, dark blue 1. Swap"
        " the words, and the rows of the map are swapped and nothing else: attention is permutation-equivariant."
        " Positions, added to the words, change that. Under the causal mask a word sees itself and what came before.",
        "Four maps of five words by five words. The second has the rows and columns of the first in another order, the"
        " third differs, the fourth is empty above its diagonal.",
    )


class Rules(nn.Module):
    """One block that says for each place the letter before it, and the letter opposite."""

    def __init__(self, positions: nn.Module) -> None:
        super().__init__()
        self.embed, self.positions = nn.Embedding(len(_LETTERS), SIZE), positions
        self.block = Block(MultiHeadAttention(SIZE, HEADS), FeedForward(SIZE))
        self.read = nn.Linear(SIZE, 2 * len(_LETTERS))

    def forward(self, letters: Tensor) -> Tensor:
        """Letters `[batch, length]` to logits `[batch, length, 2, letters]`."""
        rows = self.block(self.positions(self.embed(letters)))
        return self.read(rows).unflatten(-1, (2, -1))  # type: ignore[no-any-return]


def _answers(letters: Tensor) -> Tensor:
    """The letter before, the last one before the first; and the letter as far from the other end."""
    return torch.stack([letters.roll(1, dims=1), letters.flip(1)], dim=-1)


def _two_rules(quick: bool) -> Iterator[Finding]:
    """What the heads of a trained block look at, where it is known what they should."""
    test, scores, models = torch.randint(len(_LETTERS), (500, _LENGTH)), [], []
    for positions in (LearnedPositions(_LENGTH, SIZE), nn.Identity()):
        if isinstance(positions, LearnedPositions):
            nn.init.normal_(positions.weight, std=0.5)
        model = Rules(positions)
        train(
            model,
            lambda epoch: [torch.randint(len(_LETTERS), (64, _LENGTH)) for _ in range(100)],
            lambda letters, model=model: cross_entropy(model(letters).flatten(0, 2), _answers(letters).flatten()),  # type: ignore[misc]
            Recipe(torch.optim.Adam(model.parameters(), lr=5e-3), epochs=2 if quick else 5),
            monitor=Monitor("a block learns two rules"),
        )
        with torch.no_grad():
            scores.append(float((model(test).argmax(dim=-1) == _answers(test)).float().mean()))
        models.append(model)
    yield Row(
        f"{_LENGTH} letters, two rules", f"a block, {HEADS} heads", "accuracy", scores[0], "no positions", scores[1]
    )
    heads = _watched_weights(models[0], test[:1])  # [heads, length, length]
    index = torch.arange(_LENGTH)
    index = index[(index - 1) % _LENGTH != _LENGTH - 1 - index]  # where the rules ask for two letters
    before, opposite = (heads[:, index, rule].mean(dim=1).tolist() for rule in (index - 1, _LENGTH - 1 - index))
    fractions = "; ".join(f"head {number} {before[number]:.0%} and {opposite[number]:.0%}" for number in range(HEADS))
    letters = [_LETTERS[letter] for letter in test[0].tolist()]
    maps = {f"head {number}": (weights.numpy(), letters, letters) for number, weights in enumerate(heads)}
    yield Picture(
        "heads",
        draw_maps(maps, 3.0),
        "Two rules, two heads: they have shared the work",
        "The block must say, at each place, the letter before it and the letter as far from the other end. Nobody told"
        " a head what to look at. Of their weight, one place back and at the opposite place, they have come to put:"
        f" {fractions}. Without positions both rules are guessing: {scores[1]:.0%} right.",
        f"Two maps of ten letters by ten. Weights just below the diagonal and on the anti-diagonal: {fractions}.",
    )


def _digit_network(attention: bool) -> nn.Sequential:
    """A ConvNet whose cells see 3 × 3 pixels, and between its convolution and its pooling, attention or nothing."""
    return nn.Sequential(
        nn.Conv2d(1, _CHANNELS, 3, padding=1),
        nn.BatchNorm2d(_CHANNELS),
        nn.ReLU(),
        ConvSelfAttention(_CHANNELS, heads=HEADS) if attention else nn.Identity(),
        nn.BatchNorm2d(_CHANNELS),
        nn.AdaptiveMaxPool2d(1),
        nn.Flatten(),
        nn.Linear(_CHANNELS, 10),
    )


def grids(seed: int, quick: bool) -> Iterator[Finding]:
    """Attention in a ConvNet on digits, against the same ConvNet without it."""
    from sklearn.datasets import load_digits

    data = load_digits()
    x, y = torch.tensor(data.images / 16, dtype=torch.float32).unsqueeze(1), torch.tensor(data.target)
    networks, scores = {}, {}
    for attention in (True, False):
        torch.manual_seed(seed)
        network = networks[attention] = _digit_network(attention)
        train(
            network,
            lambda epoch: list(torch.split(torch.randperm(LEARNED), 64)),
            lambda some, network=network: cross_entropy(network(x[some]), y[some]),  # type: ignore[misc]
            Recipe(torch.optim.Adam(network.parameters(), lr=1e-2), epochs=4 if quick else 20),
            monitor=Monitor("a ConvNet learns digits"),
        )
        network.eval()
        with torch.no_grad():
            scores[attention] = float((network(x[LEARNED:]).argmax(dim=1) == y[LEARNED:]).float().mean())
    yield Row("597 new digits", "ConvNet with attention", "accuracy", scores[True], "without", scores[False])
    yield Picture(
        "cells",
        _draw_looks(networks[True], x, y),
        "A cell that sees 3 × 3 pixels asks the rest of the digit",
        "A frame marks the cell that looks, and dark blue where it looks most; the grey line is the"
        f" digit. One convolution sees 3 × 3 pixels and knows strokes, not digits: {scores[False]:.0%} right. With"
        f" attention between it and the pooling, a cell also knows what is elsewhere: {scores[True]:.0%}.",
        "Three rows: a hand-written digit, and maps of what three of its cells look at. Some look at a spot, some"
        " at much of the image.",
    )


def _watched_weights(model: nn.Module, one: Tensor) -> Tensor:
    """The weights [heads, queries, keys] of a model's only attention, for a batch of one."""
    with torch.no_grad(), watch(model) as weights:
        model(one)
    ((weight,),) = weights.values()
    return weight[0]


def _draw_looks(network: nn.Sequential, x: Tensor, y: Tensor) -> Any:
    """What the three inkiest cells that stand apart look at, in a digit of three kinds; the mean of the heads."""
    images, looks = [], []
    for kind in (0, 4, 9):
        index = LEARNED + int((y[LEARNED:] == kind).nonzero()[0])
        image = x[index, 0]
        weights = _watched_weights(network, x[index : index + 1]).mean(dim=0).view(-1, *image.shape)  # [cells, 8, 8]
        cells: list[tuple[int, int]] = []
        for cell in image.flatten().argsort(descending=True).tolist():
            y_, x_ = divmod(cell, image.shape[1])
            if all(abs(y_ - a) + abs(x_ - b) > 3 for a, b in cells):
                cells.append((y_, x_))
        images.append(image.numpy())
        looks.append([((a, b), weights[a * image.shape[1] + b].numpy()) for a, b in cells[:3]])
    return draw_cells(images, looks)


STATIONS = (
    Station(
        "layer",
        "The attention layer",
        "Queries, keys and values are projections of the same rows: a set that looks at itself. It knows no order"
        " unless it"
        " is told, a mask says who may look, several heads look at once, and the cells of an image are rows too.",
        visit,
        findings=7,
        chapter=5,
    ),
)
