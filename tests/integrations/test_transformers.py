"""`attn_implementation="regard"` gives what "eager" gives: outputs, gradients, generated tokens, attentions."""

import re
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

import regard
from regard import masks

transformers = pytest.importorskip("transformers", reason="transformers is what we compare with")

from transformers.masking_utils import (  # noqa: E402
    create_causal_mask,
    create_chunked_causal_mask,
    create_sliding_window_causal_mask,
)

from benchmarks.families import FAMILIES, LENGTH, build, inputs_of, visible  # noqa: E402
from regard.integrations import transformers as ours  # noqa: E402

transformers.utils.logging.set_verbosity_error()
WRITERS = [name for name, family in FAMILIES.items() if family.language_model and family.reads in ("text", "pairs")]
PADDED = [name for name, family in FAMILIES.items() if family.reads in ("text", "pairs", "image and text")]
PADDINGS = {"no padding": {"padded": False}, "right": {}, "left": {"left": True}}
CASES = [(name, padding) for name in FAMILIES for padding in PADDINGS if name in PADDED or padding == "no padding"]


@pytest.fixture
def no_tensor(monkeypatch):
    """Fail if a mask is built as a tensor."""

    def fail(*args, **kwargs):
        raise AssertionError("a mask was built")

    monkeypatch.setattr(ours.LazyMask, "__torch_dispatch__", fail)


def output_of(name, model, inputs):
    """The output at all positions that are not padding."""
    outputs = model(**inputs)
    if "last_hidden_state" not in outputs:
        return torch.cat([outputs.text_embeds, outputs.image_embeds])
    hidden = outputs.last_hidden_state
    padded = "attention_mask" in inputs and FAMILIES[name].reads == "text"
    return hidden[inputs["attention_mask"].bool()] if padded else hidden


def output_and_gradients(name, attention, inputs):
    model = build(name, attention)
    output = output_of(name, model, inputs)
    mix = torch.randn(output.shape, generator=torch.Generator().manual_seed(3))
    (output * mix).sum().backward()
    return output.detach(), {key: x.grad for key, x in model.named_parameters() if x.grad is not None}


@pytest.fixture
def calls(monkeypatch):
    """The layers that called our attention function."""
    layers, registered = [], transformers.AttentionInterface._global_mapping["regard"]

    def listed(module, *args, **kwargs):
        layers.append(module)
        return registered(module, *args, **kwargs)

    monkeypatch.setitem(transformers.AttentionInterface._global_mapping, "regard", listed)
    return layers


