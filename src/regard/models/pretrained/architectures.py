"""GPT-2, BERT, Llama and their kin: functions from the settings of a folder to a model, and tables of names.

Each architecture is an entry of `ARCHITECTURES`. Those that differ in a few parts share a function.

A table maps our modules to theirs. `*` is the number of a block. If one of our matrices is several of theirs, such as
queries, keys and values, they are stacked in the order of the table. Shapes follow from our model: a weight of another
shape raises an error, and so does one that is missing or left over.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from regard.checks import quote_names
from regard.layers import (
    Block,
    Decoder,
    Encoder,
    FeedForward,
    GatedActivation,
    Heads,
    LearnedPositions,
    LinearScaling,
    MultiHeadAttention,
    Rotary,
    RotaryScaling,
    SlidingWindow,
    YarnScaling,
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
    heads: str = "(?!)"  # a pattern of weights that have no place in the model, and are left out with a warning
    transposed: str = "none"  # our modules below this one have matrices [in, out] in the file
    settings: Mapping[str, str] = {}  # their names of settings, where they differ from ours

    def load(self, settings: Settings, weights: Weights) -> _Model:
        """The model with its weights, in evaluation mode."""
        settings = settings._replace(other_names=self.settings)
        with torch.device("meta"), _SkipInit():  # shapes, but neither memory nor values
            model = self.build(settings)
        token = f"{self.their_names('embedding.token')[0]}.weight"
        if isinstance(model, LanguageModel) and model.read is not None and not weights.has_output(token):
            model.read = _NoHead(weights.path)
        state: dict[str, Tensor] = {}
        shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
        tied = shapes.pop("read.weight", None) is None  # or there is no output at all
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
        weights.check_rest(self.ignored, self.heads)
        model.load_state_dict(state, assign=True)
        return model.eval()

    def their_names(self, module: str) -> tuple[str, ...]:
        """Their modules for one of ours, with the number of its block."""
        number = re.search(r"\.(\d+)\.", module)
        names = self.names[re.sub(r"\.\d+\.", ".*.", module)]
        names = (names,) if isinstance(names, str) else names
        return tuple(name.replace("*", number[1]) for name in names) if number else names


class _NoHead(nn.Module):
    """In place of the matrix to the logits, if the model was saved without it."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path

    def forward(self, rows: Tensor) -> Tensor:
        raise ValueError(f"{self.path} was saved without lm_head, so it has no logits; model.rows(tokens) has its rows")


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


def bert(settings: Settings, *, segments: bool = True, positions_after_padding: bool = False) -> TextEncoder:
    """BERT and its kind, such as MiniLM: learned positions, two segments, post-norm (Devlin et al. 2019).

    It is the encoder alone; its pooler and its head for masked words are ignored.

    segments                  whether it has an embedding of segments; DistilBERT has none (Sanh et al. 2019)
    positions_after_padding   whether position 0 is the one after the id of padding, as in RoBERTa (Liu et al. 2019)
    """
    for name in ("is_decoder", "add_cross_attention"):
        settings.require(name, False)
    settings.require("position_embedding_type", "absolute")
    size, heads, blocks = (settings.size(name) for name in ("hidden_size", "num_attention_heads", "num_hidden_layers"))
    vocabulary, context = settings.size("vocab_size"), settings.size("max_position_embeddings")
    hidden, types = settings.size("intermediate_size"), settings.size("type_vocab_size", 2) if segments else 0
    activation = settings.choice("hidden_act", "gelu", _ACTIVATIONS)
    norm = partial(nn.LayerNorm, eps=settings.number("layer_norm_eps", 1e-12))
    weight_dropout = settings.dropout("attention_probs_dropout_prob", 0.1)
    unused = settings.whole_number("pad_token_id", 1) + 1 if positions_after_padding else 0
    with settings.name_file():
        positions = LearnedPositions(context - unused, size, unused=unused)
    dropout = settings.dropout("hidden_dropout_prob", 0.1)

    def block() -> Block:
        attention = MultiHeadAttention(size, heads, dropout=weight_dropout)
        feed_forward = FeedForward(size, hidden, activation=activation)
        return Block(attention, feed_forward, norm=norm, residual=post_norm, dropout=dropout)

    embedding = Embedding(vocabulary, size, positions=positions, types=types, norm=norm(size), dropout=dropout)
    return TextEncoder(embedding, Encoder(blocks, block))


