"""Wrong or unsupported folders raise an error that names what is wrong."""

import json
import re

import pytest
import torch
from helpers.hugging_face import LLAMA3, WORDS, bert, change_settings, distilbert, gpt2, llama, qwen2, roberta, save
from safetensors.torch import load_file, save_file

from regard.models.pretrained import load, tokenizer

WRONG_SETTINGS = [
    (
        gpt2,
        {"model_type": "mamba"},
        r"model_type 'mamba' is not supported; supported are 'bert', 'camembert', 'distilb",
    ),
    (gpt2, {"model_type": None}, r"model_type None is not supported"),
    (gpt2, {"scale_attn_by_inverse_layer_idx": True}, r"scale_attn_by_inverse_layer_idx True is not supported"),
    (gpt2, {"add_cross_attention": True}, r"add_cross_attention True is not supported, only False"),
    (gpt2, {"activation_function": "mish"}, r"activation_function 'mish' is not supported; supported are 'gelu', "),
    (gpt2, {"n_embd": None}, r"config.json must have the setting n_embd"),
    (gpt2, {"n_layer": "3"}, r"config.json: n_layer must be a positive whole number, got '3'"),
    (gpt2, {"layer_norm_epsilon": 0}, r"layer_norm_epsilon must be a positive number, got 0"),
    (gpt2, {"attn_pdrop": 2}, r"config.json: attn_pdrop must be a number between 0 and 1, got 2"),
    (gpt2, {"tie_word_embeddings": "no"}, r"tie_word_embeddings must be true or false, got 'no'"),
    (gpt2, {"quantization_config": {"bits": 4}}, r"quantization_config \{'bits': 4\} is not supported"),
    (gpt2, {"n_head": 7}, r"heads must divide size, got size=30 and heads=7"),
    (bert, {"is_decoder": True}, r"is_decoder True is not supported, only False"),
    (bert, {"position_embedding_type": "relative_key"}, r"position_embedding_type 'relative_key' is not supported"),
    (bert, {"hidden_act": "swiglu"}, r"hidden_act 'swiglu' is not supported"),
    (llama, {"rope_scaling": {"type": "dynamic", "factor": 2.0}}, r"rope_scaling of type 'dynamic' is not supp"),
    (llama, {"rope_parameters": {"rope_type": "longrope"}}, r"of type 'longrope' is not supported; supported are 'd"),
    (llama, {"rope_parameters": {"rope_type": "yarn"}}, r"config.json must have the setting factor"),
    (llama, {"rope_parameters": {"rope_type": "linear", "factor": 0.5}}, r"factor must be at least 1"),
    (qwen2, {"use_sliding_window": True, "layer_types": ["chunked"] * 3}, r"layer_types must be full_attention or s"),
    (qwen2, {"use_sliding_window": True, "max_window_layers": -1}, r"max_window_layers must be .* at least 0, got -1"),
    (roberta, {"pad_token_id": 18}, r"config.json: max_length must be a positive whole number, got 0"),
    (distilbert, {"dim": None}, r"config.json must have the setting dim$"),
    (distilbert, {"n_heads": 0}, r"config.json: n_heads must be a positive whole number, got 0"),
    (distilbert, {"activation": "mish"}, r"activation 'mish' is not supported"),
    (distilbert, {"attention_dropout": 2}, r"config.json: attention_dropout must be a number between 0 and 1, got 2"),
    (llama, {"rope_parameters": {"rope_type": "llama3"}}, r"config.json must have the setting factor"),
    (
        llama,
        {"rope_parameters": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 4.0, "high_freq_factor": 1.0}},
        r"config.json must have the setting original_max_position_embeddings",
    ),
    (
        llama,
        {"rope_scaling": LLAMA3 | {"low_freq_factor": 4.0, "high_freq_factor": 1.0}},
        r"config.json: factor must be at least 1, slow positive and fast above it, got factor=8.0, slow=4.0 and fast=1",
    ),
    (llama, {"rope_parameters": {"partial_rotary_factor": 0.5}}, r"partial_rotary_factor 0.5 is not supported"),
    (llama, {"rope_scaling": 2}, r"rope_scaling must be an object, got 2"),
]