@pytest.mark.slow
@pytest.mark.parametrize(("name", "padding"), CASES)
def test_outputs_and_gradients_agree_with_eager(name, padding, no_tensor, calls):
    inputs = inputs_of(name, **PADDINGS[padding])
    expected, expected_gradients = output_and_gradients(name, "eager", inputs)
    assert not calls
    output, gradients = output_and_gradients(name, "regard", inputs)
    assert len(calls) >= 2
    assert (output - expected).abs().max() <= 1e-5 * expected.abs().max()
    assert gradients.keys() == expected_gradients.keys()
    # The gradient of a bias of keys is 0 by definition; what is computed of it is rounding.
    largest = max(float(x.abs().max()) for x in expected_gradients.values())
    for key, gradient in expected_gradients.items():
        allowed = 1e-5 * max(float(gradient.abs().max()), 0.01 * largest)
        assert (gradients[key] - gradient).abs().max() <= allowed, key


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"num_beams": 3}, {"cache_implementation": "static"}], ids=str)
@pytest.mark.parametrize("name", WRITERS)
def test_generates_what_eager_generates(name, options, no_tensor):
    inputs = inputs_of(name, left=True)
    inputs.pop("decoder_input_ids", None)
    settings = {"max_new_tokens": 8, "do_sample": False, "output_logits": True, "return_dict_in_generate": True}
    expected, found = (
        build(name, attention, generates=True).generate(**inputs, **settings, **options)
        for attention in ("eager", "regard")
    )
    assert found.sequences.tolist() == expected.sequences.tolist()
    assert_close(torch.stack(found.logits), torch.stack(expected.logits), rtol=0, atol=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_attentions_are_the_largest_weights_of_eager(name):
    inputs = inputs_of(name, left=True)
    expected, found = (build(name, x)(**inputs, output_attentions=True) for x in ("eager", "regard"))
    compared = 0
    pairs = [(expected, found)]
    if "text_model_output" in expected:
        pairs = [(expected[key], found[key]) for key in ("text_model_output", "vision_model_output")]
    for these, those in pairs:
        for key in [key for key in these if "attentions" in key and these[key]]:
            for weight, look in zip(these[key], those[key], strict=True):
                shown = look.index >= 0
                picked = torch.where(shown, weight.gather(-1, look.index.clamp(min=0)), 0.0)
                top = weight.topk(look.weight.shape[-1], dim=-1).values
                seen = look.weight.sum(dim=-1, keepdim=True) > 0  # eager averages all keys where all are padding
                assert_close(look.weight, torch.where(seen, picked, 0.0), rtol=0, atol=1e-5)
                assert_close(look.weight, torch.where(seen, top, 0.0), rtol=0, atol=1e-5)
                compared += 1
    assert compared >= 2


def test_attentions_while_generating_are_those_of_each_step():
    inputs = inputs_of("llama", left=True)
    found = build("llama", "regard", generates=True).generate(
        **inputs, max_new_tokens=3, do_sample=False, return_dict_in_generate=True, output_attentions=True
    )
    assert [len(step) for step in found.attentions] == [2, 2, 2]
    assert found.attentions[0][0].weight.shape == (3, 4, LENGTH, 8)
    assert found.attentions[2][0].weight.shape == (3, 4, 1, 8)
    assert (found.attentions[2][0].index[1] >= 4).all()  # its first four are padding


def test_attentions_count_keys_from_the_first_of_the_cache():
    window = transformers.masking_utils.sliding_window_causal_mask_function(4)
    mask = ours.attention_mask(batch_size=1, q_length=1, kv_length=32, q_offset=9, mask_function=window)
    query, key = torch.randn(1, 2, 1, 8), torch.randn(1, 2, 32, 8)
    mean, look = ours.attention(torch.nn.Module(), query, key, key, mask, output_attentions=True)
    assert look.index.sort().values.tolist() == [[[[6, 7, 8, 9]], [[6, 7, 8, 9]]]]
    assert_close(mean.transpose(1, 2), regard.attend(query, key[:, :, 6:10], key[:, :, 6:10]))


def test_number_of_attentions_is_a_setting():
    try:
        ours.register(top=3)
        found = build("bert", "regard")(**inputs_of("bert"), output_attentions=True)
        assert found.attentions[0].index.shape == (3, 4, LENGTH, 3)
    finally:
        ours.register()
    with pytest.raises(ValueError, match="top must be a positive whole number, got 0"):
        ours.register(top=0)


@pytest.mark.parametrize("which", [1, slice(None)])
@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt_oss", "t5", "bert"])
def test_a_text_of_padding_only_gives_no_nan(name, which):
    inputs = inputs_of(name)
    inputs["attention_mask"][which] = 0
    output, gradients = output_and_gradients(name, "regard", inputs)
    assert output.isfinite().all()
    assert all(gradient.isfinite().all() for gradient in gradients.values())


@pytest.mark.parametrize("offset", [0, 5])
@pytest.mark.parametrize("left", [True, False])
def test_lazy_mask_is_the_tensor_if_it_is_asked(left, offset):
    config = build("mistral").config
    for create in (create_causal_mask, create_sliding_window_causal_mask):
        lazy, tensor = (
            create(config_with(config, kind), torch.zeros(3, LENGTH, 32), visible(left=left), None)
            for kind in ("regard", "eager")
        )
        assert isinstance(lazy, ours.LazyMask)
        assert (lazy.shape, lazy.dtype, lazy.ndim) == (tensor.shape, torch.float32, 4)
        assert lazy.contiguous() is lazy
        assert torch.equal(lazy[:, :, offset:], tensor[:, :, offset:])
        assert torch.equal(1 * lazy, tensor)
        assert "LazyMask([3, 1, 11, 11]" in repr(lazy)


def config_with(config, attention):
    config._attn_implementation = attention
    return config


def as_matrix(lazy):
    """What our mask says of each query and key."""
    batch, _, queries, keys = lazy.shape
    inside = lazy.keys.stop - lazy.keys.start
    query, key = torch.zeros(batch, 1, queries, 4), torch.zeros(batch, 1, inside, 4)
    weight = regard.look(query, key, mask=lazy.mask)
    if lazy.mask is not None:
        masks.check_reach(lazy.mask, queries, inside)
    matrix = torch.zeros(batch, 1, queries, keys, dtype=torch.bool)
    matrix[..., lazy.keys] = weight > 0
    return matrix


@pytest.mark.parametrize("kind", ["causal", "window", "chunks", "packed", "or", "and", "blocks"])
@pytest.mark.parametrize("padded", [True, False])
def test_masks_allow_the_same_pairs(kind, padded):
    config = build("mistral").config
    config.attention_chunk_size = 4
    create, options = create_causal_mask, {}
    ids = torch.tensor([[0, 0, 1, 1, 1, 2, 2, 0, 1, 2, 2], [0] * 11, [1, 2] * 5 + [1]])
    if kind in ("window", "chunks"):
        create = create_sliding_window_causal_mask if kind == "window" else create_chunked_causal_mask
    elif kind == "packed":
        options = {"position_ids": torch.tensor([[0, 1, 2, 0, 1, 2, 3, 4, 0, 1, 2]])}
    elif kind in ("or", "and"):
        options = {f"{kind}_mask_function": lambda b, h, q, k: ids[b, q] == ids[b, k]}
    elif kind == "blocks":
        options = {"block_sequence_ids": ids - 1}
    padding = visible(left=True) if padded else None
    arguments = torch.zeros(3, LENGTH, 32), padding, None
    lazy = create(config_with(config, "regard"), *arguments, **options)
    tensor = create(config_with(config, "eager"), *arguments, **options)
    assert torch.equal(as_matrix(lazy), tensor == 0)
    assert torch.equal(1 * lazy, tensor)


def test_keys_that_no_query_sees_are_left_out():
    options = {"batch_size": 2, "device": "cpu"}
    window = transformers.masking_utils.sliding_window_causal_mask_function(4)
    # One query at position 9, in a cache of 32 that holds 10.
    found = ours.attention_mask(q_length=1, kv_length=32, q_offset=torch.tensor(9), **options)
    assert (found.keys, found.mask) == (slice(0, 10), None)
    found = ours.attention_mask(q_length=1, kv_length=32, q_offset=9, mask_function=window, **options)
    assert (found.keys, found.mask) == (slice(6, 10), None)
    # A prompt of 5 in the same cache.
    found = ours.attention_mask(q_length=5, kv_length=32, **options)
    assert (found.keys, found.mask) == (slice(0, 5), masks.causal)
    padding = torch.arange(32).ge(torch.tensor([[0], [8]])) & torch.arange(32).lt(10)
    found = ours.attention_mask(
        q_length=1, kv_length=32, q_offset=9, mask_function=window, attention_mask=padding, **options
    )
    assert found.keys == slice(6, 10)
    assert found.mask.int().tolist() == [[[[1, 1, 1, 1]]], [[[0, 0, 1, 1]]]]


def test_a_model_with_attention_of_its_own_is_right():
    """Bloom's layers never ask for an attention function: they compute with the mask."""
    settings = {"vocab_size": 61, "hidden_size": 32, "n_layer": 2, "n_head": 4, "pad_token_id": 0}
    found = []
    for attention in ("eager", "regard"):
        torch.manual_seed(0)
        model = transformers.BloomModel._from_config(
            transformers.BloomConfig(**settings), attn_implementation=attention
        ).eval()
        found += [model(**inputs_of("llama", padded=padded))[0] for padded in (True, False)]
    assert_close(found[2:], found[:2])


def test_every_key_visible_needs_no_mask():
    everything = transformers.masking_utils.bidirectional_mask_function
    options = {"batch_size": 2, "q_length": 3, "kv_length": 5, "mask_function": everything}
    assert ours.attention_mask(**options, allow_is_bidirectional_skip=True) is None
    whole = torch.ones(2, 5, dtype=torch.bool)
    assert ours.attention_mask(**options, attention_mask=whole, allow_is_bidirectional_skip=True) is None
    assert ours.attention_mask(**options).shape == (2, 1, 3, 5)


def test_a_window_costs_what_it_reaches():
    window = transformers.masking_utils.sliding_window_causal_mask_function(64)
    found = ours.attention_mask(batch_size=1, q_length=2048, kv_length=2048, mask_function=window)
    x = torch.zeros(1, 2, 2048, 8)
    assert "the mask reaches" in regard.plan(x, x, x, mask=found.mask).why


def attention(query, key, value, mask=None, **options):
    module = torch.nn.Module()
    module.is_causal = False
    return ours.attention(module, query, key, value, mask, **options)[0].transpose(1, 2)


@pytest.mark.parametrize("dropout", [0.0, 1e-9])
def test_sinks_take_weight_from_the_keys(dropout):
    query, key, value = torch.randn(2, 4, 5, 8), torch.randn(2, 2, 7, 8), torch.randn(2, 2, 7, 8)
    sinks = torch.randn(4)
    scores = 0.3 * query @ key.repeat_interleave(2, 1).mT
    with_sink = torch.cat([scores, sinks.view(1, -1, 1, 1).expand(2, 4, 5, 1)], dim=-1)
    expected = with_sink.softmax(dim=-1)[..., :-1] @ value.repeat_interleave(2, 1)
    assert_close(attention(query, key, value, scaling=0.3, s_aux=sinks, dropout=dropout), expected)


def test_softcap_and_position_bias():
    query, key, value = torch.randn(2, 4, 5, 8), torch.randn(2, 4, 7, 8), torch.randn(2, 4, 7, 8)
    bias, mask = torch.randn(1, 4, 5, 7), torch.rand(2, 1, 5, 7) > 0.3
    scores = 2.0 * torch.tanh(query @ key.mT * 0.3 / 2.0) + bias
    expected = scores.masked_fill(~mask, -torch.inf).softmax(dim=-1) @ value
    found = attention(query, key, value, mask, scaling=0.3, softcap=2.0, position_bias=bias)
    assert_close(found, expected.nan_to_num(0.0))


def test_without_a_mask_the_layer_says_if_it_is_causal():
    query, key = torch.randn(1, 2, 3, 8), torch.randn(1, 2, 5, 8)
    module = torch.nn.Module()
    causal = regard.attend(query, key, key, mask=masks.causal).transpose(1, 2)
    full = regard.attend(query, key, key).transpose(1, 2)
    assert_close(ours.attention(module, query, key, key, None)[0], causal)  # transformers' default
    assert_close(ours.attention(module, query, key, key, None, is_causal=False)[0], full)
    module.is_causal = False
    assert_close(ours.attention(module, query, key, key, None)[0], full)
    assert_close(ours.attention(module, query, key, key, None, is_causal=True)[0], causal)
    one = regard.attend(query[:, :, :1], key, key).transpose(1, 2)
    assert_close(ours.attention(module, query[:, :, :1], key, key, None, is_causal=True)[0], one)


@pytest.mark.parametrize("dtype", [torch.bool, torch.float32])
def test_a_mask_of_ones_own(dtype):
    inputs = inputs_of("llama", padded=False)
    allowed = (torch.rand(3, 1, LENGTH, LENGTH) > 0.4) | torch.eye(LENGTH, dtype=torch.bool)
    bias = torch.zeros(allowed.shape).masked_fill(~allowed, torch.finfo(torch.float32).min)
    expected = build("llama")(**inputs, attention_mask=bias).last_hidden_state
    mask = allowed if dtype == torch.bool else bias
    assert_close(build("llama", "regard")(**inputs, attention_mask=mask).last_hidden_state, expected)


def test_packed_texts():
    inputs = inputs_of("llama", padded=False)
    inputs["position_ids"] = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 0, 1, 2, 3]]).expand(3, -1)
    expected, found = (build("llama", x)(**inputs, use_cache=False)[0] for x in ("eager", "regard"))
    assert_close(found, expected)