def _no_windows(settings: Settings, blocks: int) -> list[int | None]:
    return [None] * blocks


def _same_window(settings: Settings, blocks: int) -> list[int | None]:
    """Mistral: one window for all blocks, or none if it is null."""
    if "sliding_window" in settings.values and settings.get("sliding_window") is None:
        return [None] * blocks
    return [settings.size("sliding_window", 4096)] * blocks


def _last_windows(settings: Settings, blocks: int) -> list[int | None]:
    """Qwen: a window for the blocks that `layer_types` says, in older folders for those after the first ones."""
    if not settings.flag("use_sliding_window", False):
        return [None] * blocks
    first = settings.whole_number("max_window_layers", 28)
    usual = ["full_attention" if number < first else "sliding_attention" for number in range(blocks)]
    kinds = settings.get("layer_types", usual)
    if not isinstance(kinds, list) or len(kinds) != blocks or not {*kinds} <= {"full_attention", "sliding_attention"}:
        raise ValueError(
            f"{settings.path}: layer_types must be full_attention or sliding_attention for each of {blocks} blocks,"
            f" got {kinds!r}"
        )
    return [settings.size("sliding_window", 4096) if kind == "sliding_attention" else None for kind in kinds]


def llama(
    settings: Settings,
    *,
    windows: Callable[[Settings, int], list[int | None]] = _no_windows,
    input_bias: bool = False,
    head_norm: bool = False,
) -> LanguageModel:
    """Llama and its kind: rotary positions, RMS pre-norm, SwiGLU, grouped queries (Touvron et al. 2023).

    windows      the number of keys that a query sees in each block, itself included; None: all earlier ones
    input_bias   whether queries, keys and values have a bias, though the output has none, as in Qwen 2
    head_norm    whether queries and keys are normalised in each head, as in Qwen 3
    """
    size, heads, blocks = (settings.size(name) for name in ("hidden_size", "num_attention_heads", "num_hidden_layers"))
    vocabulary, context = settings.size("vocab_size"), settings.size("max_position_embeddings")
    hidden, norm = settings.size("intermediate_size"), partial(nn.RMSNorm, eps=settings.number("rms_norm_eps", 1e-6))
    head_size, kv_heads = settings.size("head_dim", max(1, size // heads)), settings.size("num_key_value_heads", heads)
    grouped = Heads(heads, kv=kv_heads, size=head_size, norm=norm if head_norm else None)
    bias, hidden_bias = settings.flag("attention_bias", False), settings.flag("mlp_bias", False)
    activation = GatedActivation(settings.choice("hidden_act", "silu", _ACTIVATIONS))
    positions, dropout = rotary(settings, head_size), settings.dropout("attention_dropout", 0.0)
    radius = iter(windows(settings, blocks))

    def block() -> Block:
        seen = next(radius)
        where = positions if seen is None else SlidingWindow(seen - 1, positions)
        attention = MultiHeadAttention(size, grouped, positions=where, bias=bias or input_bias, dropout=dropout)
        if not bias:
            attention.output.register_parameter("bias", None)
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
    make_scaling = _SCALINGS["default"]
    for name in ("rope_parameters", "rope_scaling"):
        given = settings.get(name, {})
        if not isinstance(given, dict):
            raise ValueError(f"{settings.path}: {name} must be an object, got {given!r}")
        kind = given.get("rope_type") or given.get("type") or "default"
        if kind not in _SCALINGS:
            known = quote_names(_SCALINGS)
            raise ValueError(f"{settings.path}: {name} of type {kind!r} is not supported; supported are {known}")
        make_scaling = make_scaling if kind == "default" else _SCALINGS[kind]
        settings = settings._replace(values=settings.values | given)
    settings.require("partial_rotary_factor", 1.0)
    with settings.name_file():
        scaling = make_scaling(settings)
    base, interleaved = settings.number("rope_theta", 10000.0), settings.flag("rope_interleaved", False)
    return Rotary(head_size, base=base, interleaved=interleaved, scaling=scaling)


def _llama3(settings: Settings) -> RotaryScaling:
    """Llama 3.1: all its numbers must be there."""
    factor, slow, fast = map(settings.number, ("factor", "low_freq_factor", "high_freq_factor"))
    return RotaryScaling(factor, settings.size("original_max_position_embeddings"), slow=slow, fast=fast)


def _yarn(settings: Settings) -> YarnScaling:
    factor, context = settings.number("factor"), settings.size("max_position_embeddings")
    trained_length = settings.size("original_max_position_embeddings", context)
    slow, fast = settings.number("beta_slow", 1.0), settings.number("beta_fast", 32.0)
    magnitude = math.nan
    if settings.get("attention_factor") is not None:
        magnitude = settings.number("attention_factor")
    elif settings.get("mscale") and settings.get("mscale_all_dim"):  # DeepSeek's
        above, below = (1 + 0.1 * settings.number(name) * math.log(factor) for name in ("mscale", "mscale_all_dim"))
        magnitude = above / below
    rounded = settings.flag("truncate", True)
    return YarnScaling(factor, trained_length, slow=slow, fast=fast, rounded=rounded, magnitude=magnitude)


_SCALINGS: Mapping[str, Callable[[Settings], Callable[[Tensor], Tensor] | None]] = {
    "default": lambda settings: None,
    "linear": lambda settings: LinearScaling(settings.number("factor")),
    "llama3": _llama3,
    "yarn": _yarn,
}
"""By the `rope_type` of a folder."""


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
_QWEN3_NAMES: _Names = {
    **_LLAMA_NAMES,
    "decoder.blocks.*.attention.query_norm": "layers.*.self_attn.q_norm",
    "decoder.blocks.*.attention.key_norm": "layers.*.self_attn.k_norm",
}
_DISTILBERT_NAMES: _Names = {
    "embedding.token": "embeddings.word_embeddings",
    "embedding.positions": "embeddings.position_embeddings",
    "embedding.norm": "embeddings.LayerNorm",
    "encoder.blocks.*.attention.input": tuple(f"transformer.layer.*.attention.{part}_lin" for part in "qkv"),
    "encoder.blocks.*.attention.output": "transformer.layer.*.attention.out_lin",
    "encoder.blocks.*.attention_norm": "transformer.layer.*.sa_layer_norm",
    "encoder.blocks.*.feed_forward.input": "transformer.layer.*.ffn.lin1",
    "encoder.blocks.*.feed_forward.output": "transformer.layer.*.ffn.lin2",
    "encoder.blocks.*.feed_forward_norm": "transformer.layer.*.output_layer_norm",
}
_DISTILBERT_SETTINGS = {
    "hidden_size": "dim",
    "num_attention_heads": "n_heads",
    "num_hidden_layers": "n_layers",
    "intermediate_size": "hidden_dim",
    "hidden_act": "activation",
    "hidden_dropout_prob": "dropout",
    "attention_probs_dropout_prob": "attention_dropout",
}
_ROTATED = r"\.rotary_emb\.inv_freq$"
_INDICES = r"embeddings\.(position|token_type)_ids$"
_POOLER = r"^(\w+\.)?pooler\."
_CLASSIFIER = r"^(pre_)?classifier\.|^qa_outputs\."
_ROBERTA = _Architecture(
    partial(bert, positions_after_padding=True),
    _BERT_NAMES,
    prefix="roberta.",
    ignored=rf"{_INDICES}|{_POOLER}|^lm_head\.",
    heads=_CLASSIFIER,
)

ARCHITECTURES = {
    "bert": _Architecture(
        bert, _BERT_NAMES, prefix="bert.", ignored=rf"{_INDICES}|{_POOLER}|^cls\.", heads=_CLASSIFIER
    ),
    "camembert": _ROBERTA,
    "distilbert": _Architecture(
        partial(bert, segments=False),
        _DISTILBERT_NAMES,
        prefix="distilbert.",
        ignored=rf"{_INDICES}|^vocab_",
        heads=_CLASSIFIER,
        settings=_DISTILBERT_SETTINGS,
    ),
    "gpt2": _Architecture(gpt2, _GPT2_NAMES, "transformer.", r"\.attn\.(bias|masked_bias)$", transposed="decoder."),
    "llama": _Architecture(llama, _LLAMA_NAMES, prefix="model.", ignored=_ROTATED),
    "mistral": _Architecture(partial(llama, windows=_same_window), _LLAMA_NAMES, prefix="model.", ignored=_ROTATED),
    "qwen2": _Architecture(
        partial(llama, windows=_last_windows, input_bias=True), _LLAMA_NAMES, prefix="model.", ignored=_ROTATED
    ),
    "qwen3": _Architecture(
        partial(llama, windows=_last_windows, head_norm=True), _QWEN3_NAMES, prefix="model.", ignored=_ROTATED
    ),
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA,
}
"""By the `model_type` of a `config.json`."""
