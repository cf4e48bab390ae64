"""Small random models of `transformers`, save by it, and changed. Nothing is downloaded."""

import json
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

transformers = pytest.importorskip("transformers", reason="transformers is what we compare with")
transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

WORDS, CONTEXT = 37, 19
GPT2 = {"vocab_size": WORDS, "n_positions": CONTEXT, "n_embd": 30, "n_head": 5, "n_layer": 3, "n_inner": 53}
BERT = {
    "vocab_size": WORDS,
    "max_position_embeddings": CONTEXT,
    "hidden_size": 30,
    "num_attention_heads": 5,
    "num_hidden_layers": 3,
    "intermediate_size": 53,
    "type_vocab_size": 3,
}
LLAMA = {
    "vocab_size": WORDS,
    "max_position_embeddings": CONTEXT,
    "hidden_size": 42,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 10,
    "num_hidden_layers": 3,
    "intermediate_size": 53,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 0.3,
    "high_freq_factor": 2.0,
    "original_max_position_embeddings": 17,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 100.0,
    "factor": 4.0,
    "original_max_position_embeddings": 17,
    "beta_fast": 3.0,
    "beta_slow": 0.1,
}
DISTILBERT = {
    "vocab_size": WORDS,
    "max_position_embeddings": CONTEXT,
    "dim": 30,
    "n_heads": 5,
    "n_layers": 3,
    "hidden_dim": 53,
}
NONE = {"bos_token_id": None, "eos_token_id": None}


def randomise(kind, config):
    """A model of transformers whose weights are all random, norms and biases too, so that no swap can hide."""
    model = kind(config).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            around = 1.0 if re.search(r"(norm|LayerNorm|ln_\w)\.weight$", name) else 0.0
            weight.normal_(around, 0.3)
    model.set_attn_implementation("eager")
    return model


def gpt2(kind="GPT2LMHeadModel", **changes):
    return randomise(getattr(transformers, kind), transformers.GPT2Config(**GPT2 | NONE | changes))


def bert(kind="BertModel", **changes):
    return randomise(getattr(transformers, kind), transformers.BertConfig(**BERT | changes))


def llama(kind="LlamaForCausalLM", **changes):
    return randomise(getattr(transformers, kind), transformers.LlamaConfig(**LLAMA | NONE | changes))


def qwen2(kind="Qwen2ForCausalLM", **changes):
    settings = {name: value for name, value in LLAMA.items() if name != "head_dim"} | {"hidden_size": 36}
    return randomise(getattr(transformers, kind), transformers.Qwen2Config(**settings | NONE | changes))


def qwen3(kind="Qwen3ForCausalLM", **changes):
    return randomise(getattr(transformers, kind), transformers.Qwen3Config(**LLAMA | NONE | changes))


def mistral(kind="MistralForCausalLM", **changes):
    return randomise(getattr(transformers, kind), transformers.MistralConfig(**LLAMA | NONE | changes))


def roberta(kind="RobertaModel", **changes):
    return randomise(getattr(transformers, kind), transformers.RobertaConfig(**BERT | {"pad_token_id": 1} | changes))


def xlm_roberta(kind, **changes):
    """RoBERTa under another name."""
    model = getattr(transformers, kind)
    return randomise(model, model.config_class(**BERT | {"pad_token_id": 1} | changes))


def distilbert(kind="DistilBertModel", **changes):
    return randomise(getattr(transformers, kind), transformers.DistilBertConfig(**DISTILBERT | changes))


def save(model, folder, **how):
    model.save_pretrained(folder, **how)
    return folder


def change_settings(folder, **settings):
    """The same folder with other settings; None removes one."""
    path = Path(folder) / "config.json"
    values = json.loads(path.read_text()) | settings
    path.write_text(json.dumps({name: value for name, value in values.items() if value is not None}))
    return folder


def change_weights(folder, change):
    """The same folder with its weights changed."""
    path = Path(folder) / "model.safetensors"
    save_file(change(load_file(path)), path)
    return folder
