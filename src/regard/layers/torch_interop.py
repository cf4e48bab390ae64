"""torch's `nn.MultiheadAttention` beside ours: weights both ways, and what it looks at."""

import contextlib
from collections.abc import Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.attend import Look, look
from regard.layers.multi_head import MultiHeadAttention
from regard.masks import Mask, both
from regard.scores import scaled_dot

Layer = TypeVar("Layer", bound=MultiHeadAttention)


def adopt(kind: type[Layer], module: nn.MultiheadAttention) -> Layer:
    """Ours from torch's."""
    if not isinstance(module, nn.MultiheadAttention):
        raise TypeError(f"from_torch needs torch's nn.MultiheadAttention, got {type(module).__name__}")
    refused = [name for name in ("bias_k", "bias_v") if getattr(module, name) is not None]
    refused += ["add_zero_attn"] if module.add_zero_attn else []
    if refused:
        raise ValueError(f"MultiHeadAttention has no counterpart for {' and '.join(refused)}")
    with undrawn():
        made = kind(
            module.embed_dim,
            module.num_heads,
            key_size=module.kdim,
            value_size=module.vdim,
            dropout=module.dropout,
            bias=module.in_proj_bias is not None,
        ).to(module.out_proj.weight)
    with torch.no_grad():
        for ours, theirs in zip(parameters_of(made), torch_parameters(module), strict=True):
            ours.copy_(theirs)
    for own, taken in counterparts(made, module):
        own.requires_grad_(taken.requires_grad)
    return made.train(module.training)


def release(layer: MultiHeadAttention, batch_first: bool) -> nn.MultiheadAttention:
    """torch's from ours."""
    reasons = {
        f"kv_heads={layer.kv_heads} with heads={layer.heads}": layer.kv_heads != layer.heads,
        f"head_size={layer.head_size} with size={layer.size} and heads={layer.heads}": (
            layer.head_size * layer.heads != layer.size
        ),
        f"positions={layer.positions!r}": layer.positions is not None,
        f"score={layer.attend.score!r}": layer.attend.score is not scaled_dot,
    }
    refused = [reason for reason, holds in reasons.items() if holds]
    if refused:
        raise ValueError(f"nn.MultiheadAttention has no counterpart for {', '.join(refused)}")
    weight = layer.output.weight
    with undrawn():
        made = nn.MultiheadAttention(
            layer.size,
            layer.heads,
            dropout=layer.attend.dropout,
            bias=layer.output.bias is not None,
            kdim=layer.key_size,
            vdim=layer.value_size,
            batch_first=batch_first,
        ).to(weight)
    with torch.no_grad():
        for ours, theirs in zip(parameters_of(layer), torch_parameters(made), strict=True):
            theirs.copy_(ours)
    made.requires_grad_(False)
    for own, taken in counterparts(layer, made):
        taken.requires_grad_(taken.requires_grad or own.requires_grad)  # one bias of torch's may be three of ours
    return made.train(layer.training)


@contextlib.contextmanager
def undrawn() -> Iterator[None]:
    """New weights that are copied over at once leave torch's random numbers as they were."""
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        yield


def counterparts(layer: MultiHeadAttention, module: nn.MultiheadAttention) -> list[tuple[Tensor, Tensor]]:
    """Our parameters, each with the one of torch's that it is, or is a part of."""
    parts: list[Any] = [layer.input] if layer.packed else [layer.query, layer.key, layer.value]
    weights = [module.in_proj_weight, module.q_proj_weight, module.k_proj_weight, module.v_proj_weight]
    pairs: list[Any] = list(
        zip([part.weight for part in parts], [weight for weight in weights if weight is not None], strict=True)
    )
    pairs.append((layer.output.weight, module.out_proj.weight))
    if module.in_proj_bias is not None:
        pairs += [(part.bias, module.in_proj_bias) for part in parts]
        pairs.append((layer.output.bias, module.out_proj.bias))
    return pairs


