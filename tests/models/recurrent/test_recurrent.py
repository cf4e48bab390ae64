"""The recurrent models against their equations, one sentence and one step at a time, in values and gradients."""

import pytest
import torch
from helpers.slow_recurrent import slow
from torch import nn
from torch.testing import assert_close

from regard.decoding import beam
from regard.models.recurrent import (
    Bahdanau,
    Location,
    Luong,
    RecurrentConfig,
    RecurrentEncoder,
    Vanilla,
    cells,
    concat,
    encoder_decoder,
)
from regard.ops import attentive_rnn

WORDS, TOKENS, SIZE, HIDDEN = 29, 23, 7, 5
LENGTHS = torch.tensor([11, 1, 4, 8])
M = 13


def location(state, _):
    return Location(state, max_length=17)


MODELS = {
    "vanilla": (Vanilla, {}),
    "vanilla lstm": (Vanilla, {"cell": nn.LSTM, "layers": 2, "bidirectional": True, "maxout": False, "tied": True}),
    "vanilla cold": (Vanilla, {"warm": False}),
    "vanilla cold lstm": (Vanilla, {"warm": False, "cell": nn.LSTM}),
    "bahdanau": (Bahdanau, {}),
    "bahdanau lstm": (Bahdanau, {"cell": nn.LSTM, "layers": 3, "alignment": 3, "maxout": False, "tied": True}),
    "bahdanau one way": (Bahdanau, {"bidirectional": False, "layers": 2}),
    "luong dot": (Luong, {"score": None}),
    "luong general": (Luong, {"bidirectional": True, "feeding": False, "tied": True}),
    "luong general fed": (Luong, {"bidirectional": True, "layers": 2, "tied": True}),
    "luong concat": (Luong, {"score": concat, "cell": nn.GRU, "feeding": False, "layers": 2}),
    "luong location": (Luong, {"score": location, "feeding": False}),
    "luong location fed": (Luong, {"score": location, "radius": 2, "predicted": False}),
    "luong local-m": (Luong, {"score": None, "radius": 2, "predicted": False, "feeding": False}),
    "luong local-p": (Luong, {"radius": 3, "feeding": False}),
    "luong local-p fed": (Luong, {"radius": 3, "score": concat, "bidirectional": True}),
}
named = pytest.mark.parametrize("name", MODELS)


def build(kind, source=WORDS, target=TOKENS, **settings):
    """A small model; the settings are those of the configuration, and the model's own."""
    settings = {"size": SIZE, "hidden": HIDDEN} | settings
    shared = {name: settings.pop(name) for name in list(settings) if name in RecurrentConfig.__dataclass_fields__}
    return kind(source, target, RecurrentConfig(**shared), **settings)


def make_model(name, **more):
    torch.manual_seed(3)
    kind, settings = MODELS[name]
    model = build(kind, **settings, **more)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.5)
    return model.double()


def sentences():
    generator = torch.Generator().manual_seed(1)
    source = torch.randint(WORDS, (len(LENGTHS), int(LENGTHS.max())), generator=generator)
    return source, LENGTHS, torch.randint(TOKENS, (len(LENGTHS), M), generator=generator)


def gradients(logits, model):
    grad = torch.randn(logits.shape, generator=torch.Generator().manual_seed(2), dtype=logits.dtype)
    return torch.autograd.grad((logits * grad).sum(), list(model.parameters()))


@named
def test_models_equal_their_equations(name):
    model, batch = make_model(name), sentences()
    found, (expected, weights) = model(*batch), slow(name, model, *batch)
    assert_close(found, expected, rtol=1e-10, atol=1e-10)
    names = [key for key, _ in model.named_parameters()]
    for key, one, other in zip(names, gradients(found, model), gradients(expected, model), strict=True):
        assert other.abs().max() > 1e-6, key
        assert_close(one, other, rtol=1e-8, atol=1e-10, msg=lambda text, key=key: f"{key}: {text}")
    if weights is not None:
        assert_close(model.look(*batch), weights, rtol=1e-10, atol=1e-12)
        assert (model.look(*batch)[1, :, 1:] == 0).all()


@named
def test_fused_loops_equal_torch(name, monkeypatch):
    model, batch = make_model(name), sentences()
    fused = model(*batch)
    before = gradients(fused, model)
    for module in (attentive_rnn, cells, encoder_decoder):
        monkeypatch.setattr(module, "fusible", lambda *_: False)
    plain = model(*batch)
    assert_close(plain, fused, rtol=1e-10, atol=1e-10)
    assert_close(gradients(plain, model), before, rtol=1e-8, atol=1e-10)


def test_a_score_with_another_activation_is_used(monkeypatch):
    model, batch = make_model("bahdanau"), sentences()
    model.score.activation = torch.sigmoid
    weight = model.look(*batch)
    assert not torch.allclose(weight, make_model("bahdanau").look(*batch))
    monkeypatch.setattr(attentive_rnn, "fusible", lambda *_: False)
    assert_close(model.look(*batch), weight)


@named
def test_steps_equal_the_whole_pass(name):
    model, (source, lengths, target) = make_model(name).eval(), sentences()
    whole = model(source, lengths, target).log_softmax(dim=-1)
    with torch.inference_mode():
        state = model.begin(source, lengths, M)
        for position in range(M):
            state, found = model.step(state, target[:, position])
            assert_close(found, whole[:, position], rtol=1e-9, atol=1e-9)


