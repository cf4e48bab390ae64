"""Layers: modules that hold weights and call `regard.attend`.

    Attention, SelfAttention                 one head, to another input or to itself
    MultiHeadAttention, Heads                several heads, grouped queries; from and to torch's layer
    DifferentialAttention                    the difference of two attentions
    ConvSelfAttention                        self-attention on a grid
    Sinusoidal, LearnedPositions             positions that are added to rows
    Rotary, Alibi, SlidingWindow             positions inside attention
    RotaryScaling, LinearScaling, YarnScaling   Rotary for longer sequences than the trained ones
    FeedForward                              with gelu_tanh, swiglu and other GatedActivations
    Block, Encoder, Decoder                  the parts of a Transformer; pre_norm, post_norm
    Cache, KeyValues                         cached keys and values for decoding
    watch, AttentionRecord                   the attention weights of any model while it runs

Every attention layer has `look`, which returns its weights. No layer stores anything between calls.
"""

from regard.layers.attention import Attend, Attention, ConvSelfAttention, DifferentialAttention, SelfAttention
from regard.layers.attention_record import AttentionRecord
from regard.layers.blocks import Block, Decoder, Encoder, post_norm, pre_norm
from regard.layers.cache import BlockCache, Cache, KeyValues
from regard.layers.feed_forward import FeedForward, GatedActivation, gelu_tanh, swiglu
from regard.layers.multi_head import Heads, MultiHeadAttention
from regard.layers.positions import (
    Alibi,
    LearnedPositions,
    LinearScaling,
    Positions,
    Rotary,
    RotaryScaling,
    Sinusoidal,
    SlidingWindow,
    YarnScaling,
)
from regard.layers.watch import watch

__all__ = [
    "Alibi",
    "Attend",
    "Attention",
    "AttentionRecord",
    "Block",
    "BlockCache",
    "Cache",
    "ConvSelfAttention",
    "Decoder",
    "DifferentialAttention",
    "Encoder",
    "FeedForward",
    "GatedActivation",
    "Heads",
    "KeyValues",
    "LearnedPositions",
    "LinearScaling",
    "MultiHeadAttention",
    "Positions",
    "Rotary",
    "RotaryScaling",
    "SelfAttention",
    "Sinusoidal",
    "SlidingWindow",
    "YarnScaling",
    "gelu_tanh",
    "post_norm",
    "pre_norm",
    "swiglu",
    "watch",
]
