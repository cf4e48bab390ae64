"""Llama and models of its kind: rotary positions, pre-norm by RMS, SwiGLU, grouped queries (Touvron et al. 2023)."""

from typing import NamedTuple

from torch import nn

from regard.layers import (
    Block,
    Decoder,
    FeedForward,
    GatedActivation,
    MultiHeadAttention,
    Positions,
    Rotary,
    RotaryScaling,
    swiglu,
)
from regard.layers.feed_forward import Activation
from regard.models.language import LanguageModel
from regard.models.pretrained.settings import ACTIVATIONS, Settings
from regard.models.pretrained.weights import State, Weights, below, filled, hollow
from regard.models.transformer import Embedding

PREFIX, HARMLESS = "model.", r"\.rotary_emb\.inv_freq$"


class Sizes(NamedTuple):
    """The numbers a Llama is made of."""

    vocabulary: int
    context: int
    size: int
    hidden: int
    blocks: int
    heads: int
    kv_heads: int
    head_size: int
    epsilon: float = 1e-5

    @property
    def rows(self) -> tuple[int, int, int]:
        """How many rows the matrices of queries, keys and values have."""
        return self.heads * self.head_size, self.kv_heads * self.head_size, self.kv_heads * self.head_size


def llama(
    sizes: Sizes,
    positions: Positions,
    *,
    tied: bool,
    activation: Activation = swiglu,
    bias: bool = False,
    hidden_bias: bool = False,
    dropout: float = 0.0,
) -> LanguageModel:
    """The language model without its weights; `filled` gives them to it."""
    heads, kv_heads, size = sizes.heads, sizes.kv_heads, sizes.size

    def block() -> Block:
        attention = MultiHeadAttention(
            size, heads, kv_heads=kv_heads, head_size=sizes.head_size, positions=positions, bias=bias, dropout=dropout
        )
        return Block(attention, FeedForward(size, sizes.hidden, activation=activation, bias=hidden_bias), norm=norm)

    def norm(size: int) -> nn.Module:
        return nn.RMSNorm(size, eps=sizes.epsilon)

    with hollow():
        return LanguageModel(
            Embedding(sizes.vocabulary, size),
            Decoder(sizes.blocks, block, norm=norm(size)),
            context=sizes.context,
            read=None if tied else nn.Linear(size, sizes.vocabulary, bias=False),
        )


def build(settings: Settings, weights: Weights) -> LanguageModel:
    """The language model of a Llama folder."""
    size, heads = settings.size("hidden_size"), settings.size("num_attention_heads")
    sizes = Sizes(
        vocabulary=settings.size("vocab_size"),
        context=settings.size("max_position_embeddings"),
        size=size,
        hidden=settings.size("intermediate_size"),
        blocks=settings.size("num_hidden_layers"),
        heads=heads,
        kv_heads=settings.size("num_key_value_heads", heads),
        head_size=settings.size("head_dim", max(1, size // heads)),
        epsilon=settings.number("rms_norm_eps", 1e-6),
    )
    bias, hidden_bias = settings.flag("attention_bias", False), settings.flag("mlp_bias", False)
    tied = settings.flag("tie_word_embeddings", False)
    model = llama(
        sizes,
        rotary(settings, sizes.head_size),
        tied=tied,
        activation=GatedActivation(settings.choice("hidden_act", "silu", ACTIVATIONS)),
        bias=bias,
        hidden_bias=hidden_bias,
        dropout=settings.dropout("attention_dropout", 0.0),
    )
    state = {
        "embedding.token.weight": weights.take("embed_tokens.weight", sizes.vocabulary, size),
        "decoder.norm.weight": weights.take("norm.weight", size),
    }
    for number in range(sizes.blocks):
        found = block_of(weights, f"layers.{number}", sizes, bias, hidden_bias)
        state |= below(f"decoder.blocks.{number}", found)
    return filled(model, state | weights.read(tied, state["embedding.token.weight"]))


def rotary(settings: Settings, head_size: int) -> Rotary:
    """The positions: new folders have all about them in `rope_parameters`, older ones in `rope_theta`."""
    kinds = set()
    for name in ("rope_parameters", "rope_scaling"):
        given = settings.get(name, {})
        if not isinstance(given, dict):
            raise ValueError(f"{settings.path}: {name} must be an object, got {given!r}")
        kind = given.get("rope_type") or given.get("type") or "default"
        if kind not in ("default", "llama3"):
            raise ValueError(f"{settings.path}: {name} of the kind {kind!r} is not supported, only default and llama3")
        kinds.add(kind)
        settings = settings._replace(values=settings.values | given)
    settings.only("partial_rotary_factor", 1.0)
    scaling = rotary_scaling(settings) if "llama3" in kinds else None
    return Rotary(head_size, base=settings.number("rope_theta", 10000.0), scaling=scaling)


def rotary_scaling(settings: Settings) -> RotaryScaling:
    """The positions' scaling of Llama 3.1, all of whose numbers must be there."""
    factor, slow, fast = map(settings.number, ("factor", "low_freq_factor", "high_freq_factor"))
    known = settings.size("original_max_position_embeddings")
    with settings.named():
        return RotaryScaling(factor, trained_length=known, slow=slow, fast=fast)


def block_of(weights: Weights, name: str, sizes: Sizes, bias: bool, hidden_bias: bool) -> State:
    """The weights of one block, by their names in our `Block`."""
    size, hidden, attention, mlp = sizes.size, sizes.hidden, f"{name}.self_attn", f"{name}.mlp"
    inside = {f"{attention}.{part}_proj": rows for part, rows in zip("qkv", sizes.rows, strict=True)}
    gates = {f"{mlp}.gate_proj": hidden, f"{mlp}.up_proj": hidden}
    return {
        "attention_norm.weight": weights.take(f"{name}.input_layernorm.weight", size),
        "feed_forward_norm.weight": weights.take(f"{name}.post_attention_layernorm.weight", size),
        **below("attention.input", weights.linear(inside, size, bias)),
        **below("attention.output", weights.linear({f"{attention}.o_proj": size}, sizes.rows[0], bias)),
        **below("feed_forward.input", weights.linear(gates, size, hidden_bias)),
        **below("feed_forward.output", weights.linear({f"{mlp}.down_proj": size}, hidden, hidden_bias)),
    }
