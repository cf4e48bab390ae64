"""GPT-2: learned positions, pre-norm, GELU by tanh, tied vectors (Radford et al. 2019).

Its matrices are stored `[in, out]`, the other way round than torch's.
"""

from torch import nn

from regard.layers import Block, Decoder, FeedForward, LearnedPositions, MultiHeadAttention
from regard.models.language import LanguageModel
from regard.models.pretrained.settings import ACTIVATIONS, Settings
from regard.models.pretrained.weights import State, Weights, filled, hollow
from regard.models.transformer import Embedding
from regard.scores import dot, scaled_dot

PREFIX, HARMLESS = "transformer.", r"\.attn\.(bias|masked_bias)$"


def build(settings: Settings, weights: Weights) -> LanguageModel:
    """The language model of a GPT-2 folder."""
    for name in ("scale_attn_by_inverse_layer_idx", "add_cross_attention"):
        settings.only(name, False)
    size, heads, blocks = (settings.size(name) for name in ("n_embd", "n_head", "n_layer"))
    vocabulary, context = settings.size("vocab_size"), settings.size("n_positions")
    hidden, epsilon = settings.size("n_inner", 4 * size), settings.number("layer_norm_epsilon", 1e-5)
    activation = settings.choice("activation_function", "gelu_new", ACTIVATIONS)
    score = scaled_dot if settings.flag("scale_attn_weights", True) else dot
    looked, added, embedded = (settings.dropout(name, 0.1) for name in ("attn_pdrop", "resid_pdrop", "embd_pdrop"))

    def block() -> Block:
        attention = MultiHeadAttention(size, heads, score=score, dropout=looked)
        return Block(attention, FeedForward(size, hidden, activation=activation), norm=norm, dropout=added)

    def norm(size: int) -> nn.Module:
        return nn.LayerNorm(size, eps=epsilon)

    tied = settings.flag("tie_word_embeddings", True)
    with hollow():
        model = LanguageModel(
            Embedding(vocabulary, size, positions=LearnedPositions(context, size), dropout=embedded),
            Decoder(blocks, block, norm=norm(size)),
            context=context,
            read=None if tied else nn.Linear(size, vocabulary, bias=False),
        )
    state = named(weights, blocks, vocabulary, context, size, hidden)
    return filled(model, state | weights.read(tied, state["embedding.token.weight"]))


def named(weights: Weights, blocks: int, vocabulary: int, context: int, size: int, hidden: int) -> State:
    """The weights, by their names in our modules."""
    state = {
        "embedding.token.weight": weights.take("wte.weight", vocabulary, size),
        "embedding.positions.weight": weights.take("wpe.weight", context, size),
    }
    parts: dict[str, tuple[str, tuple[int, ...]]] = {"decoder.norm": ("ln_f", (size,))}
    for number in range(blocks):
        ours, theirs = f"decoder.blocks.{number}", f"h.{number}"
        parts |= {
            f"{ours}.attention_norm": (f"{theirs}.ln_1", (size,)),
            f"{ours}.attention.input": (f"{theirs}.attn.c_attn", (size, 3 * size)),
            f"{ours}.attention.output": (f"{theirs}.attn.c_proj", (size, size)),
            f"{ours}.feed_forward_norm": (f"{theirs}.ln_2", (size,)),
            f"{ours}.feed_forward.input": (f"{theirs}.mlp.c_fc", (size, hidden)),
            f"{ours}.feed_forward.output": (f"{theirs}.mlp.c_proj", (hidden, size)),
        }
    for our, (their, shape) in parts.items():
        state[f"{our}.weight"] = weights.take(f"{their}.weight", *shape).t().contiguous()
        state[f"{our}.bias"] = weights.take(f"{their}.bias", shape[-1])
    return state
