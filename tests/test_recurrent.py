"""The recurrent models against their equations, one sentence and one step at a time, in values and gradients."""

import importlib

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from regard.decoding import beam
from regard.models.recurrent import Location, RecurrentEncoder, bahdanau, cells, concat, encoder, luong, vanilla
from regard.scores import Additive, Bilinear

bahdanau_module = importlib.import_module("regard.models.recurrent.bahdanau")  # the function has its name

WORDS, TOKENS, SIZE, HIDDEN = 29, 23, 7, 5
LENGTHS = torch.tensor([11, 1, 4, 8])
M = 13


def location(state, _):
    return Location(state, room=17)


MODELS = {
    "vanilla": (vanilla, {}),
    "vanilla lstm": (vanilla, {"cell": nn.LSTM, "layers": 2, "both_ways": True, "maxout": False, "tied": True}),
    "vanilla cold": (vanilla, {"warm": False}),
    "vanilla cold lstm": (vanilla, {"warm": False, "cell": nn.LSTM}),
    "bahdanau": (bahdanau, {}),
    "bahdanau lstm": (bahdanau, {"cell": nn.LSTM, "layers": 3, "alignment": 3, "maxout": False, "tied": True}),
    "bahdanau one way": (bahdanau, {"both_ways": False, "layers": 2}),
    "luong dot": (luong, {"score": None}),
    "luong general": (luong, {"both_ways": True, "feeding": False, "tied": True}),
    "luong general fed": (luong, {"both_ways": True, "layers": 2, "tied": True}),
    "luong concat": (luong, {"score": concat, "cell": nn.GRU, "feeding": False, "layers": 2}),
    "luong location": (luong, {"score": location, "feeding": False}),
    "luong location fed": (luong, {"score": location, "radius": 2, "predicted": False}),
    "luong local-m": (luong, {"score": None, "radius": 2, "predicted": False, "feeding": False}),
    "luong local-p": (luong, {"radius": 3, "feeding": False}),
    "luong local-p fed": (luong, {"radius": 3, "score": concat, "both_ways": True}),
}
named = pytest.mark.parametrize("name", MODELS)


def made(name, **more):
    torch.manual_seed(3)
    build, settings = MODELS[name]
    model = build(WORDS, TOKENS, size=SIZE, hidden=HIDDEN, **settings, **more)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.5)
    return model.double()


def sentences():
    generator = torch.Generator().manual_seed(1)
    source = torch.randint(WORDS, (len(LENGTHS), int(LENGTHS.max())), generator=generator)
    return source, LENGTHS, torch.randint(TOKENS, (len(LENGTHS), M), generator=generator)


# The slow definition: vectors, one after the other.


