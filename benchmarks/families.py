"""Model families of transformers with random weights, for tests and benchmarks against Hugging Face's own attention.

`build("llama", "regard")` gives the model, `inputs_of("llama")` what its forward takes, with padding where the
family has it. Weights and inputs are the same at each call, and nothing is downloaded. Models are tiny, unless they
are asked for with `size=LARGE`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers
from torch import Tensor, nn

LENGTH, VOCABULARY = 11, 61  # of the tiny ones

_SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40}
_TEXT = {**_SIZES, "vocab_size": VOCABULARY, "max_position_embeddings": 64, "pad_token_id": 0}
_DECODER = {**_TEXT, "num_key_value_heads": 2, "bos_token_id": 1, "eos_token_id": 2}
_ENCODER = {**_TEXT, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
_TRANSLATOR = {
    "vocab_size": VOCABULARY,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 37,
    "decoder_ffn_dim": 37,
    "max_position_embeddings": 64,
    "dropout": 0.0,
    "attention_dropout": 0.0,
    "activation_dropout": 0.0,
    "encoder_layerdrop": 0.0,
    "decoder_layerdrop": 0.0,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
    "forced_eos_token_id": None,
}
_IMAGE = {**_SIZES, "image_size": 12, "patch_size": 4, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
_SOUND = {
    **_SIZES,
    "vocab_size": VOCABULARY,
    "conv_dim": [16, 16],
    "conv_stride": [5, 4],
    "conv_kernel": [10, 8],
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 4,
    "hidden_dropout": 0.0,
    "attention_dropout": 0.0,
    "activation_dropout": 0.0,
    "feat_proj_dropout": 0.0,
    "layerdrop": 0.0,
    "mask_time_prob": 0.0,
}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}


@dataclass(frozen=True)
class Size:
    """How large the inputs of a model are, and the settings in which it differs from a tiny one."""

    padding: tuple[int, ...]  # positions of padding in each row of the batch
    length: int
    target_length: int  # what a decoder reads
    image: int  # pixels of a side
    sound: int  # samples
    vocabulary: int = VOCABULARY
    weight_std: float = 0.15  # as drawn by transformers weights are so small that attention is flat
    changed: Mapping[str, Any] = field(default_factory=dict)


TINY = Size((0, 4, 1), LENGTH, 13, image=12, sound=400)
_WIDTHS, _HEADS = ("hidden_size", "d_model", "n_embd", "dim", "word_embed_proj_dim", "embedding_size"), 8
_INNER = ("intermediate_size", "encoder_ffn_dim", "decoder_ffn_dim", "ffn_dim", "hidden_dim", "d_ff")
_NUMBERS_OF_HEADS = (
    "num_attention_heads",
    "encoder_attention_heads",
    "decoder_attention_heads",
    "n_head",
    "n_heads",
    "num_heads",
)
_LENGTHS = ("max_position_embeddings", "n_positions", "max_target_positions")
LARGE = Size(
    (0, 171),
    512,
    512,
    image=92,
    sound=10_260,
    vocabulary=1000,
    weight_std=0.05,
    changed={
        **dict.fromkeys(_WIDTHS, 256),
        **dict.fromkeys(_INNER, 512),
        **dict.fromkeys(_NUMBERS_OF_HEADS, _HEADS),
        **dict.fromkeys(("head_dim", "d_kv"), 32),
        **dict.fromkeys(_LENGTHS, 514),  # RoBERTa counts from 2
        "vocab_size": 1000,
        "sliding_window": 128,
        "local_attention": 128,
        "conv_dim": [64, 64],
        "num_mel_bins": 80,
        "max_source_positions": 512,
        "image_size": 92,
    },
)
"""2 layers of size 256 with 8 heads, for about 512 positions."""


@dataclass(frozen=True)
class Family:
    """A family: classes of transformers by name, the settings of its tiny model, and what it reads."""

    model: str  # such as "LlamaModel"
    config: str
    settings: dict[str, Any] = field(default_factory=dict)
    reads: str = "text"  # text, pairs (source and target), image, image and text, sound, features
    causal: bool = False
    language_model: str | None = None  # the class with `generate`


def _decoder(name: str, **settings: Any) -> Family:
    return Family(
        f"{name}Model", f"{name}Config", {**_DECODER, **settings}, causal=True, language_model=f"{name}ForCausalLM"
    )


def _encoder(name: str, **settings: Any) -> Family:
    return Family(f"{name}Model", f"{name}Config", {**_ENCODER, **settings})


def _translator(name: str, **settings: Any) -> Family:
    return Family(
        f"{name}Model",
        f"{name}Config",
        {**_TRANSLATOR, **settings},
        reads="pairs",
        language_model=f"{name}ForConditionalGeneration",
    )


def _image(name: str, **settings: Any) -> Family:
    return Family(f"{name}Model", f"{name}Config", {**_IMAGE, **settings}, reads="image")


_T5 = {
    "vocab_size": VOCABULARY,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 37,
    "num_layers": 2,
    "num_heads": 4,
    "dropout_rate": 0.0,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 16,
    "pad_token_id": 0,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
}
_GPT2 = {
    "vocab_size": VOCABULARY,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 64,
    "resid_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "attn_pdrop": 0.0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_WHISPER = {
    **_TRANSLATOR,
    "num_mel_bins": 8,
    "max_source_positions": LENGTH,
    "max_target_positions": 32,
    "suppress_tokens": None,
    "begin_suppress_tokens": None,
}
_TWO_TOWERS = {
    "text_config": {**_TEXT, "projection_dim": 24, "bos_token_id": 1, "eos_token_id": 2},
    "vision_config": {**_SIZES, "image_size": 12, "patch_size": 4, "projection_dim": 24},
}

FAMILIES: dict[str, Family] = {
    # decoders
    "gpt2": Family("GPT2Model", "GPT2Config", _GPT2, causal=True, language_model="GPT2LMHeadModel"),
    "gpt_neox": _decoder("GPTNeoX"),
    "opt": Family(
        "OPTModel",
        "OPTConfig",
        {**_DECODER, "ffn_dim": 37, "word_embed_proj_dim": 32, "dropout": 0.0},
        causal=True,
        language_model="OPTForCausalLM",
    ),
    "biogpt": _decoder("BioGpt", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0),
    "llama": _decoder("Llama"),
    "mistral": _decoder("Mistral", sliding_window=5),
    "mixtral": _decoder("Mixtral", num_local_experts=4, sliding_window=None),
    "qwen2": _decoder("Qwen2"),
    "qwen3": _decoder("Qwen3", head_dim=8),
    "qwen3_moe": _decoder("Qwen3Moe", head_dim=8, **_EXPERTS),
    "gemma": _decoder("Gemma", head_dim=8),
    "gemma2": _decoder("Gemma2", head_dim=8, sliding_window=5, attn_logit_softcapping=2.0),
    "gemma3": Family(
        "Gemma3TextModel",
        "Gemma3TextConfig",
        {**_DECODER, "head_dim": 8, "sliding_window": 5, "layer_types": ["sliding_attention", "full_attention"]},
        causal=True,
        language_model="Gemma3ForCausalLM",
    ),
    "phi": _decoder("Phi"),
    "phi3": _decoder("Phi3"),
    "starcoder2": _decoder("Starcoder2", sliding_window=5, residual_dropout=0.0, embedding_dropout=0.0),
    "stablelm": _decoder("StableLm"),
    "persimmon": _decoder("Persimmon"),
    "nemotron": _decoder("Nemotron"),
    "cohere": _decoder("Cohere"),
    "cohere2": _decoder("Cohere2", sliding_window=5, layer_types=["sliding_attention", "full_attention"]),
    "olmo": _decoder("Olmo"),
    "olmo2": _decoder("Olmo2"),
    "granite": _decoder("Granite", attention_multiplier=0.3),
    "glm": _decoder("Glm", head_dim=8),
    "helium": _decoder("Helium", head_dim=8),
    "smollm3": _decoder("SmolLM3"),
    "ernie4_5": _decoder("Ernie4_5", head_dim=8),
    "exaone4": _decoder("Exaone4", sliding_window=5, layer_types=["sliding_attention", "full_attention"]),
    "gpt_oss": _decoder(
        "GptOss",
        head_dim=8,
        sliding_window=5,
        num_local_experts=4,
        num_experts_per_tok=2,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    ),
    "deepseek_v3": _decoder(
        "DeepseekV3",
        num_key_value_heads=None,  # as many as heads
        n_routed_experts=4,
        num_experts_per_tok=2,
        n_group=1,
        topk_group=1,
        moe_intermediate_size=24,
        kv_lora_rank=16,
        q_lora_rank=16,
        qk_rope_head_dim=8,
        qk_nope_head_dim=8,
        v_head_dim=12,
    ),
    # encoders
    "bert": _encoder("Bert"),
    "roberta": _encoder("Roberta"),
    "xlm_roberta": _encoder("XLMRoberta"),
    "camembert": _encoder("Camembert"),
    "electra": _encoder("Electra", embedding_size=32),
    "albert": _encoder("Albert", embedding_size=16),
    "layoutlm": _encoder("LayoutLM"),
    "esm": _encoder("Esm", position_embedding_type="rotary", mask_token_id=5),
    "distilbert": Family(
        "DistilBertModel",
        "DistilBertConfig",
        {
            "vocab_size": VOCABULARY,
            "dim": 32,
            "n_layers": 2,
            "n_heads": 4,
            "hidden_dim": 37,
            "max_position_embeddings": 64,
            "dropout": 0.0,
            "attention_dropout": 0.0,
        },
    ),
    "modernbert": _encoder(
        "ModernBert",
        local_attention=6,
        global_attn_every_n_layers=2,
        **dict.fromkeys(("bos_token_id", "cls_token_id"), 1),
        **dict.fromkeys(("eos_token_id", "sep_token_id"), 2),
    ),
    # encoders with a decoder
    "bart": _translator("Bart"),
    "mbart": _translator("MBart"),
    "pegasus": _translator("Pegasus"),
    "blenderbot": _translator("Blenderbot"),
    "m2m_100": _translator("M2M100"),
    "marian": Family("MarianModel", "MarianConfig", _TRANSLATOR, reads="pairs", language_model="MarianMTModel"),
    "t5": Family("T5Model", "T5Config", _T5, reads="pairs", language_model="T5ForConditionalGeneration"),
    "umt5": Family("UMT5Model", "UMT5Config", _T5, reads="pairs", language_model="UMT5ForConditionalGeneration"),
    # images and sounds
    "vit": _image("ViT"),
    "deit": _image("DeiT"),
    "dinov2": _image("Dinov2"),
    "beit": _image("Beit", use_relative_position_bias=True),
    "clip": Family("CLIPModel", "CLIPConfig", _TWO_TOWERS, reads="image and text"),
    "siglip": Family("SiglipModel", "SiglipConfig", _TWO_TOWERS, reads="image and text"),
    "wav2vec2": Family("Wav2Vec2Model", "Wav2Vec2Config", _SOUND, reads="sound"),
    "hubert": Family("HubertModel", "HubertConfig", _SOUND, reads="sound"),
    "whisper": Family("WhisperModel", "WhisperConfig", _WHISPER, reads="features"),
}


def build(name: str, attention: str = "eager", *, generates: bool = False, size: Size = TINY, **settings: Any) -> Any:
    """A model in evaluation mode; `generates` asks for the one with `generate`. Warnings of HF are left alone."""
    family = FAMILIES[name]
    kind = getattr(transformers, (family.language_model or family.model) if generates else family.model)
    config = getattr(transformers, family.config)(**{**_sized(family.settings, size), **settings})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model = kind._from_config(config, attn_implementation=attention)
        for parameter in model.parameters():
            if parameter.ndim > 1:
                nn.init.normal_(parameter, std=size.weight_std)
            else:
                nn.init.normal_(parameter, mean=float(parameter.detach().mean()), std=0.1)
    return model.eval()


def _sized(settings: Mapping[str, Any], size: Size) -> dict[str, Any]:
    """Settings with those that are other for this size; settings of a model's parts too."""
    sized = {}
    for name, value in settings.items():
        if isinstance(value, dict) and name.endswith("_config"):
            sized[name] = _sized(value, size)
        else:
            sized[name] = value if value is None else size.changed.get(name, value)
    return sized