@named
def test_padding_changes_nothing(name):
    model, (source, lengths, target) = make_model(name), sentences()
    whole = model(source, lengths, target)
    other = torch.cat([source, torch.zeros(len(source), 3, dtype=torch.long)], dim=1)
    for row, length in enumerate(lengths.tolist()):
        single = model(source[row : row + 1, :length], lengths[row : row + 1], target[row : row + 1])
        assert_close(single[0], whole[row], rtol=1e-9, atol=1e-9)
        other[row, length:] = (row + 5) % WORDS
    assert_close(model(other, lengths, target), whole, rtol=1e-9, atol=1e-9)


@named
def test_logits_use_the_output_weights(name):
    model, batch = make_model(name), sentences()
    weight, bias = model.output_weights
    assert weight.shape == (TOKENS, model.rows(*batch).shape[-1])
    assert_close(model.rows(*batch) @ weight.T + bias, model(*batch))
    assert (weight is model.target.token.weight) == bool(MODELS[name][1].get("tied"))


@named
def test_the_log_probability_of_a_beam_is_that_of_the_whole_pass(name):
    model, (source, lengths, _) = make_model(name).eval(), sentences()
    start = torch.ones(len(source), dtype=torch.long)
    with torch.inference_mode():
        found = beam(model.step, model.begin(source, lengths, 9), start, end=2, length=9, size=3)
        for row, (best,) in enumerate(found):
            read = torch.tensor([[1, *best.tokens]])
            log_p = model(source[row : row + 1], lengths[row : row + 1], read).log_softmax(dim=-1)[0]
            after = [*best.tokens, 2] if best.finished else best.tokens
            expected = sum(float(log_p[at, token]) for at, token in enumerate(after))
            assert best.log_probability == pytest.approx(expected, abs=1e-6)


@named
def test_dropout_applies_in_training_only(name):
    model, batch = make_model(name, dropout=0.5), sentences()
    assert not torch.allclose(model(*batch), model(*batch))
    model.eval()
    assert_close(model(*batch), make_model(name)(*batch))


@pytest.mark.parametrize("cell", [nn.GRU, nn.LSTM], ids=["gru", "lstm"])
def test_the_encoders_states_equal_torchs_and_are_0_at_padding(cell):
    encoder = RecurrentEncoder(RecurrentConfig(SIZE, HIDDEN, cell, layers=2)).double()
    rows = torch.randn(len(LENGTHS), int(LENGTHS.max()) + 2, SIZE, dtype=torch.float64)
    states = encoder(rows, LENGTHS)
    assert (states[torch.arange(rows.shape[1]) >= LENGTHS[:, None]] == 0).all()
    assert_close(states, encoder._run_packed(rows, LENGTHS), rtol=1e-11, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("cell", [nn.GRU, nn.LSTM], ids=["gru", "lstm"])
def test_dropout_between_layers(cell):
    encoder = RecurrentEncoder(RecurrentConfig(SIZE, HIDDEN, cell, layers=2, dropout=1.0))
    decoder, zero = cell(SIZE, HIDDEN, 2, batch_first=True, dropout=1.0), torch.zeros(len(LENGTHS), HIDDEN)
    start = [(zero, zero) if cell is nn.LSTM else (zero,)] * 2

    def found(scale):
        rows = torch.full((len(LENGTHS), int(LENGTHS.max()), SIZE), scale)
        gates = cells.weights_of(decoder).gates(rows[:, 0])
        return (
            encoder(rows, LENGTHS),
            cells.run_layers(decoder, rows, start),
            cells.layers_step(decoder, gates, start)[1][0],
        )

    for one, other in zip(found(1.0), found(2.0), strict=True):
        assert_close(one, other)
    encoder.eval()
    decoder.eval()
    for one, other in zip(found(1.0), found(2.0), strict=True):
        assert not torch.allclose(one, other)


def test_a_shared_vocabulary_has_one_embedding():
    for kind in (Vanilla, Bahdanau, Luong):
        model = build(kind, TOKENS, shared=True, tied=True)
        assert model.source is model.target
        assert model.read.weight is model.source.token.weight
        with pytest.raises(ValueError, match="one size, got 23 and 29"):
            build(kind, 23, 29, shared=True)


def test_invalid_inputs_raise():
    source, lengths, target = sentences()
    with pytest.raises(
        ValueError, match="a vanilla model has no attention weights; use bahdanau, luong or transformer"
    ):
        make_model("vanilla").look(source, lengths, target)
    with pytest.raises(ValueError, match="at most 17 tokens, got 18"):
        make_model("luong location")(source.repeat(1, 2)[:, :18], lengths, target)
    with pytest.raises(ValueError, match="states of one size, got 5 and 10: use Bilinear"):
        build(Luong, score=None, bidirectional=True)
    with pytest.raises(ValueError, match="radius must be a positive whole number, got 0"):
        build(Luong, radius=0)
    with pytest.raises(ValueError, match="below 29, the vocabulary, got 29"):
        make_model("bahdanau")(source + WORDS - int(source.max()), lengths, target)
    encoder, rows = RecurrentEncoder(RecurrentConfig(SIZE, HIDDEN)), torch.randn(3, 4, SIZE)
    with pytest.raises(ValueError, match="at least 1 and at most 4, the tokens given, got 0"):
        encoder(rows, torch.tensor([4, 0, 1]))
    with pytest.raises(ValueError, match="at least 1 and at most 4, the tokens given, got 5"):
        encoder(rows, torch.tensor([4, 5, 1]))
    with pytest.raises(ValueError, match=r"whole numbers \[3\], got shape \[2\]"):
        encoder(rows, torch.tensor([4, 1]))
    for setting in ("size", "hidden", "layers"):
        with pytest.raises(ValueError, match=f"{setting} must be a positive whole number, got 0"):
            build(Bahdanau, **{setting: 0})
