"""What `regard.watch` recorded, and the forms in which other tools take it: a frame, a plot, tensors, rollout."""

import difflib
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from regard import plots
from regard.attend import Look
from regard.checks import optional_import, quote_names

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame

Layers = str | Sequence[str]
"""Names of layers, or patterns of names such as `encoder.*`; one or several."""
Tokens = Sequence[str] | Sequence[Sequence[str]]
"""The tokens of a sequence, or of each sequence of a batch."""


class _Run(NamedTuple):
    """One run of a layer."""

    layer: str
    call: int  # how many times the layer ran before
    weights: Tensor | Look


class AttentionRecord(dict[str, list[Tensor | Look]]):
    """For each layer's name, a list with one entry for each time it ran: weights, a `Look`, or what `reduce` returned.

    `layers` selects layers by name or pattern in all methods; the default is all of them. Weights with other
    dimensions than `[batch, heads, q, k]` count as one head if there are three, and as one sequence if there are two.

    >>> import torch, regard
    >>> model = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(16, 4, batch_first=True), 2).eval()
    >>> with regard.watch(model) as record:
    ...     _ = model(torch.randn(1, 3, 16))
    >>> [weights.shape for weights in record.attentions()]
    [torch.Size([1, 4, 3, 3]), torch.Size([1, 4, 3, 3])]
    >>> record.rollout().shape
    torch.Size([1, 3, 3])
    >>> record.to_frame(["a", "red", "dog"]).columns.tolist()
    ['layer', 'call', 'batch', 'head', 'query', 'key', 'query_token', 'key_token', 'weight']
    """

    def __init__(self, names: Iterable[str] = ()) -> None:
        super().__init__({name: [] for name in names})
        self._runs: list[str] = []  # names of layers, in the order in which they ran

    def add(self, name: str, weights: Tensor | Look) -> None:
        """Add one run of a layer."""
        self.setdefault(name, []).append(weights)
        self._runs.append(name)

    def attentions(self, layers: Layers | None = None) -> tuple[Tensor, ...]:
        """The weights `[batch, heads, q, k]` of each run, in the order of running: what `output_attentions=True` gives.

        BertViz's `head_view` and `model_view` take this tuple, circuitsvis takes one sequence of one layer, `[heads, q,
        k]`. Run the model once while it is watched.
        """
        return tuple(_whole(run) for run in self._select(layers))

    def rollout(self, layers: Layers | None = None) -> Tensor:
        """How much each output row depends on each input row through all layers, `[batch, q, k]`.

            R₀ = I      Rₗ = (½ Aₗ + ½ I) Rₗ₋₁        Aₗ: weights of layer l, averaged over its heads

        (Abnar & Zuidema 2020, equation 1.) Needs self-attention layers of one length, from one forward pass.
        """
        matrices = self.attentions(layers)
        shapes = {(len(matrix), *matrix.shape[-2:]) for matrix in matrices}
        if len(shapes) != 1 or len({matrices[0].shape[-1], matrices[0].shape[-2]}) != 1:
            raise ValueError(
                "rollout needs self-attention layers of one length, weights [batch, heads, n, n], got"
                f" {sorted(map(list, shapes))} for [batch, q, k]: select layers by name or pattern,"
                " such as layers='encoder.*', and run the model once"
            )
        first = _at_least_float32(matrices[0])
        identity = torch.eye(first.shape[-1], dtype=first.dtype, device=first.device)
        result = identity.expand(len(first), -1, -1)
        for matrix in matrices:
            step = _at_least_float32(matrix).mean(dim=1) + identity  # [batch, n, n]
            result = (step / step.sum(dim=-1, keepdim=True)) @ result
        return result

    def to_frame(
        self, tokens: Tokens | None = None, key_tokens: Tokens | None = None, *, layers: Layers | None = None
    ) -> "DataFrame":
        """A pandas frame with a row for each weight; with `top`, for each of the largest weights.

        tokens       tokens of the sequence, or a list of them for each sequence of a batch (padding may be left out).
                     While generating: of the prompt and what was generated, without the last token
        key_tokens   tokens of the keys, for cross-attention; default: `tokens`
        """
        with optional_import("to_frame needs the package pandas"):
            import pandas as pd
        runs = self._select(layers)
        _check_tokens(tokens, key_tokens, runs)
        return pd.concat([pd.DataFrame(_columns(run, tokens, key_tokens)) for run in runs], ignore_index=True)

    def plot(
        self,
        layer: str,
        head: int = 0,
        tokens: Tokens | None = None,
        key_tokens: Tokens | None = None,
        batch: int = 0,
        call: int = 0,
        axes: "Axes | None" = None,
    ) -> "Axes":
        """The weights of one head as a map with a row for each query; `call` is the run of the layer, from 0.

        `tokens` and `key_tokens` are those of `to_frame`.
        """
        names = [layer] if layer in self else self._names(layer)
        if len(names) > 1:
            raise ValueError(f"plot draws one layer, but {layer!r} matches {quote_names(names, most=5)}")
        runs = self._select(names)
        if not -len(runs) <= call < len(runs):
            raise ValueError(f"{names[0]!r} ran {len(runs)} times: call must be below that, got {call}")
        _check_tokens(tokens, key_tokens, runs)
        run = runs[call]
        _check_weights(run)
        weights = _matrix(run, _keys(run))
        batches, heads, *_ = weights.shape
        if not (0 <= batch < batches and 0 <= head < heads):
            raise ValueError(f"{run.layer!r} has {batches} sequences and {heads} heads, got {batch=} and {head=}")
        title, matrix = f"{run.layer}, head {head}", _at_least_float32(weights[batch, head]).cpu()
        if tokens is None:
            return plots.weight_map(matrix, axes=axes, title=title)
        labels = _label(run, matrix.shape[-1], tokens, key_tokens)[batch]
        return plots.alignment_map(matrix, labels.keys, labels.queries, axes=axes, title=title)

    def _names(self, layers: Layers | None) -> list[str]:
        """The names of the layers that are selected; raises where a pattern matches none."""
        patterns = patterns_of(layers)
        for pattern in patterns or []:
            if not any(matches(name, [pattern]) for name in self):
                raise ValueError(f"no recorded layer matches {pattern!r}; nearest names: {nearest(pattern, self)}")
        return [name for name in self if matches(name, patterns)]

    def _select(self, layers: Layers | None) -> list[_Run]:
        """The runs of these layers, in the order of running."""
        names = set(self._names(layers))
        calls = dict.fromkeys(names, 0)
        runs = []
        for name in self._runs:
            if name in names:
                runs.append(_Run(name, calls[name], self[name][calls[name]]))
                calls[name] += 1
        if not runs:
            raise ValueError("nothing was recorded: call the model inside the `with` block of watch")
        return runs