def visible(*, left: bool = False, size: Size = TINY) -> Tensor:
    """The attention mask of the text, `[batch, length]`: 0 for padding, on the right unless `left`."""
    index = torch.arange(size.length)
    empty = torch.tensor(size.padding).unsqueeze(1)
    return (index >= empty if left else index < size.length - empty).long()


def inputs_of(name: str, *, padded: bool = True, left: bool = False, size: Size = TINY) -> dict[str, Tensor]:
    """What forward of a family takes."""
    reads, batch = FAMILIES[name].reads, len(size.padding)
    draw = torch.Generator().manual_seed(2)
    inputs: dict[str, Tensor] = {}
    if reads in ("text", "pairs", "image and text"):
        inputs["input_ids"] = torch.randint(3, size.vocabulary, (batch, size.length), generator=draw)
        if padded:
            inputs["attention_mask"] = visible(left=left, size=size)
            inputs["input_ids"] = inputs["input_ids"].masked_fill(inputs["attention_mask"] == 0, 0)
    if reads in ("pairs", "features"):
        target = (batch, size.target_length)
        inputs["decoder_input_ids"] = torch.randint(3, size.vocabulary, target, generator=draw)
    if reads in ("image", "image and text"):
        inputs["pixel_values"] = torch.randn(batch, 3, size.image, size.image, generator=draw)
    if reads == "sound":
        inputs["input_values"] = torch.randn(batch, size.sound, generator=draw)
    if reads == "features":
        bins = size.changed.get("num_mel_bins", 8)
        inputs["input_features"] = torch.randn(batch, bins, 2 * size.length, generator=draw)
    return inputs
