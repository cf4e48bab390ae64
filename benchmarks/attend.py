"""`regard.attend` and `regard.look` compared with plain torch, on the CPU in float32.

    python -m benchmarks.attend                     all cases; about twenty minutes and 12 GiB
    python -m benchmarks.attend --only gaussian     the cases with this text in their name
    python -m benchmarks.attend --repeats 30 --json results.json

`benchmarks/harness.py` describes how time and memory are measured. "forward" is without gradients. "forward + backward"
adds the gradients of query, key and value, and of the score's parameters, for a fixed random output gradient. Each case
first checks that both sides give the same numbers; dropout cases are checked without dropout, on the engine that
dropout uses.
"""

import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import regard
from benchmarks.harness import Case, main
from regard.scores import Additive, Gaussian, Score, scaled_dot

Operation = Callable[["Inputs"], Tensor]
Run = Callable[["Inputs"], Sequence[Tensor]]


@dataclass(frozen=True)
class Inputs:
    query: Tensor  # [..., q, d]
    key: Tensor  # [..., k, d]
    value: Tensor  # [..., k, v]
    output_gradient: Tensor  # [..., q, v]
    score: Score = scaled_dot

    @property
    def leaves(self) -> list[Tensor]:
        """The tensors whose gradients are computed."""
        parameters = self.score.parameters() if isinstance(self.score, nn.Module) else ()
        return [self.query, self.key, self.value, *parameters]


@dataclass(frozen=True)
class Vectors:
    """Makes query, key and value from a seed, all N(0, 1)."""

    shape: Sequence[int]  # of query and key, [..., length, d]
    value_size: int = 64
    score: Callable[[], Score] = lambda: scaled_dot
    warm_up: int = 64  # the length of the small input, enough for the same engine and threads

    def __call__(self, seed: int) -> Inputs:
        torch.manual_seed(seed)
        value_shape = [*self.shape[:-1], self.value_size]
        query, key, value = (torch.randn(size).requires_grad_() for size in (self.shape, self.shape, value_shape))
        return Inputs(query, key, value, torch.randn(value_shape), self.score())

    def small(self) -> "Vectors":
        return replace(self, shape=(*self.shape[:-2], self.warm_up, self.shape[-1]))


def forward(operation: Operation) -> Run:
    @torch.no_grad()
    def run(inputs: Inputs) -> Sequence[Tensor]:
        return [operation(inputs)]

    return run


def forward_backward(operation: Operation) -> Run:
    def run(inputs: Inputs) -> Sequence[Tensor]:
        output = operation(inputs)
        return [output.detach(), *torch.autograd.grad(output, inputs.leaves, inputs.output_gradient)]

    return run


MODES = {"forward": forward, "forward + backward": forward_backward}


def attend(inputs: Inputs, dropout: float = 0.0, engine: str | None = None) -> Tensor:
    return regard.attend(inputs.query, inputs.key, inputs.value, score=inputs.score, dropout=dropout, engine=engine)


def sdpa(inputs: Inputs, dropout: float = 0.0) -> Tensor:
    return functional.scaled_dot_product_attention(inputs.query, inputs.key, inputs.value, dropout_p=dropout)


def additive(inputs: Inputs) -> Tensor:
    score = inputs.score
    assert isinstance(score, Additive)
    query, key = score.query_projection(inputs.query), score.key_projection(inputs.key)
    hidden = torch.tanh(query[:, :, None] + key[:, None])  # [4, q, k, h]
    return torch.softmax(hidden @ score.weight, dim=-1) @ inputs.value