def patterns_of(layers: Layers | None) -> list[str] | None:
    """Names and patterns as a list."""
    if layers is None:
        return None
    patterns = [layers] if isinstance(layers, str) else list(layers) if isinstance(layers, Iterable) else [layers]
    for pattern in patterns:
        if not isinstance(pattern, str):
            raise TypeError(
                f"layers must be names of modules or patterns of names, such as '*.{pattern}.*', got {pattern!r}"
            )
    return patterns


def matches(name: str, patterns: Sequence[str] | None) -> bool:
    """Whether a layer has one of these names, or matches one of these patterns; without them every layer does."""
    both = {name, name.partition("#")[0]}
    return patterns is None or any(fnmatchcase(one, pattern) for one in both for pattern in patterns)


def nearest(pattern: str, names: Iterable[str], most: int = 5) -> str:
    """The names that are most similar to a pattern, in quotes."""
    return quote_names(difflib.get_close_matches(pattern, list(names), n=most, cutoff=0.0)) or "none"


class _Names(NamedTuple):
    """The tokens of one sequence: a name for each query and each key."""

    queries: list[str]
    keys: list[str]


def _check_tokens(tokens: Tokens | None, key_tokens: Tokens | None, runs: Sequence[_Run]) -> None:
    """Raise unless the longest sequence has one token for each key of the longest run."""
    if tokens is None and key_tokens is not None:
        raise ValueError("key_tokens are those of the keys: give tokens, those of the queries, too")
    if tokens is None:
        return
    for run in runs:
        _check_weights(run)
    longest = max((len(row) for row in _rows(tokens if key_tokens is None else key_tokens)), default=0)
    keys = max(_keys(run) for run in runs)
    # A `Look` has only the largest weights, so that the last keys may be missing.
    if keys > longest or (keys < longest and not any(isinstance(run.weights, Look) for run in runs)):
        name = "tokens" if key_tokens is None else "key_tokens"
        raise ValueError(f"{name} must be one for each key of the longest sequence, here {keys}, got {longest}")