def slow_cell(rnn, suffix, x, state):
    w, u, b, d = (getattr(rnn, f"{name}_{suffix}") for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"))
    size = rnn.hidden_size
    x, h = [(w @ x + b)[at : at + size] for at in range(0, len(w), size)], state[0]
    y = [(u @ h + d)[at : at + size] for at in range(0, len(w), size)]
    if len(x) == 3:
        reset, update = torch.sigmoid(x[0] + y[0]), torch.sigmoid(x[1] + y[1])
        return ((1 - update) * torch.tanh(x[2] + reset * y[2]) + update * h,)
    enter, forget, new, out = (a + b for a, b in zip(x, y, strict=True))
    memory = torch.sigmoid(forget) * state[1] + torch.sigmoid(enter) * torch.tanh(new)
    return torch.sigmoid(out) * torch.tanh(memory), memory


def slow_layer(rnn, suffix, xs):
    zero = xs[0].new_zeros(rnn.hidden_size)
    state, states = (zero, zero) if isinstance(rnn, nn.LSTM) else (zero,), []
    for x in xs:
        state = slow_cell(rnn, suffix, x, state)
        states.append(state[0])
    return states


def slow_encode(encoder, xs):
    """States of a sentence, and what each way has read when it is through."""
    for layer in range(encoder.rnn.num_layers):
        ahead = slow_layer(encoder.rnn, f"l{layer}", xs)
        if not encoder.both_ways:
            xs, last = ahead, (ahead[-1],)
            continue
        back = slow_layer(encoder.rnn, f"l{layer}_reverse", xs[::-1])[::-1]
        xs, last = [torch.cat(pair) for pair in zip(ahead, back, strict=True)], (ahead[-1], back[0])
    return torch.stack(xs), last


def slow_start(model, x):
    start = model.start
    parts = torch.tanh(start.linear.weight @ x + start.linear.bias).split(HIDDEN)
    return [tuple(parts[at : at + start.kinds]) for at in range(0, len(parts), start.kinds)]


def slow_stack(rnn, x, states):
    made = []
    for layer, state in enumerate(states):
        made.append(slow_cell(rnn, f"l{layer}", x, state))
        x = made[-1][0]
    return made


def slow_output(output, state, context, word):
    t = output.state.weight @ state + output.state.bias + output.context.weight @ context + output.word.weight @ word
    return torch.maximum(t[::2], t[1::2]) if output.maxout else torch.tanh(t)


def slow_scores(score, query, memory):
    if isinstance(score, Additive):
        project = score.query_projection
        query = project.weight @ query + (0 if project.bias is None else project.bias)
        return torch.stack([score.weight @ torch.tanh(query + score.key_projection.weight @ h) for h in memory])
    if isinstance(score, Bilinear):
        return torch.stack([query @ score.weight @ h for h in memory])
    if isinstance(score, Location):
        return torch.stack([row @ query for row in score.weight[: len(memory)]])
    return torch.stack([query @ h for h in memory])


def slow_vanilla(model, memory, last, words):
    context = torch.cat(last)
    zero = context.new_zeros(HIDDEN)
    lstm = isinstance(model.decoder, nn.LSTM)
    states = slow_start(model, context) if model.start else [(zero, zero) if lstm else (zero,)]
    for word in words:
        states = slow_stack(model.decoder, torch.cat([word, context]), states)
        yield slow_output(model.output, states[-1][0], context, word), None


def slow_bahdanau(model, memory, last, words):
    states = slow_start(model, last[-1])
    for word in words:
        weight = torch.softmax(slow_scores(model.score, states[0][0], memory), dim=0)
        context = weight @ memory
        first = slow_cell(model.decoder, "l0", torch.cat([word, context]), states[0])
        states = [first, *(slow_stack(model.upper, first[0], states[1:]) if model.upper else [])]
        yield slow_output(model.output, states[-1][0], context, word), weight


def slow_luong(model, memory, last, words):
    states, attention = slow_start(model, torch.cat(last)), model.attention
    read, n = memory.new_zeros(model.output.out_features), len(memory)
    for t, word in enumerate(words):
        states = slow_stack(model.decoder, torch.cat([word, read]) if model.feeding else word, states)
        query = states[-1][0]
        scores, place = slow_scores(attention.score, query, memory), torch.arange(n)
        if not hasattr(attention, "radius"):
            weight = torch.softmax(scores, dim=0)
        elif attention.centre is None:
            seen = (place - min(t, n - 1)).abs() <= attention.radius
            weight = torch.softmax(scores.masked_fill(~seen, -torch.inf), dim=0)
        else:
            inner, outer = attention.centre[0].weight, attention.centre[2].weight[0]
            centre = n * torch.sigmoid(outer @ torch.tanh(inner @ query))
            seen = (place - centre).abs() <= attention.radius
            fall = torch.exp(-((place - centre) ** 2) / (2 * (attention.radius / 2) ** 2))
            weight = torch.softmax(scores.masked_fill(~seen, -torch.inf), dim=0) * fall
        read = torch.tanh(model.output.weight @ torch.cat([weight @ memory, query]))
        yield read, weight


def slow(name, model, source, lengths, target):
    """Logits [batch, m, vocabulary], and weights [batch, m, n] with 0 at padding."""
    decode = {"vanilla": slow_vanilla, "bahdanau": slow_bahdanau, "luong": slow_luong}[name.split()[0]]
    logits, weights = [], []
    for words, length, tokens in zip(source, lengths.tolist(), target, strict=True):
        memory, last = slow_encode(model.encoder, list(model.source.token.weight[words[:length]]))
        found = list(decode(model, memory, last, model.target.token.weight[tokens]))
        logits.append(torch.stack([model.read.weight @ row + model.read.bias for row, _ in found]))
        rest = source.shape[1] - length
        weights.append([nn.functional.pad(weight, (0, rest)) for _, weight in found if weight is not None])
    return torch.stack(logits), torch.stack([torch.stack(one) for one in weights]) if weights[0] else None


def gradients(logits, model):
    pull = torch.randn(logits.shape, generator=torch.Generator().manual_seed(2), dtype=logits.dtype)
    return torch.autograd.grad((logits * pull).sum(), list(model.parameters()))


@named
def test_models_are_their_equations(name):
    model, batch = made(name), sentences()
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
def test_fused_loops_and_torchs_steps_are_the_same(name, monkeypatch):
    model, batch = made(name), sentences()
    fused = model(*batch)
    before = gradients(fused, model)
    for module in (bahdanau_module, cells, encoder):
        monkeypatch.setattr(module, "fusible", lambda *_: False)
    plain = model(*batch)
    assert_close(plain, fused, rtol=1e-10, atol=1e-10)
    assert_close(gradients(plain, model), before, rtol=1e-8, atol=1e-10)


def test_a_score_with_another_activation_is_called(monkeypatch):
    model, batch = made("bahdanau"), sentences()
    model.score.activation = torch.sigmoid
    weight = model.look(*batch)
    assert not torch.allclose(weight, made("bahdanau").look(*batch))
    monkeypatch.setattr(bahdanau_module, "fusible", lambda *_: False)
    assert_close(model.look(*batch), weight)


@named
def test_steps_are_the_whole_pass(name):
    model, (source, lengths, target) = made(name).eval(), sentences()
    whole = model(source, lengths, target).log_softmax(dim=-1)
    with torch.inference_mode():
        state = model.begin(source, lengths, M)
        for place in range(M):
            state, found = model.step(state, target[:, place])
            assert_close(found, whole[:, place], rtol=1e-9, atol=1e-9)


@named
def test_padding_does_not_matter(name):
    model, (source, lengths, target) = made(name), sentences()
    whole = model(source, lengths, target)
    other = torch.cat([source, torch.zeros(len(source), 3, dtype=torch.long)], dim=1)
    for row, length in enumerate(lengths.tolist()):
        alone = model(source[row : row + 1, :length], lengths[row : row + 1], target[row : row + 1])
        assert_close(alone[0], whole[row], rtol=1e-9, atol=1e-9)
        other[row, length:] = (row + 5) % WORDS
    assert_close(model(other, lengths, target), whole, rtol=1e-9, atol=1e-9)


@named
def test_logits_are_read_with_the_reader(name):
    model, batch = made(name), sentences()
    weight, bias = model.reader
    assert weight.shape == (TOKENS, model.rows(*batch).shape[-1])
    assert_close(model.rows(*batch) @ weight.T + bias, model(*batch))
    assert (weight is model.target.token.weight) == bool(MODELS[name][1].get("tied"))


@named
def test_what_a_beam_says_of_its_best_is_what_the_whole_pass_says(name):
    model, (source, lengths, _) = made(name).eval(), sentences()
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
def test_dropout_is_of_training_alone(name):
    model, batch = made(name, dropout=0.5), sentences()
    assert not torch.allclose(model(*batch), model(*batch))
    model.eval()
    assert_close(model(*batch), made(name)(*batch))


def test_one_vocabulary_has_one_set_of_vectors():
    for build in (vanilla, bahdanau, luong):
        model = build(TOKENS, TOKENS, size=SIZE, hidden=HIDDEN, shared=True, tied=True)
        assert model.source is model.target
        assert model.read.weight is model.source.token.weight
        with pytest.raises(ValueError, match="one size, got 23 and 29"):
            build(23, 29, size=SIZE, hidden=HIDDEN, shared=True)


def test_what_cannot_be_done_says_why():
    source, lengths, target = sentences()
    with pytest.raises(ValueError, match="without attention looks at nothing"):
        made("vanilla").look(source, lengths, target)
    with pytest.raises(ValueError, match="at most 17 tokens, got 18"):
        made("luong location")(source.repeat(1, 2)[:, :18], lengths, target)
    with pytest.raises(ValueError, match="states of one size, got 5 and 10: use Bilinear"):
        luong(WORDS, TOKENS, size=SIZE, hidden=HIDDEN, score=None, both_ways=True)
    with pytest.raises(ValueError, match="radius must be a positive whole number, got 0"):
        luong(WORDS, TOKENS, size=SIZE, hidden=HIDDEN, radius=0)
    with pytest.raises(ValueError, match="below 29, the vocabulary, got 29"):
        made("bahdanau")(source + WORDS - int(source.max()), lengths, target)
    reader, rows = RecurrentEncoder(SIZE, HIDDEN), torch.randn(3, 4, SIZE)
    with pytest.raises(ValueError, match="at least 1 and at most 4, the tokens given, got 0"):
        reader(rows, torch.tensor([4, 0, 1]))
    with pytest.raises(ValueError, match="at least 1 and at most 4, the tokens given, got 5"):
        reader(rows, torch.tensor([4, 5, 1]))
    with pytest.raises(ValueError, match=r"whole numbers \[3\], got shape \[2\]"):
        reader(rows, torch.tensor([4, 1]))
    for setting in ("size", "hidden", "layers"):
        with pytest.raises(ValueError, match=f"{setting} must be a positive whole number, got 0"):
            bahdanau(WORDS, TOKENS, **{"size": SIZE, "hidden": HIDDEN, setting: 0})
