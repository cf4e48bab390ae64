"""Layers: modules that hold weights and call `regard.attend`.

    Attention, SelfAttention                 one head, from one input to another or to itself
    MultiHeadAttention                       several heads, grouped queries, torch's layer and back
    ConvSelfAttention                        on a grid
    Sinusoidal, LearnedPositions, Rotary, Alibi       positions; RotaryScaling, Rotary's for longer sequences
    FeedForward, gelu_tanh, swiglu, GatedActivation    what a block does with each row alone
    Block, Encoder, Decoder                  the Transformer's parts; pre_norm, post_norm, Dropout
    Cache, KeyValues                         keys and values kept for writing on
    watch                                    what any of them look at while a model runs

Every layer has `look`, which says what it looks at. No layer keeps anything between calls.
"""

from regard.layers.attention import Attend, Attention, SelfAttention
from regard.layers.blocks import Block, Decoder, Encoder, post_norm, pre_norm
from regard.layers.cache import BlockCache, Cache, KeyValues
from regard.layers.conv import ConvSelfAttention
from regard.layers.feed_forward import Dropout, FeedForward, GatedActivation, gelu_tanh, swiglu
from regard.layers.multi_head import MultiHeadAttention
from regard.layers.positions import Alibi, LearnedPositions, Positions, Rotary, RotaryScaling, Sinusoidal
from regard.layers.watch import watch

__all__ = [
    "Alibi",
    "Attend",
    "Attention",
    "Block",
    "BlockCache",
    "Cache",
    "ConvSelfAttention",
    "Decoder",
    "Dropout",
    "Encoder",
    "FeedForward",
    "GatedActivation",
    "KeyValues",
    "LearnedPositions",
    "MultiHeadAttention",
    "Positions",
    "Rotary",
    "RotaryScaling",
    "SelfAttention",
    "Sinusoidal",
    "gelu_tanh",
    "post_norm",
    "pre_norm",
    "swiglu",
    "watch",
]
