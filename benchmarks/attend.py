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
from regard import masks
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
    kv_heads: int | None = None  # of key and value; the same as those of the query by default
    score: Callable[[], Score] = lambda: scaled_dot
    warm_up: int = 64  # the length of the small input, enough for the same engine and threads

    def __call__(self, seed: int) -> Inputs:
        torch.manual_seed(seed)
        leading = self.shape[:-2] if self.kv_heads is None else (*self.shape[:-3], self.kv_heads)
        shapes = self.shape, (*leading, *self.shape[-2:]), (*leading, self.shape[-2], self.value_size)
        query, key, value = (torch.randn(size).requires_grad_() for size in shapes)
        return Inputs(query, key, value, torch.randn(*self.shape[:-1], self.value_size), self.score())

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


WINDOW = 128


def ids(length: int) -> Tensor:
    """32 texts of unequal lengths packed into one sequence: the document of each position."""
    torch.manual_seed(7)
    ends = torch.randperm(length - 1)[:31].sort().values + 1
    return torch.searchsorted(ends, torch.arange(length), right=True)


def attend_masked(inputs: Inputs, mask: Callable[[int], masks.Mask]) -> Tensor:
    return regard.attend(inputs.query, inputs.key, inputs.value, mask=mask(inputs.query.shape[-2]))


def sdpa_masked(inputs: Inputs, mask: Callable[[int], masks.Mask]) -> Tensor:
    """torch's attention with the mask built, which is part of its time and memory."""
    index, function = torch.arange(inputs.query.shape[-2]), mask(inputs.query.shape[-2])
    assert not isinstance(function, Tensor)
    table = function(index[:, None], index)
    return functional.scaled_dot_product_attention(inputs.query, inputs.key, inputs.value, attn_mask=table)


def sdpa_causal(inputs: Inputs, dropout: float = 0.0) -> Tensor:
    query, key, value = inputs.query, inputs.key, inputs.value
    return functional.scaled_dot_product_attention(query, key, value, is_causal=True, dropout_p=dropout)


def attend_causal(inputs: Inputs, dropout: float = 0.0, engine: str | None = None) -> Tensor:
    query, key, value = inputs.query, inputs.key, inputs.value
    return regard.attend(query, key, value, mask=masks.causal, dropout=dropout, engine=engine)


def sdpa_grouped(inputs: Inputs) -> Tensor:
    return functional.scaled_dot_product_attention(inputs.query, inputs.key, inputs.value, enable_gqa=True)


class Distances(nn.Module):
    """A bias that learns, one number for each distance and head, as T5's without its buckets.

    It is a score's parameter here, so that its gradient is among those that are computed.
    """

    width = 1

    def __init__(self, heads: int = 8, farthest: int = 64) -> None:
        super().__init__()
        self.table, self.farthest = nn.Parameter(torch.randn(heads, 2 * farthest + 1)), farthest

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        return scaled_dot(query, key)

    def bias(self, query_index: Tensor, key_index: Tensor) -> Tensor:
        apart = (key_index - query_index).clamp(-self.farthest, self.farthest) + self.farthest
        return self.table[:, apart.flatten(0, -3)[0] if apart.ndim > 2 else apart]  # [heads, q, k]


def attend_biased(inputs: Inputs) -> Tensor:
    assert isinstance(inputs.score, Distances)
    return regard.attend(inputs.query, inputs.key, inputs.value, mask=inputs.score.bias)


def sdpa_biased(inputs: Inputs) -> Tensor:
    assert isinstance(inputs.score, Distances)
    index = torch.arange(inputs.query.shape[-2])
    bias = inputs.score.bias(index[:, None], index)
    return functional.scaled_dot_product_attention(inputs.query, inputs.key, inputs.value, attn_mask=bias)


def often(operation: Operation, calls: int = 1000) -> Operation:
    """The same operation many times: the time of one call in µs is that of the case in ms."""

    def run(inputs: Inputs) -> Tensor:
        for _ in range(calls - 1):
            operation(inputs)
        return operation(inputs)

    return run


def sparse(inputs: Inputs) -> Tensor:
    return regard.attend(inputs.query, inputs.key, inputs.value, weigh=regard.weighing.entmax15)


def entmax_package(inputs: Inputs) -> Tensor:
    from entmax import entmax15

    scores = inputs.query @ inputs.key.mT * inputs.query.shape[-1] ** -0.5
    weight: Tensor = entmax15(scores, dim=-1)
    return weight @ inputs.value


def attend_weighed(inputs: Inputs, weigh: regard.weighing.Weighing) -> Tensor:
    return regard.attend(inputs.query, inputs.key, inputs.value, weigh=weigh)


def formula_weighed(inputs: Inputs, formula: Callable[[Tensor], Tensor]) -> Tensor:
    return formula(inputs.query @ inputs.key.mT * inputs.query.shape[-1] ** -0.5) @ inputs.value