def _label(run: _Run, keys: int, tokens: Tokens, key_tokens: Tokens | None) -> list[_Names]:
    """The tokens of each sequence. Fewer queries than keys are the last positions, as with cached keys."""
    batch, _, queries, _ = _four(run.weights if isinstance(run.weights, Tensor) else run.weights.index).shape
    rows = _rows(tokens)
    key_rows = rows if key_tokens is None else _rows(key_tokens)
    if not len(rows) == len(key_rows) == batch:
        got = sorted({len(rows), len(key_rows)})
        raise ValueError(f"tokens must be a list for each of the {batch} sequences, got {', '.join(map(str, got))}")
    start = max(0, keys - queries) if key_tokens is None else 0
    return [
        _Names(_padded(row[start:], queries), _padded(key_row, keys))
        for row, key_row in zip(rows, key_rows, strict=True)
    ]


def _keys(run: _Run) -> int:
    """The number of keys; a `Look` shows only the last one that it has."""
    if isinstance(run.weights, Tensor):
        return run.weights.shape[-1]
    return int(run.weights.index.max()) + 1 if run.weights.index.numel() else 0


def _rows(tokens: Tokens) -> list[list[str]]:
    """The tokens of each sequence."""
    if isinstance(tokens, str):
        raise TypeError(f"tokens must be a list of tokens, got the text {tokens!r}: split it as the model does")
    if all(isinstance(token, str) for token in tokens):
        return [[str(token) for token in tokens]]
    return [[str(token) for token in row] for row in tokens]


def _padded(names: Sequence[str], count: int) -> list[str]:
    """That many names: empty ones for padding."""
    return [*names[:count], *[""] * (count - len(names))]


def _columns(run: _Run, tokens: Tokens | None, key_tokens: Tokens | None) -> dict[str, object]:
    """The columns of a frame for one run."""
    _check_weights(run)
    if isinstance(run.weights, Look):
        index, weight = (_four(x).cpu() for x in run.weights)
        batch, head, query, place = (index >= 0).nonzero(as_tuple=True)
        key, weight = index[batch, head, query, place], weight[batch, head, query, place]
    else:
        matrix = _four(run.weights).cpu()
        batch, head, query, key = torch.ones_like(matrix, dtype=torch.bool).nonzero(as_tuple=True)
        weight = matrix.flatten()
    columns: dict[str, object] = {"layer": run.layer, "call": run.call}
    columns |= {"batch": batch.numpy(), "head": head.numpy(), "query": query.numpy(), "key": key.numpy()}
    if tokens is not None:
        names = _label(run, _keys(run), tokens, key_tokens)
        columns["query_token"] = np.array([one.queries for one in names], dtype=object)[batch, query]
        columns["key_token"] = np.array([one.keys for one in names], dtype=object)[batch, key]
    return {**columns, "weight": _at_least_float32(weight).numpy()}


def _matrix(run: _Run, keys: int) -> Tensor:
    """The weights `[batch, heads, q, k]`; of a `Look`, 0 for those that it does not have."""
    if isinstance(run.weights, Tensor):
        return _four(run.weights)
    index, weight = (_four(x) for x in run.weights)
    result = weight.new_zeros(*index.shape[:-1], keys + 1)  # index -1 goes into one more column
    return result.scatter_(-1, index.where(index >= 0, keys), weight)[..., :keys]


def _whole(run: _Run) -> Tensor:
    """The whole weights, `[batch, heads, q, k]`."""
    _check_weights(run)
    if isinstance(run.weights, Look):
        raise ValueError("this needs whole weights, but only the largest were recorded: leave out top in watch")
    return _four(run.weights)


def _check_weights(run: _Run) -> None:
    """Raise for what `reduce` returned, unless it is weights or a `Look` too."""
    if not isinstance(run.weights, Tensor | Look) or (isinstance(run.weights, Tensor) and run.weights.ndim < 2):
        raise TypeError(f"this needs weights, but watch was told to keep what reduce returned for {run.layer!r}")


def _four(x: Tensor) -> Tensor:
    """`[batch, heads, q, k]` of `[q, k]`, `[batch, q, k]`, or more leading dimensions, all but the last a batch."""
    if x.ndim <= 3:
        return x.reshape(-1, 1, *x.shape[-2:])
    return x.flatten(0, x.ndim - 4)


def _at_least_float32(x: Tensor) -> Tensor:
    """The numbers in float32 or float64: NumPy has no bfloat16."""
    return x if x.dtype == torch.float64 else x.float()
