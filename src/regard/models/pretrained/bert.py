"""BERT and encoders of its kind, such as MiniLM: learned positions, two segments, post-norm (Devlin et al. 2019).

What comes back is the encoder: a row for each token. The heads it was trained with, the pooler and the guesses of
masked words, are left.
"""

from torch import nn

from regard.layers import Block, Encoder, FeedForward, LearnedPositions, MultiHeadAttention, post_norm
from regard.models.pretrained.settings import ACTIVATIONS, Settings
from regard.models.pretrained.weights import State, Weights, below, filled, hollow
from regard.models.transformer import Embedding, TextEncoder

PREFIX, HARMLESS = "bert.", r"^(bert\.)?(embeddings\.(position|token_type)_ids$|pooler\.)|^cls\."


def build(settings: Settings, weights: Weights) -> TextEncoder:
    """The encoder of a BERT folder."""
    for name in ("is_decoder", "add_cross_attention"):
        settings.only(name, False)
    settings.only("position_embedding_type", "absolute")
    size, heads, blocks = (settings.size(name) for name in ("hidden_size", "num_attention_heads", "num_hidden_layers"))
    vocabulary, context = settings.size("vocab_size"), settings.size("max_position_embeddings")
    hidden, types = settings.size("intermediate_size"), settings.size("type_vocab_size", 2)
    activation, epsilon = settings.choice("hidden_act", "gelu", ACTIVATIONS), settings.number("layer_norm_eps", 1e-12)
    looked, added = settings.dropout("attention_probs_dropout_prob", 0.1), settings.dropout("hidden_dropout_prob", 0.1)

    def block() -> Block:
        attention = MultiHeadAttention(size, heads, dropout=looked)
        feed_forward = FeedForward(size, hidden, activation=activation)
        return Block(attention, feed_forward, norm=norm, residual=post_norm, dropout=added)

    def norm(size: int) -> nn.Module:
        return nn.LayerNorm(size, eps=epsilon)

    with hollow():
        positions = LearnedPositions(context, size)
        embedding = Embedding(vocabulary, size, positions=positions, types=types, norm=norm(size), dropout=added)
        model = TextEncoder(embedding, Encoder(blocks, block))
    state = {
        "embedding.token.weight": weights.take("embeddings.word_embeddings.weight", vocabulary, size),
        "embedding.positions.weight": weights.take("embeddings.position_embeddings.weight", context, size),
        "embedding.segment.weight": weights.take("embeddings.token_type_embeddings.weight", types, size),
        **below("embedding.norm", norm_of(weights, "embeddings.LayerNorm", size)),
    }
    for number in range(blocks):
        state |= below(f"encoder.blocks.{number}", block_of(weights, f"encoder.layer.{number}", size, hidden))
    return filled(model, state)


def block_of(weights: Weights, name: str, size: int, hidden: int) -> State:
    """The weights of one block, by their names in our `Block`."""
    inside = {f"{name}.attention.self.{part}": size for part in ("query", "key", "value")}
    return {
        **below("attention.input", weights.linear(inside, size, bias=True)),
        **below("attention.output", weights.linear({f"{name}.attention.output.dense": size}, size, bias=True)),
        **below("attention_norm", norm_of(weights, f"{name}.attention.output.LayerNorm", size)),
        **below("feed_forward.input", weights.linear({f"{name}.intermediate.dense": hidden}, size, bias=True)),
        **below("feed_forward.output", weights.linear({f"{name}.output.dense": size}, hidden, bias=True)),
        **below("feed_forward_norm", norm_of(weights, f"{name}.output.LayerNorm", size)),
    }


def norm_of(weights: Weights, name: str, size: int) -> State:
    """A norm; the first BERTs call its weight gamma and its bias beta."""
    names = ("gamma", "beta") if f"{name}.gamma" in weights else ("weight", "bias")
    return {ours: weights.take(f"{name}.{part}", size) for ours, part in zip(("weight", "bias"), names, strict=True)}
