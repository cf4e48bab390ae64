"""GPT-2, BERT and Llama: for each, one function from the settings of its folder to a model, and a table of names.

A table maps our modules to theirs. `*` is the number of a block. If one of our matrices is several of theirs, such as
queries, keys and values, they are stacked in the order of the table. Shapes follow from our model: a weight of another
shape raises an error, and so does one that is missing or left over.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from regard.layers import (
    Block,
    Decoder,
    Encoder,
    FeedForward,
    GatedActivation,
    Heads,
    LearnedPositions,
    MultiHeadAttention,
    Rotary,
    RotaryScaling,
    gelu_tanh,
    post_norm,
)
from regard.layers.feed_forward import Activation
from regard.models.language import LanguageModel
from regard.models.pretrained.folder import Settings, Weights
from regard.models.transformer import Embedding, TextEncoder
from regard.scores import dot, scaled_dot

_Model = LanguageModel | TextEncoder
_Names = Mapping[str, str | tuple[str, ...]]
_ACTIVATIONS: dict[str, Activation] = {
    "gelu": functional.gelu,
    "gelu_new": gelu_tanh,
    "gelu_pytorch_tanh": gelu_tanh,
    "relu": torch.relu,
    "silu": functional.silu,
}


class _Architecture(NamedTuple):
    """How the models of one architecture are built and stored."""

    build: Callable[[Settings], _Model]  # without weights
    names: _Names  # their module, or several that are stacked, for each of ours
    prefix: str  # before their names, if the model was saved with a head
    ignored: str  # a pattern of weights that are not needed
    transposed: str = "none"  # our modules below this one have matrices [in, out] in the file

    def load(self, settings: Settings, weights: Weights) -> _Model:
        """The model with its weights, in evaluation mode."""
        with torch.device("meta"), _SkipInit():  # shapes, but neither memory nor values
            model = self.build(settings)
        state: dict[str, Tensor] = {}
        shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
        tied = shapes.pop("read.weight", None) is None
        for name, shape in shapes.items():
            module, _, kind = name.rpartition(".")
            parts = self.their_names(module)
            if module.startswith(self.transposed) and len(shape) == 2:
                state[name] = weights.take(f"{parts[0]}.{kind}", *shape[::-1]).t().contiguous()
            else:
                parent, rows = model.get_submodule(module.rpartition(".")[0]), [shape[0] // len(parts)] * len(parts)
                if len(parts) > 1 and isinstance(parent, MultiHeadAttention):
                    rows = parent.projection_sizes
                taken = [weights.take(f"{part}.{kind}", n, *shape[1:]) for part, n in zip(parts, rows, strict=True)]
                state[name] = torch.cat(taken) if len(taken) > 1 else taken[0]
        state |= weights.take_output(tied, state["embedding.token.weight"])
        weights.check_rest(self.ignored)
        model.load_state_dict(state, assign=True)
        return model.eval()

    def their_names(self, module: str) -> tuple[str, ...]:
        """Their modules for one of ours, with the number of its block."""
        number = re.search(r"\.(\d+)\.", module)
        names = self.names[re.sub(r"\.\d+\.", ".*.", module)]
        names = (names,) if isinstance(names, str) else names
        return tuple(name.replace("*", number[1]) for name in names) if number else names


class _SkipInit(TorchFunctionMode):
    """`nn.init` does nothing. On "meta" there is nothing to fill, but it would load torch's compiler, for seconds."""

    def __torch_function__(
        self,
        function: Callable[..., object],
        types: Sequence[type],
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        kwargs = kwargs or {}
        if getattr(function, "__module__", None) == nn.init.__name__:
            return kwargs["tensor"] if "tensor" in kwargs else args[0]
        return function(*args, **kwargs)


def gpt2(settings: Settings) -> LanguageModel:
    """GPT-2: learned positions, pre-norm, GELU by tanh, tied embeddings (Radford et al. 2019)."""
    for name in ("scale_attn_by_inverse_layer_idx", "add_cross_attention"):
        settings.require(name, False)
    size, heads, blocks = (settings.size(name) for name in ("n_embd", "n_head", "n_layer"))
    vocabulary, context = settings.size("vocab_size"), settings.size("n_positions")
    hidden = settings.size("n_inner", 4 * size)
    norm = partial(nn.LayerNorm, eps=settings.number("layer_norm_epsilon", 1e-5))
    activation = settings.choice("activation_function", "gelu_new", _ACTIVATIONS)
    score = scaled_dot if settings.flag("scale_attn_weights", True) else dot
    weight_dropout, dropout = settings.dropout("attn_pdrop", 0.1), settings.dropout("resid_pdrop", 0.1)
    positions, input_dropout = LearnedPositions(context, size), settings.dropout("embd_pdrop", 0.1)

    def block() -> Block:
        attention = MultiHeadAttention(size, heads, score=score, dropout=weight_dropout)
        return Block(attention, FeedForward(size, hidden, activation=activation), norm=norm, dropout=dropout)

    return LanguageModel(
        Embedding(vocabulary, size, positions=positions, dropout=input_dropout),
        Decoder(blocks, block, norm=norm(size)),
        context=context,
        read=None if settings.flag("tie_word_embeddings", True) else nn.Linear(size, vocabulary, bias=False),
    )


def bert(settings: Settings) -> TextEncoder:
    """BERT and its kind, such as MiniLM: learned positions, two segments, post-norm (Devlin et al. 2019).

    It is the encoder alone; its pooler and its head for masked words are ignored.
    """
    for name in ("is_decoder", "add_cross_attention"):
        settings.require(name, False)
    settings.require("position_embedding_type", "absolute")
    size, heads, blocks = (settings.size(name) for name in ("hidden_size", "num_attention_heads", "num_hidden_layers"))
    vocabulary, context = settings.size("vocab_size"), settings.size("max_position_embeddings")
    hidden, types = settings.size("intermediate_size"), settings.size("type_vocab_size", 2)
    activation = settings.choice("hidden_act", "gelu", _ACTIVATIONS)
    norm = partial(nn.LayerNorm, eps=settings.number("layer_norm_eps", 1e-12))
    weight_dropout = settings.dropout("attention_probs_dropout_prob", 0.1)
    positions, dropout = LearnedPositions(context, size), settings.dropout("hidden_dropout_prob", 0.1)

    def block() -> Block:
        attention = MultiHeadAttention(size, heads, dropout=weight_dropout)
        feed_forward = FeedForward(size, hidden, activation=activation)
        return Block(attention, feed_forward, norm=norm, residual=post_norm, dropout=dropout)

    embedding = Embedding(vocabulary, size, positions=positions, types=types, norm=norm(size), dropout=dropout)
    return TextEncoder(embedding, Encoder(blocks, block))


def llama(settings: Settings) -> LanguageModel:
    """Llama and its kind: rotary positions, RMS pre-norm, SwiGLU, grouped queries (Touvron et al. 2023)."""
    size, heads, blocks = (settings.size(name) for name in ("hidden_size", "num_attention_heads", "num_hidden_layers"))
    vocabulary, context = settings.size("vocab_size"), settings.size("max_position_embeddings")
    hidden, norm = settings.size("intermediate_size"), partial(nn.RMSNorm, eps=settings.number("rms_norm_eps", 1e-6))
    head_size = settings.size("head_dim", max(1, size // heads))
    grouped = Heads(heads, kv=settings.size("num_key_value_heads", heads), size=head_size)
    bias, hidden_bias = settings.flag("attention_bias", False), settings.flag("mlp_bias", False)
    activation = GatedActivation(settings.choice("hidden_act", "silu", _ACTIVATIONS))
    positions, dropout = rotary(settings, head_size), settings.dropout("attention_dropout", 0.0)

    def block() -> Block:
        attention = MultiHeadAttention(size, grouped, positions=positions, bias=bias, dropout=dropout)
        return Block(attention, FeedForward(size, hidden, activation=activation, bias=hidden_bias), norm=norm)

    return LanguageModel(
        Embedding(vocabulary, size),
        Decoder(blocks, block, norm=norm(size)),
        context=context,
        read=None if settings.flag("tie_word_embeddings", False) else nn.Linear(size, vocabulary, bias=False),
    )


def rotary(settings: Settings, head_size: int) -> Rotary:
    """The positions: new folders have all about them in `rope_parameters`, older ones in `rope_theta`.

    `rope_interleaved` is a setting of ours, for llama2.c.
    """
    kinds = set()
    for name in ("rope_parameters", "rope_scaling"):
        given = settings.get(name, {})
        if not isinstance(given, dict):
            raise ValueError(f"{settings.path}: {name} must be an object, got {given!r}")
        kind = given.get("rope_type") or given.get("type") or "default"
        if kind not in ("default", "llama3"):
            raise ValueError(f"{settings.path}: {name} of type {kind!r} is not supported, only default and llama3")
        kinds.add(kind)
        settings = settings._replace(values=settings.values | given)
    settings.require("partial_rotary_factor", 1.0)
    scaling = None
    if "llama3" in kinds:  # Llama 3.1: all its numbers must be there
        factor, slow, fast = map(settings.number, ("factor", "low_freq_factor", "high_freq_factor"))
        trained_length = settings.size("original_max_position_embeddings")
        with settings.name_file():
            scaling = RotaryScaling(factor, trained_length, slow=slow, fast=fast)
    base, interleaved = settings.number("rope_theta", 10000.0), settings.flag("rope_interleaved", False)
    return Rotary(head_size, base=base, interleaved=interleaved, scaling=scaling)


_GPT2_NAMES: _Names = {
    "embedding.token": "wte",
    "embedding.positions": "wpe",
    "decoder.blocks.*.attention_norm": "h.*.ln_1",
    "decoder.blocks.*.attention.input": "h.*.attn.c_attn",
    "decoder.blocks.*.attention.output": "h.*.attn.c_proj",
    "decoder.blocks.*.feed_forward_norm": "h.*.ln_2",
    "decoder.blocks.*.feed_forward.input": "h.*.mlp.c_fc",
    "decoder.blocks.*.feed_forward.output": "h.*.mlp.c_proj",
    "decoder.norm": "ln_f",
}
_BERT_NAMES: _Names = {
    "embedding.token": "embeddings.word_embeddings",
    "embedding.segment": "embeddings.token_type_embeddings",
    "embedding.positions": "embeddings.position_embeddings",
    "embedding.norm": "embeddings.LayerNorm",
    "encoder.blocks.*.attention.input": tuple(
        f"encoder.layer.*.attention.self.{part}" for part in ("query", "key", "value")
    ),
    "encoder.blocks.*.attention.output": "encoder.layer.*.attention.output.dense",
    "encoder.blocks.*.attention_norm": "encoder.layer.*.attention.output.LayerNorm",
    "encoder.blocks.*.feed_forward.input": "encoder.layer.*.intermediate.dense",
    "encoder.blocks.*.feed_forward.output": "encoder.layer.*.output.dense",
    "encoder.blocks.*.feed_forward_norm": "encoder.layer.*.output.LayerNorm",
}
_LLAMA_NAMES: _Names = {
    "embedding.token": "embed_tokens",
    "decoder.blocks.*.attention_norm": "layers.*.input_layernorm",
    "decoder.blocks.*.attention.input": tuple(f"layers.*.self_attn.{part}_proj" for part in "qkv"),
    "decoder.blocks.*.attention.output": "layers.*.self_attn.o_proj",
    "decoder.blocks.*.feed_forward_norm": "layers.*.post_attention_layernorm",
    "decoder.blocks.*.feed_forward.input": ("layers.*.mlp.gate_proj", "layers.*.mlp.up_proj"),
    "decoder.blocks.*.feed_forward.output": "layers.*.mlp.down_proj",
    "decoder.norm": "norm",
}
_BERT_IGNORED = r"^(bert\.)?(embeddings\.(position|token_type)_ids$|pooler\.)|^cls\."

ARCHITECTURES = {
    "bert": _Architecture(bert, _BERT_NAMES, prefix="bert.", ignored=_BERT_IGNORED),
    "gpt2": _Architecture(gpt2, _GPT2_NAMES, "transformer.", r"\.attn\.(bias|masked_bias)$", transposed="decoder."),
    "llama": _Architecture(llama, _LLAMA_NAMES, prefix="model.", ignored=r"\.rotary_emb\.inv_freq$"),
}
"""By the `model_type` of a `config.json`."""