@pytest.mark.parametrize(("make", "settings", "message"), WRONG_SETTINGS, ids=range(len(WRONG_SETTINGS)))
def test_settings_that_are_wrong_or_not_supported(make, settings, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        load(change_settings(save(make(), tmp_path), **settings))


WRONG_WEIGHTS = [
    (gpt2, lambda w: w.pop("transformer.h.1.mlp.c_fc.bias"), r"has no weight 'h.1.mlp.c_fc.bias'"),
    (llama, lambda w: w.pop("lm_head.weight"), r"has no weight 'lm_head.weight'"),
    (
        gpt2,
        lambda w: w.update({"transformer.h.0.attn.c_attn.weight": torch.zeros(90, 30)}),
        r"'transformer.h.0.attn.c_attn.weight' must be \[30, 90\], got \[90, 30\]",
    ),
    (
        llama,
        lambda w: w.update({"model.layers.2.self_attn.k_proj.weight": torch.zeros(60, 42)}),
        r"'model.layers.2.self_attn.k_proj.weight' must be \[20, 42\], got \[60, 42\]",
    ),
    (bert, lambda w: w.update({"projector.weight": torch.zeros(2, 30)}), r"does not use: 'projector.weight'$"),
    (gpt2, lambda w: w.update({f"score.{n}": torch.zeros(1) for n in range(7)}), r"'score.4', and 2 more$"),
    (
        gpt2,
        lambda w: w.update({"lm_head.weight": torch.zeros(WORDS, 30)}),
        r"tie_word_embeddings is true, but lm_head.weight is not the token embedding",
    ),
    (
        gpt2,
        lambda w: w.update({"transformer.ln_f.bias": torch.zeros(30, dtype=torch.int8)}),
        r"'transformer.ln_f.bias' must be floating point, got torch.int8",
    ),
]


@pytest.mark.parametrize(("make", "change", "message"), WRONG_WEIGHTS, ids=range(len(WRONG_WEIGHTS)))
def test_weights_that_are_missing_left_over_or_of_another_shape(make, change, message, tmp_path):
    save(make(), tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    change(weights)
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=message):
        load(tmp_path)


def test_folders_and_files_without_a_model(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere is not a model folder: no such file or folder"):
        load(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match=r"is not a model folder: it has no config.json"):
        load(tmp_path)
    for raw, message in (
        (b"{", "is not JSON"),
        (b"\x80", "is not JSON"),
        (b"[1]", "must hold a JSON object, got list"),
    ):
        (tmp_path / "config.json").write_bytes(raw)
        with pytest.raises(ValueError, match=message):
            load(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    with pytest.raises(FileNotFoundError, match=r"no weights: neither model.safetensors nor model.safetensors.index"):
        load(tmp_path)
    with pytest.raises(ValueError, match=r"config.json is a file: give the folder it is in, or a .bin of llama2.c"):
        load(tmp_path / "config.json")


def test_a_pickle_is_never_read(tmp_path):
    save(gpt2(), tmp_path)
    torch.save({}, tmp_path / "pytorch_model.bin")
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"weights in pytorch_model.bin, which is a pickle .* with save_pretrained"):
        load(tmp_path)
    with pytest.raises(ValueError, match=r"pytorch_model.bin is a pickle, which may run any code"):
        load(tmp_path / "pytorch_model.bin")


def test_truncated_and_missing_files(tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    model = llama()
    save(model, whole)
    raw = (whole / "model.safetensors").read_bytes()
    for end in (0, 7, 100, len(raw) - 1):
        (whole / "model.safetensors").write_bytes(raw[:end])
        with pytest.raises(ValueError, match=r"model.safetensors cannot be read: "):
            load(whole)

    save(model, parts, max_shard_size="20KB")
    index = parts / "model.safetensors.index.json"
    map_of = json.loads(index.read_text())["weight_map"]
    first = parts / map_of["model.norm.weight"]
    (parts / "away").mkdir()
    first.rename(parts / "away" / first.name)
    with pytest.raises(FileNotFoundError, match=f"has no {first.name}, which model.safetensors.index.json names"):
        load(parts)
    save_file({"other": torch.zeros(1)}, first)
    with pytest.raises(
        ValueError, match=rf"{first.name} lacks weights that model.safetensors.index.json .*'model.norm.we"
    ):
        load(parts)
    for wrong in ("away/" + first.name, "../x.safetensors", "pytorch_model.bin", 3):
        index.write_text(json.dumps({"weight_map": {"model.norm.weight": wrong}}))
        with pytest.raises(
            ValueError, match=rf"must name safetensors files beside it, got {re.escape(repr(wrong))} for"
        ):
            load(parts)
    for text in ("{}", '{"weight_map": {}}'):
        index.write_text(text)
        with pytest.raises(ValueError, match="must have a weight_map with the file of each weight"):
            load(parts)


def test_files_that_are_not_a_tokenizer(tmp_path):
    with pytest.raises(
        FileNotFoundError, match=r"there is no .*tokenizer.json: a tokenizer is a folder with tokenizer"
    ):
        tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match=r"tokenizer.json is not a tokenizer: "):
        tokenizer(tmp_path)