@pytest.mark.parametrize(
    ("name", "setting"),
    [("gpt2", "attn_pdrop"), ("gemma2", "attention_dropout"), ("gpt_oss", "attention_dropout"), ("t5", "dropout_rate")],
)
def test_dropout_in_training_only(name, setting):
    model, inputs = build(name, "regard", **{setting: 0.4}), inputs_of(name)
    assert torch.equal(model(**inputs)[0], model(**inputs)[0])
    model.train()
    torch.manual_seed(0)
    first, second = model(**inputs)[0], model(**inputs)[0]
    assert not torch.equal(first, second)
    torch.manual_seed(0)
    assert torch.equal(model(**inputs)[0], first)


@pytest.mark.slow
def test_dropout_keeps_the_mean_of_eager():
    torch.manual_seed(0)
    inputs = inputs_of("gpt2")
    inputs = {key: x[:1] for key, x in inputs.items()}
    means = []
    for attention in ("eager", "regard"):
        model = build("gpt2", attention, attn_pdrop=0.3, n_layer=1).train()
        with torch.no_grad():
            means.append(torch.stack([model(**inputs)[0] for _ in range(400)]).mean(dim=0))
    plain = build("gpt2", "eager", n_layer=1)(**inputs)[0]
    noise = (means[0] - plain).abs().mean()
    assert (means[1] - means[0]).abs().mean() < 0.5 * noise + 0.02


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "gpt_oss", "bert"])
@pytest.mark.parametrize("reentrant", [True, False])
def test_gradient_checkpointing(name, reentrant):
    inputs = inputs_of(name)
    gradients = []
    for attention, checkpointing in (("eager", False), ("regard", True)):
        model = build(name, attention).train()
        if checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": reentrant})
        options = {"use_cache": False} if FAMILIES[name].causal else {}
        output = model(**inputs, **options)[0][inputs["attention_mask"].bool()]
        (output * torch.linspace(-1, 1, 32)).sum().backward()
        gradients.append(next(model.parameters()).grad)
    assert (gradients[1] - gradients[0]).abs().max() <= 1e-5 * gradients[0].abs().max()