def gaussian(inputs: Inputs, squares: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    score = inputs.score
    assert isinstance(score, Gaussian)
    query, key = (x / float(score.bandwidth) for x in (inputs.query, inputs.key))
    return torch.softmax(-0.5 * squares(query, key), dim=-1) @ inputs.value


def differences(query: Tensor, key: Tensor) -> Tensor:
    """All features at once: temporaries of 4.5 GiB at 20,000 × 20,000 × 3."""
    return ((query[:, None] - key[None]) ** 2).sum(dim=-1)


def differences_by_feature(query: Tensor, key: Tensor) -> Tensor:
    """The same, one feature at a time: forward + backward takes 10.4 GiB instead of 19.4."""
    squares = (query[:, None, 0] - key[None, :, 0]) ** 2
    for feature in range(1, query.shape[-1]):
        squares = squares + (query[:, None, feature] - key[None, :, feature]) ** 2
    return squares


def cdist(query: Tensor, key: Tensor) -> Tensor:
    return torch.cdist(query, key).square()


@dataclass(frozen=True)
class Tokens:
    """One sequence for eight heads of self-attention, before and after projection with the peer's weights."""

    x: Tensor  # [1, n, 512]
    module: nn.MultiheadAttention
    query: Tensor  # [1, 8, n, 64]
    key: Tensor


@torch.no_grad()
def tokens(seed: int, length: int) -> Tokens:
    torch.manual_seed(seed)
    x = torch.randn(1, length, 512)
    module = nn.MultiheadAttention(512, 8, batch_first=True).eval()  # uses its fused path, which is faster
    query, key, _ = projected(x, module)
    return Tokens(x, module, query, key)


def projected(x: Tensor, module: nn.MultiheadAttention) -> list[Tensor]:
    """Query, key and value, `[1, 8, n, 64]`."""
    joint = functional.linear(x, module.in_proj_weight, module.in_proj_bias)
    return [part.view(*x.shape[:2], 8, 64).transpose(1, 2) for part in joint.chunk(3, dim=-1)]


@torch.no_grad()
def top_weights(inputs: Tokens) -> Sequence[Tensor]:
    largest = regard.look(inputs.query, inputs.key, top=8)
    return [largest.weight, largest.index]


@torch.no_grad()
def project_attend_look(inputs: Tokens) -> Sequence[Tensor]:
    query, key, value = projected(inputs.x, inputs.module)
    output = inputs.module.out_proj(regard.attend(query, key, value).transpose(1, 2).flatten(2))
    largest = regard.look(query, key, top=8)
    return [largest.weight, largest.index, output]


@torch.no_grad()
def multihead_top(inputs: Tokens) -> Sequence[Tensor]:
    x = inputs.x
    output, weight = inputs.module(x, x, x, need_weights=True, average_attn_weights=False)
    return [*weight.topk(8), output]


def importing(name: str) -> Sequence[Tensor]:
    """Import a module in a fresh interpreter, whose start is part of both sides' time."""
    subprocess.run([sys.executable, "-c", f"import {name}"], check=True)
    return []


def gaussian_case(bandwidth: float, mode: str, squares: Callable[[Tensor, Tensor], Tensor]) -> Case[Inputs]:
    run, vectors = MODES[mode], Vectors((20_000, 3), value_size=1, score=partial(Gaussian, bandwidth), warm_up=1100)
    return Case(
        f"gaussian {bandwidth}, 20000×20000×3, {mode} / {squares.__name__.replace('_', ' ')}",
        vectors,
        run(attend),
        run(partial(gaussian, squares=squares)),
        1 / 8,
        warm_up=vectors.small(),
    )


VECTORS = {"1×8×4096×64": Vectors((1, 8, 4096, 64)), "4×8×512×64": Vectors((4, 8, 512, 64))}
NARROW_VALUES = Vectors((1, 8, 2048, 64), value_size=16)
ADDITIVE = Vectors((4, 1024, 64), score=partial(Additive, 64, 64, hidden=128))
DENSE = {"forward": differences, "forward + backward": differences_by_feature}
CASES: list[Case[Any]] = [
    *(
        Case(f"dot {name}, {mode} / SDPA", vectors, run(attend), run(sdpa), 1.05, warm_up=vectors.small())
        for name, vectors in VECTORS.items()
        for mode, run in MODES.items()
    ),
    *(
        Case(
            f"dropout {name}, forward + backward / SDPA",
            vectors,
            forward_backward(partial(attend, dropout=0.1)),
            forward_backward(partial(sdpa, dropout=0.1)),
            1 / 3,
            1 / 10,
            warm_up=vectors.small(),
            checked=(
                forward_backward(partial(attend, engine="stream")),
                forward_backward(sdpa),
            ),  # the engine that dropout uses
        )
        for name, vectors in VECTORS.items()
    ),
    *(
        Case(
            f"value size 16, 1×8×2048×64, {mode} / SDPA",
            NARROW_VALUES,
            run(attend),
            run(sdpa),
            1 / 2,
            1 / 4,
            warm_up=NARROW_VALUES.small(),
        )
        for mode, run in MODES.items()
    ),
    *(
        gaussian_case(bandwidth, mode, squares)
        for bandwidth in (1.0, 0.25)
        for mode in MODES
        for squares in (DENSE[mode], cdist)
    ),
    Case(
        "additive 4×1024×1024, hidden 128, forward + backward / dense",
        ADDITIVE,
        forward_backward(attend),
        forward_backward(additive),
        1.0,
        1 / 10,
        warm_up=ADDITIVE.small(),
    ),
    Case(
        "look(top=8), 1×8×4096×64 / MultiheadAttention + topk",
        partial(tokens, length=4096),
        top_weights,
        lambda inputs: multihead_top(inputs)[:2],
        1.0,
        1 / 10,
        warm_up=partial(tokens, length=64),
    ),
    Case(
        "project + attend + look / MultiheadAttention + topk",
        partial(tokens, length=4096),
        project_attend_look,
        multihead_top,
        1.0,
        1 / 10,
        warm_up=partial(tokens, length=64),
    ),
    Case(
        "import regard / import torch", lambda _: None, lambda _: importing("regard"), lambda _: importing("torch"), 1.3
    ),
]

if __name__ == "__main__":
    main(CASES, __spec__.name)
