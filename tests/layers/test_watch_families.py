"""`watch` against `output_attentions=True` of eager attention, for families of Hugging Face's transformers."""

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

import regard
from benchmarks.families import FAMILIES, build, inputs_of

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
WITHOUT_SDPA = {  # their attention is more than scaled_dot_product_attention can do
    "gemma2": "caps its scores",
    "gpt_oss": "has sinks",
}
ORDER = ("vision_model_output", "text_model_output", "encoder_attentions", "attentions")


def attentions(output) -> list[Tensor]:
    """All weights that a model returned, in the order in which its parts run."""
    found = []
    for name in sorted(output, key=lambda name: ORDER.index(name) if name in ORDER else len(ORDER)):
        if name.endswith("model_output"):
            found += attentions(output[name])
        elif name in ("encoder_attentions", "attentions"):
            found += output[name]
    for pair in zip(output.get("decoder_attentions") or (), output.get("cross_attentions") or (), strict=False):
        found += pair
    return found


@pytest.mark.parametrize("name", [name for name in FAMILIES if name not in WITHOUT_SDPA])
def test_weights_are_those_of_eager_attention(name):
    given = inputs_of(name)
    with torch.no_grad():
        expected = attentions(build(name)(**given, output_attentions=True))
        model = build(name, "sdpa")
        before = model(**given)
        with regard.watch(model) as record, regard.watch(model, top=3) as best:
            during = model(**given)
    assert all(torch.equal(before[key], during[key]) for key in before if isinstance(before[key], Tensor))
    pooling = "vision_model.head.attention"  # torch's layer, whose weights eager does not return
    weights = record.attentions([layer for layer in record if layer != pooling])
    assert len(weights) == len(expected) >= 2
    for ours, theirs in zip(weights, expected, strict=True):
        blind = (ours == 0).all(dim=-1, keepdim=True)  # padding that sees nothing, where eager has equal weights
        assert blind.float().mean() < 0.3
        assert_close(ours, theirs.masked_fill(blind, 0.0), rtol=1e-5, atol=2e-6)
    for layer, entries in record.items():
        for ours, largest in zip(entries, best[layer], strict=True):
            assert_close(largest.weight, ours.topk(3).values)


@pytest.mark.parametrize("name", ["llama", "gpt2", "t5"])
def test_generate_with_a_cache_gives_a_record_for_each_step(name):
    model = build(name, "sdpa", generates=True)
    prompt = inputs_of(name, padded=False)["input_ids"][:2]
    with torch.inference_mode():
        before = model.generate(prompt, max_new_tokens=4, min_new_tokens=4, do_sample=False)
        with regard.watch(model) as record:
            written = model.generate(prompt, max_new_tokens=4, min_new_tokens=4, do_sample=False)
    assert torch.equal(before, written)
    layer = next(layer for layer in record if name != "t5" or layer.startswith("decoder"))
    start = 1 if name == "t5" else prompt.shape[1]
    assert [entry.shape[-2:] for entry in record[layer]] == [(start, start)] + [(1, start + 1 + i) for i in range(3)]
    with torch.no_grad(), regard.watch(model) as whole:  # the same rows as in one pass over all tokens
        model(prompt, decoder_input_ids=written[:, :-1]) if name == "t5" else model(written[:, :-1])
    for entry in record[layer]:
        rows = whole[layer][0][:, :, : entry.shape[-1], : entry.shape[-1]]
        assert_close(entry, rows[:, :, -entry.shape[-2] :], rtol=1e-4, atol=1e-5)
    tokens = [[str(token) for token in row] for row in written[:, :-1].tolist()]
    frame = record.to_frame(tokens, layers=layer)
    assert frame.groupby("call").size().tolist() == [entry.numel() for entry in record[layer]]
    last = frame[(frame.call == 3) & (frame["batch"] == 1) & (frame["head"] == 0)]
    assert last.query_token.unique().tolist() == [tokens[1][-1]]
    assert last.key_token.tolist() == tokens[1]


@pytest.mark.parametrize("name", WITHOUT_SDPA)
def test_a_family_without_sdpa_cannot_be_built_with_it(name):
    with pytest.raises(ValueError, match="does not support an attention implementation through"):
        build(name, "sdpa")


@pytest.mark.parametrize("name", ["gemma2", "gpt_oss", "llama"])
def test_regards_own_implementation_is_heard(name):
    import regard.integrations.transformers

    given = inputs_of(name)
    with torch.no_grad():
        expected = build(name)(**given, output_attentions=True).attentions
        model = build(name, "regard")
        with regard.watch(model) as record, regard.watch(model, top=3) as best:
            model(**given)
    for ours, largest, theirs in zip(record.attentions(), best.values(), expected, strict=True):
        assert_close(ours, theirs, rtol=1e-5, atol=2e-6)
        assert_close(largest[0].weight, ours.topk(3).values)


def test_eager_attention_raises_and_says_what_to_do():
    model, given = build("bert"), inputs_of("bert")
    with (
        pytest.raises(ValueError, match=r'no attention in BertModel: .*"eager".*set_attn_implementation\("sdpa"\)'),
        regard.watch(model),
    ):
        model(**given)
    model.set_attn_implementation("sdpa")
    with regard.watch(model) as record:
        model(**given)
    assert list(record) == ["encoder.layer.0.attention.self", "encoder.layer.1.attention.self"]


@pytest.mark.filterwarnings("error")
def test_a_part_with_eager_attention_warns():
    model, given = build("clip", "sdpa"), inputs_of("clip")
    model.text_model.set_attn_implementation("eager")
    watching = regard.watch(model)
    record = watching.__enter__()
    model(**given)
    with pytest.warns(UserWarning, match=r"no attention in 'text_model': .* \"eager\""):
        watching.__exit__(None, None, None)
    assert [name.split(".")[0] for name in record] == ["vision_model"] * 2
