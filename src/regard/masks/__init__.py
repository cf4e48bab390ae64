"""Masks: which keys a query may look at.

A mask is a callable `(query_index, key_index) -> bool tensor`, **True = may look**: the polarity of
torch's `scaled_dot_product_attention`, the opposite of `nn.MultiheadAttention`'s. The two index
tensors broadcast to `[..., q, k]`, so a mask is arithmetic on indices, and is evaluated one block at
a time, without a matrix:

    def every_other(query_index, key_index):
        return (query_index - key_index) % 2 == 0

A boolean tensor that broadcasts to `[..., q, k]` is a mask too. `attend` and `look` raise ValueError if it is False
everywhere, for several queries: then its polarity is most likely inverted. (Not on a GPU, and not in a compiled
program, where looking at its values would cost time.) A tensor or callable of floating point numbers is a bias: it is
added to the scores (ALiBi, relative positions), and -inf masks a key.
`both` combines any two of these. Keys that all queries mask may be NaN if no gradient is needed;
their values may not, since weight 0 times NaN is NaN.

Indices are positions in the tensors given to `attend`, from 0. For queries at other positions, such
as after n cached keys, shift the mask: `shifted(causal, n)`.

A mask may say its **reach**, and what lies outside is neither scored nor built: a window of 128 keys costs
256 pairs a query, whatever the length. It is a method

    def reach(self, query_index):                 # [..., q, 1], as in the call
        return first, stop                        # of the keys that a query may see; broadcast like query_index

and `solid = True` says that a query sees *all* keys of its reach, so that the mask itself is not called. `causal`,
`window`, `padding`, `documents`, `prefix` and what `both` and `shifted` make of them are such masks. Of any other mask
`blocks` finds out once which blocks of keys can be left out. `check_reach` compares a reach with its mask.
"""

from regard.masks.evaluation import blocks, check_reach
from regard.masks.kinds import (
    Mask,
    Reach,
    as_bias,
    both,
    causal,
    dilated,
    documents,
    global_and_window,
    others,
    padding,
    prefix,
    shifted,
    window,
)

__all__ = [
    "Mask",
    "Reach",
    "as_bias",
    "blocks",
    "both",
    "causal",
    "check_reach",
    "dilated",
    "documents",
    "global_and_window",
    "others",
    "padding",
    "prefix",
    "shifted",
    "window",
]