def parameters_of(layer: MultiHeadAttention) -> list[Tensor]:
    """Views of our weights and biases in the order of `torch_parameters`."""
    parts = [layer.input] if layer.packed else [layer.query, layer.key, layer.value]
    weights = [row for part in parts for row in torch.split(part.weight, layer.size)]
    biases = [row for part in parts if part.bias is not None for row in torch.split(part.bias, layer.size)]
    output = [layer.output.weight] + ([] if layer.output.bias is None else [layer.output.bias])
    return [*weights, *biases, *output]


def torch_parameters(module: nn.MultiheadAttention) -> list[Tensor]:
    """Views of torch's: weights of queries, keys and values, their biases, the output's."""
    weights, biases = projections(module)
    output = [module.out_proj.weight] + ([] if module.in_proj_bias is None else [module.out_proj.bias])
    return [*weights, *(bias for bias in biases if bias is not None), *output]


def projections(module: nn.MultiheadAttention) -> tuple[list[Tensor], list[Tensor | None]]:
    """Weights and biases of queries, keys and values."""
    weights: list[Tensor]
    if module.in_proj_weight is not None:
        weights = list(module.in_proj_weight.chunk(3))
    else:
        weights = [module.q_proj_weight, module.k_proj_weight, module.v_proj_weight]
    biases = [None] * 3 if module.in_proj_bias is None else list(module.in_proj_bias.chunk(3))
    return weights, biases  # type: ignore[return-value]


@torch.no_grad()
def torch_look(
    module: nn.MultiheadAttention,
    query: Tensor,
    key: Tensor,
    *,
    key_padding_mask: Tensor | None = None,
    attn_mask: Tensor | None = None,
    top: int | None = None,
) -> Tensor | Look:
    """What torch's layer looks at, given what its `forward` is given: weights `[batch, heads, q, k]`, or the top ones.

    Without a batch, `[heads, q, k]`. Keys that it adds itself (`bias_k`, `add_zero_attn`) stand behind the others.
    """
    batched = query.ndim == 3
    if not batched:
        query, key = query.unsqueeze(0), key.unsqueeze(0)
    elif not module.batch_first:
        query, key = query.transpose(0, 1), key.transpose(0, 1)
    (query_weight, key_weight, _), (query_bias, key_bias, _) = projections(module)
    query, key = functional.linear(query, query_weight, query_bias), functional.linear(key, key_weight, key_bias)
    more = []
    if module.bias_k is not None:
        more.append(module.bias_k.expand(len(key), 1, -1))
    if module.add_zero_attn:
        more.append(key.new_zeros(len(key), 1, key.shape[-1]))
    real = key.shape[1]
    key = torch.cat([key, *more], dim=1)
    query, key = (x.reshape(*x.shape[:2], module.num_heads, module.head_dim).transpose(1, 2) for x in (query, key))
    mask: Mask | None = None
    if attn_mask is not None:
        heads = len(query), module.num_heads, *attn_mask.shape[-2:]
        table = attn_mask.view(heads) if attn_mask.ndim == 3 else attn_mask
        mask = permission(table, key.shape[-2] - real, query.dtype)
    if key_padding_mask is not None:
        table = key_padding_mask if batched else key_padding_mask.unsqueeze(0)
        padding = permission(table[:, None, None], key.shape[-2] - real, query.dtype)
        mask = padding if mask is None else both(mask, padding)
    found: Any = look(query, key, mask=mask, top=top)
    if batched:
        return found  # type: ignore[no-any-return]
    return found[0] if top is None else Look(*(x[0] for x in found))


def permission(table: Tensor, more: int, dtype: torch.dtype) -> Tensor:
    """torch's mask (True = may not look) the other way round, open for so many more keys; a bias stays one."""
    if table.dtype == torch.bool:
        return functional.pad(~table, (0, more), value=True)
    return functional.pad(table.to(dtype), (0, more))