@pytest.mark.parametrize("name", ["llama", "t5"])
def test_autocast(name):
    inputs = inputs_of(name)
    exact = build(name)(**inputs)[0]
    with torch.autocast("cpu", torch.bfloat16):
        theirs, found = (build(name, attention)(**inputs)[0].float() for attention in ("eager", "regard"))
    assert (found - exact).abs().mean() < 1.5 * (theirs - exact).abs().mean()


def test_a_paged_cache_raises():
    class PagedAttentionCache:
        pass

    x = torch.randn(1, 2, 3, 8)
    with pytest.raises(NotImplementedError, match=r"regard has no paged cache: .* set attn_implementation='sdpa'"):
        attention(x, x, x, cache=PagedAttentionCache())


def test_a_model_can_change_to_it():
    inputs = inputs_of("bert")
    model = build("bert")
    expected = output_of("bert", model, inputs)
    model.set_attn_implementation("regard")
    assert model.config._attn_implementation == "regard"
    assert_close(output_of("bert", model, inputs), expected)


def test_the_page_lists_every_family():
    page = (Path(__file__).parents[2] / "docs" / "huggingface.md").read_text()
    rows = re.findall(r"^\| [a-z, ]+ \((\d+)\) \| (.*) \|$", page, re.MULTILINE)
    listed = [re.findall("`([a-z0-9_]+)`", names) for _, names in rows]
    assert [len(names) for names in listed] == [int(count) for count, _ in rows]
    assert sorted(name for names in listed for name in names) == sorted(FAMILIES)
    assert len(FAMILIES) >= 40
