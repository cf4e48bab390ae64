"""Attention with the signature of torch's `scaled_dot_product_attention`, so that it can stand in its place."""

from torch import Tensor

from regard.attend import attend
from regard.engines.job import groups_of, repeat_heads
from regard.masks import Mask, causal


def sdpa(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Mask | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """`attend` in the words of `torch.nn.functional.scaled_dot_product_attention`: `[..., q, v]`.

    attn_mask    boolean (True = may look), or a bias that is added to the scores
    dropout_p    the fraction of weights that are dropped; as in torch also outside of training
    is_causal    query i sees the keys up to i, from the top left corner; not together with `attn_mask`
    scale        the factor of the scores, by default 1/√d
    enable_gqa   groups of query heads may share a head of keys and values; without it, unequal heads are an error

    The mask may also be any of `regard.masks`. A query that may look at nothing gets zeros.

    >>> import torch, regard
    >>> query, key, value = torch.randn(2, 8, 5, 16), torch.randn(2, 8, 7, 16), torch.randn(2, 8, 7, 4)
    >>> mean = regard.sdpa(query, key, value, is_causal=True)
    >>> theirs = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
    >>> bool(torch.allclose(mean, theirs, atol=1e-6))
    True
    """
    if is_causal and attn_mask is not None:
        raise ValueError(
            "attn_mask and is_causal exclude each other, got both: give the causal mask as a part of attn_mask,"
            " regard.masks.both(regard.masks.causal, attn_mask)"
        )
    mask = causal if is_causal else attn_mask
    tensors = all(isinstance(x, Tensor) for x in (query, key, value))
    if not tensors or query.shape[:-2] == key.shape[:-2] == value.shape[:-2]:
        return attend(query, key, value, mask=mask, dropout=dropout_p, scale=scale)
    if enable_gqa:
        return _attend_groups(query, key, value, mask, dropout_p, scale)
    if groups_of(query, key, value) > 1:
        raise ValueError(
            f"query, key and value must have one number of heads, got {query.shape[-3]}, {key.shape[-3]} and"
            f" {value.shape[-3]}: for groups of query heads that share keys, set enable_gqa=True"
        )
    return attend(query, key, value, mask=mask, dropout=dropout_p, scale=scale)


def _attend_groups(
    query: Tensor, key: Tensor, value: Tensor, mask: Mask | None, dropout: float, scale: float | None
) -> Tensor:
    """Attention of `[..., heads, q, d]` to keys and values with fewer heads, each a divisor of the query's."""
    if min(query.ndim, key.ndim, value.ndim) < 3:
        got = ", ".join(str(list(x.shape)) for x in (query, key, value))
        raise ValueError(f"enable_gqa needs query, key and value with heads, [..., heads, length, size], got {got}")
    heads = int(query.shape[-3])
    for name, x in (("key", key), ("value", value)):
        if not x.shape[-3] or heads % x.shape[-3]:
            raise ValueError(f"the heads of {name} must divide those of query, got {x.shape[-3]} and {heads}")
    if key.shape[-3] != value.shape[-3]:
        key, value = (repeat_heads(x, heads // x.shape[-3]) for x in (key, value))
    if query.ndim > 3:
        return attend(query, key, value, mask=mask, dropout=dropout, scale=scale)
    # [heads, q, d] → [1, heads, q, d]: `attend` knows groups from four dimensions on
    query, key, value = (x.unsqueeze(0) for x in (query, key, value))
    return attend(query, key, value, mask=mask, dropout=dropout, scale=scale).squeeze(0)
