"""The recurrent models by their equations: vectors, one after the other."""

import torch
from torch import nn

from regard.models.recurrent import Location
from regard.scores import Additive, Bilinear


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
    """States of a sentence, and the final state of each direction."""
    for layer in range(encoder.rnn.num_layers):
        ahead = slow_layer(encoder.rnn, f"l{layer}", xs)
        if not encoder.bidirectional:
            xs, last = ahead, (ahead[-1],)
            continue
        back = slow_layer(encoder.rnn, f"l{layer}_reverse", xs[::-1])[::-1]
        xs, last = [torch.cat(pair) for pair in zip(ahead, back, strict=True)], (ahead[-1], back[0])
    return torch.stack(xs), last


def slow_start(model, x):
    start = model.start
    parts = torch.tanh(start.linear.weight @ x + start.linear.bias).split(model.decoder.hidden_size)
    return [tuple(parts[at : at + start.kinds]) for at in range(0, len(parts), start.kinds)]


def slow_stack(rnn, x, states):
    new_states = []
    for layer, state in enumerate(states):
        new_states.append(slow_cell(rnn, f"l{layer}", x, state))
        x = new_states[-1][0]
    return new_states


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
    zero = context.new_zeros(model.decoder.hidden_size)
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
        scores, position = slow_scores(attention.score, query, memory), torch.arange(n)
        if not hasattr(attention, "radius"):
            weight = torch.softmax(scores, dim=0)
        elif attention.centre is None:
            inside = (position - min(t, n - 1)).abs() <= attention.radius
            weight = torch.softmax(scores.masked_fill(~inside, -torch.inf), dim=0)
        else:
            inner, outer = attention.centre[0].weight, attention.centre[2].weight[0]
            centre = n * torch.sigmoid(outer @ torch.tanh(inner @ query))
            inside = (position - centre).abs() <= attention.radius
            falloff = torch.exp(-((position - centre) ** 2) / (2 * (attention.radius / 2) ** 2))
            weight = torch.softmax(scores.masked_fill(~inside, -torch.inf), dim=0) * falloff
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
