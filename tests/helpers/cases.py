"""The scores, masks and engines that the tests cross with each other, each beside its slow definition."""

from dataclasses import dataclass

import reference
import torch
from torch import nn

from regard import masks, scores
from regard.engines.dense import Dense
from regard.engines.flash import Flash
from regard.engines.stream import Stream
from regard.kernels import KERNELS

# Every axis a different prime, so that no swap can hide.
LEADING, QUERIES, KEYS, SIZE, VALUES, HIDDEN = (2, 3), 5, 7, 11, 13, 17


def rand(*shape, seed=0, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape)), dtype=dtype)


def inputs(dtype=torch.float64, leading=LEADING):
    """Query, key and value that learn."""
    made = (
        rand(*leading, QUERIES, SIZE, seed=1),
        rand(*leading, KEYS, SIZE, seed=2),
        rand(*leading, KEYS, VALUES, seed=3),
    )
    return [x.to(dtype).requires_grad_() for x in made]


def gradients(outputs, tensors):
    """Of a fixed mix of all finite outputs; zeros where a tensor plays no part."""
    mix = sum((torch.where(x.isfinite(), x, 0.0) * rand(*x.shape, seed=8)).sum() for x in outputs)
    if not mix.requires_grad:
        return [torch.zeros_like(x) for x in tensors]
    found = torch.autograd.grad(mix, tensors, allow_unused=True, retain_graph=True)
    return [torch.zeros_like(x) if g is None else g for g, x in zip(found, tensors, strict=True)]


@dataclass
class ScoreCase:
    ours: object
    slow: object
    parameters: list


def score_case(name):
    """A score of ours, the same one written slowly, and the parameters they share."""
    torch.manual_seed(5)
    if name in ("constant", "dot", "scaled_dot"):
        return ScoreCase(getattr(scores, name), getattr(reference, name), [])
    if name == "scale":
        return ScoreCase(scores.Dot(scale=-0.3), lambda q, k: -0.3 * (q @ k), [])
    if name == "softcap":
        return ScoreCase(scores.softcap(scores.dot, 2.0), reference.softcap(reference.dot, 2.0), [])
    if name == "bilinear":
        ours = scores.Bilinear(SIZE, SIZE).double()
        return ScoreCase(ours, reference.bilinear(ours.weight), [ours.weight])
    if name in ("tanh", "sigmoid", "relu"):
        ours = scores.Additive(SIZE, SIZE, HIDDEN, activation=getattr(torch, name)).double()
        parts = [ours.query_projection.weight, ours.query_projection.bias, ours.key_projection.weight, ours.weight]
        return ScoreCase(ours, reference.additive(*parts, getattr(torch, name)), parts)
    if name == "concat":
        ours = scores.Additive(SIZE, SIZE, HIDDEN, bias=False).double()
        parts = [ours.query_projection.weight, ours.key_projection.weight, ours.weight]
        slow = reference.additive(parts[0], 0.0, parts[1], parts[2], torch.tanh)
        return ScoreCase(ours, slow, parts)
    if name == "closure":
        strength = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
        return ScoreCase(
            lambda query, key: -strength.exp() * (query[..., :, None, :] - key[..., None, :, :]).abs().sum(dim=-1),
            lambda q, k: -strength.exp() * (q - k).abs().sum(),
            [strength],
        )
    kernel, shape = name.split("-")
    # Wide for the compact kernels: in so many dimensions their support would else hold no key.
    width = 5.0 if KERNELS[kernel].profile.compact else 3.0
    bandwidth = {
        "number": torch.tensor(width, dtype=torch.float64),
        "vector": torch.linspace(0.8, 1.3, SIZE, dtype=torch.float64) * width,
        "matrix": width * (torch.eye(SIZE, dtype=torch.float64) + 0.1 * rand(SIZE, SIZE, seed=9)),
    }[shape]
    parameter = nn.Parameter(bandwidth)
    return ScoreCase(KERNELS[kernel](parameter), reference.kernel(kernel, parameter), [parameter])


SHAPES = {
    "gaussian": ["number", "vector", "matrix"],
    "laplace": ["vector", "matrix"],
    "epanechnikov": ["number", "matrix"],
}
SCORES = [
    *["constant", "dot", "scaled_dot", "scale", "softcap", "bilinear", "tanh", "sigmoid", "relu", "concat", "closure"],
    *[f"{kernel}-{shape}" for kernel in KERNELS for shape in SHAPES.get(kernel, ["vector"])],
]
INNER = ["dot", "scaled_dot", "scale", "bilinear", "gaussian-number", "gaussian-vector", "gaussian-matrix"]


@dataclass
class MaskCase:
    ours: object
    slow: object = None
    bias: object = None
    parameters: tuple = ()


def mask_case(name):
    """A mask of ours, the same one written slowly, and the biases in it that learn."""
    lengths = torch.tensor([4, 0])  # the second sequence has no key at all
    holes = rand(*LEADING, QUERIES, KEYS, seed=4) > -0.3
    holes[0, 1, 2] = False  # a query that may look at nothing
    bias = rand(*LEADING, QUERIES, KEYS, seed=6).requires_grad_()
    row = rand(KEYS, seed=7).requires_grad_()
    slope = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    index = torch.arange(KEYS) - torch.arange(QUERIES)[:, None]
    return {
        "none": lambda: MaskCase(None),
        "causal": lambda: MaskCase(masks.causal, lambda lead, i, j: j <= i),
        "padding": lambda: MaskCase(masks.padding(lengths), lambda lead, i, j: j < lengths[lead[0]]),
        "window": lambda: MaskCase(masks.window(1), lambda lead, i, j: abs(i - j) <= 1),
        "both": lambda: MaskCase(
            masks.both(masks.causal, masks.padding(lengths)), lambda lead, i, j: j <= i and j < lengths[lead[0]]
        ),
        "boolean": lambda: MaskCase(holes, lambda lead, i, j: holes[lead][i, j]),
        "bias": lambda: MaskCase(bias, None, bias, (bias,)),
        "row bias": lambda: MaskCase(row, None, row, (row,)),
        "causal bias": lambda: MaskCase(masks.both(masks.causal, bias), lambda lead, i, j: j <= i, bias, (bias,)),
        "row of booleans": lambda: MaskCase(holes[0, 0, 0], lambda lead, i, j: holes[0, 0, 0, j]),
        "nested": lambda: MaskCase(
            masks.both(masks.both(masks.window(2), row), masks.both(holes, masks.padding(lengths))),
            lambda lead, i, j: abs(i - j) <= 2 and holes[lead][i, j] and j < lengths[lead[0]],
            row,
            (row,),
        ),
        "relative": lambda: MaskCase(lambda q, k: slope * (k - q), None, slope * index, (slope,)),
        "forbidding bias": lambda: MaskCase(
            torch.where(holes, 0.0, -torch.inf).double(), lambda lead, i, j: holes[lead][i, j]
        ),
    }[name]()


MASKS = [
    *["none", "causal", "padding", "window", "both", "boolean", "bias", "row bias", "causal bias", "relative"],
    *["forbidding bias", "row of booleans", "nested"],
]
ENGINES = {
    "chosen": None,
    "dense": Dense(),
    "flash": Flash(),
    "stream": Stream(),
    "stream-1": Stream(1),
    "stream-3": Stream(3),
    "stream-7": Stream(7),
    "stream-2x5": Stream((2, 5)),
}