def softpick(scores: Tensor) -> Tensor:
    """The formula of Zuhri et al. 2025, stable for large scores."""
    largest = scores.detach().amax(dim=-1, keepdim=True).clamp(min=0)
    grown = (scores - largest).exp() - (-largest).exp()
    return grown.relu() / grown.abs().sum(dim=-1, keepdim=True)


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


def masked_case(
    name: str, mode: str, mask: Callable[[int], masks.Mask], peer: Operation, target: float, memory: float | None
) -> Case[Inputs]:
    """A mask over 16,384 tokens. The peer may see more than it allows: numbers are compared with those of the mask."""
    run, ours = MODES[mode], partial(attend_masked, mask=mask)
    return Case(
        f"{name}, {mode}",
        LONG,
        run(ours),
        run(peer),
        target,
        memory,
        warm_up=LONG.small(),
        checked=(run(ours), run(partial(sdpa_masked, mask=mask))),
    )


LONG = Vectors((1, 8, 16_384, 64), warm_up=2048)
WINDOWS, DOCUMENTS = (lambda length: masks.window(WINDOW)), (lambda length: masks.documents(ids(length)))
CAUSAL, GROUPED = Vectors((1, 8, 8192, 64)), Vectors((1, 32, 2048, 64), kv_heads=4)
BIASED, SHORT = Vectors((1, 8, 2048, 64), score=Distances), Vectors((8, 8, 16, 32), value_size=32, warm_up=16)
VECTORS = {"1×8×4096×64": Vectors((1, 8, 4096, 64)), "4×8×512×64": Vectors((4, 8, 512, 64))}
NARROW_VALUES = Vectors((1, 8, 2048, 64), value_size=16)
SPARSE = Vectors((4096, 64), warm_up=1100)
ADDITIVE = Vectors((4, 1024, 64), score=partial(Additive, 64, 64, hidden=128))
DENSE = {"forward": differences, "forward + backward": differences_by_feature}
WEIGHINGS: list[tuple[str, regard.weighing.Weighing, Callable[[Tensor], Tensor]]] = [
    ("sigmoid", regard.weighing.sigmoid(-8.3), lambda scores: torch.sigmoid(scores - 8.3)),  # -log 4096
    ("linear", regard.weighing.linear, lambda scores: scores),
    ("softpick", regard.weighing.softpick, softpick),
]
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
    *(
        masked_case(f"window 128, 16,384 tokens / {name}", mode, WINDOWS, peer, target, memory)
        for mode in MODES
        for name, peer, target, memory in (
            ("SDPA with the mask", partial(sdpa_masked, mask=WINDOWS), 1 / 20, 1 / 20),
            ("SDPA without a window", sdpa, 1 / 15, None),
        )
    ),
    masked_case(
        "32 documents, 16,384 tokens / SDPA with the mask",
        "forward + backward",
        DOCUMENTS,
        partial(sdpa_masked, mask=DOCUMENTS),
        1 / 8,
        None,
    ),
    Case(
        "causal 1×8×8192×64, forward + backward / SDPA is_causal",
        CAUSAL,
        forward_backward(attend_causal),
        forward_backward(sdpa_causal),
        1.0,
        warm_up=CAUSAL.small(),
    ),
    Case(
        "causal with dropout 1×8×8192×64, forward + backward / SDPA",
        CAUSAL,
        forward_backward(partial(attend_causal, dropout=0.1)),
        forward_backward(partial(sdpa_causal, dropout=0.1)),
        1 / 4,
        warm_up=CAUSAL.small(),
        checked=(forward_backward(partial(attend_causal, engine="stream")), forward_backward(sdpa_causal)),
    ),
    Case(
        "grouped queries, 32 heads over 4, 2,048 tokens, forward + backward / SDPA enable_gqa",
        GROUPED,
        forward_backward(attend),
        forward_backward(sdpa_grouped),
        1.0,
        1.0,
        warm_up=GROUPED.small(),
    ),
    Case(
        "a bias that learns, 8 heads, 2,048 tokens, forward + backward / SDPA with a bias tensor",
        BIASED,
        forward_backward(attend_biased),
        forward_backward(sdpa_biased),
        1.0,
        1 / 10,
        warm_up=BIASED.small(),
    ),
    Case(
        "a thousand calls, 8×8×16×32, forward / SDPA",
        SHORT,
        forward(often(attend)),
        forward(often(sdpa)),
        1.3,
        warm_up=SHORT,
    ),
    Case(
        "entmax15 4096×4096×64, forward + backward / entmax",
        SPARSE,
        forward_backward(sparse),
        forward_backward(entmax_package),
        1 / 5,
        1 / 20,
        warm_up=SPARSE.small(),
    ),
    *(
        Case(
            f"{name} 4096×4096×64, {mode} / its formula",
            SPARSE,
            run(partial(attend_weighed, weigh=weigh)),
            run(partial(formula_weighed, formula=formula)),
            1.0,
            1 / 10,
            warm_up=SPARSE.small(),
            tolerance=1e-3,  # the gradients of softpick's formula are 4e-4 from float64 where a score is almost 0
        )
        for name, weigh, formula in WEIGHINGS
        for mode, run in MODES.items()
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
