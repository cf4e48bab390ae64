"""Layers where torch reads the program instead of running it: compiled, exported, transformed by `torch.func`."""

import copy
import warnings

import onnxruntime
import pytest
import torch
from helpers.cases import rand
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call, grad, jvp, stack_module_state, vmap
from torch.testing import assert_close

import regard
from regard import masks, scores, weighing
from regard.layers import (
    Alibi,
    Attention,
    Block,
    Decoder,
    Encoder,
    FeedForward,
    MultiHeadAttention,
    Rotary,
    Sinusoidal,
)
from regard.models.language import language_model
from regard.models.transformer import TransformerConfig, text_encoder

pytestmark = pytest.mark.filterwarnings("ignore")  # torch's own, of its own deprecated parts
BATCH, LENGTH, SIZE, HEADS = 3, 7, 16, 2


def block(dropout=0.0):
    return Block(MultiHeadAttention(SIZE, HEADS, dropout=dropout), FeedForward(SIZE), dropout=dropout)


class Additive(Attention):
    """A score that is no inner product, of x to itself."""

    def __init__(self):
        super().__init__(SIZE, score=regard.scores.Additive(SIZE, SIZE, 5))

    def forward(self, x):
        return super().forward(x, x)


LAYERS = {
    "heads": lambda: MultiHeadAttention(SIZE, HEADS),
    "odd heads": lambda: MultiHeadAttention(SIZE, 4, positions=Rotary(4)),
    "alibi": lambda: MultiHeadAttention(SIZE, HEADS, positions=Alibi(HEADS)),
    "encoder": lambda: Encoder(2, block),
    "decoder": lambda: Decoder(2, block),
    "additive": Additive,
}


def made(name):
    torch.manual_seed(1)
    return LAYERS[name]().double()


@pytest.mark.parametrize("name", LAYERS)
def test_gradients_of_each_row_apart_are_those_of_the_rows(name):
    layer, x = made(name), rand(BATCH, LENGTH, SIZE)

    def loss(parameters, row):
        return functional_call(layer, parameters, (row.unsqueeze(0),)).square().sum()

    parameters = {name: parameter.detach() for name, parameter in layer.named_parameters()}
    found = vmap(grad(loss), in_dims=(None, 0))(parameters, x)
    for number, row in enumerate(x):
        layer.zero_grad()
        layer(row.unsqueeze(0)).square().sum().backward()
        for name, parameter in layer.named_parameters():
            assert_close(found[name][number], parameter.grad)


@pytest.mark.parametrize("name", LAYERS)
def test_several_models_run_as_one_and_have_derivatives_forward(name):
    models = [copy.deepcopy(made(name)) for _ in range(3)]
    for model in models:
        for parameter in model.parameters():
            nn.init.normal_(parameter)
    x, step = rand(BATCH, LENGTH, SIZE, seed=2), rand(BATCH, LENGTH, SIZE, seed=3)
    with torch.no_grad():
        found = vmap(lambda *state: functional_call(models[0], state, (x,)))(*stack_module_state(models))
        assert_close(found, torch.stack([model(x) for model in models]))
    _, derivative = jvp(models[1], (x,), (step,))
    near = 1e-6
    assert_close(
        derivative, (models[1](x + near * step) - models[1](x - near * step)) / (2 * near), rtol=1e-4, atol=1e-5
    )


def test_large_layers_are_transformed_too():
    """Those that compute the activation again, or attend by parts."""
    layer, x = FeedForward(64, 512), torch.randn(2, 1100, 64)
    by_rows = vmap(grad(lambda x: layer(x).square().sum()))(x)
    given = x.clone().requires_grad_()
    layer(given).square().sum().backward()
    assert_close(by_rows, given.grad, rtol=1e-4, atol=1e-5)
    query = rand(2, 300, 3)
    parts = vmap(lambda q: regard.attend_parts(q, q, q))(query)
    assert_close(parts.mean, regard.attend_parts(query, query, query).mean)


def test_what_is_dropped_differs_between_rows_of_vmap():
    layer, x = block(0.5), torch.ones(BATCH, 1, LENGTH, SIZE)
    first, second, _ = vmap(layer, randomness="different")(x)
    assert not torch.allclose(first, second)
    first, second, _ = vmap(layer, randomness="same")(x)
    assert_close(first, second)


@pytest.mark.slow
@pytest.mark.parametrize("name", LAYERS)
def test_compiled_layers_are_the_same_in_value_and_gradient(name):
    torch._dynamo.reset()
    layer, x = made(name), rand(BATCH, LENGTH, SIZE)
    expected, found = layer(x), torch.compile(layer, backend="aot_eager")(x)
    assert_close(found, expected)
    parameters = list(layer.parameters())
    slopes = [torch.autograd.grad(out.square().sum(), parameters) for out in (found, expected)]
    assert_close(*slopes)


CALLS = {
    "causal": {"mask": masks.causal},
    "window": {"mask": masks.window(3)},
    "padding": {"mask": masks.padding(torch.tensor([3, 9]))},
    "function": {"mask": lambda query, key: (query - key) % 3 == 0},
    "window and function": {"mask": masks.both(masks.window(4), lambda query, key: (query - key) % 2 == 0)},
    "bias by head": {
        "mask": lambda query, key: -(query - key).abs() * torch.tensor([[[0.5]], [[2.0]]], dtype=torch.float64)
    },
    "dropout": {"dropout": 0.3, "mask": masks.causal},
    "gaussian": {"score": scores.Gaussian(1.0)},
    "own score": {"score": lambda query, key: torch.tanh(query @ key.mT)},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CALLS)
def test_attend_is_compiled_in_one_piece_for_all_lengths(name):
    torch._dynamo.reset()
    frames = []

    def backend(graph, inputs):
        frames.append(graph)
        return aot_autograd(fw_compiler=lambda graph, inputs: graph)(graph, inputs)

    def attend(query):
        return regard.attend(query, query, query, **CALLS[name])

    compiled = torch.compile(attend, backend=backend, fullgraph=True)
    for length in (11, 17, 23, 40):
        query = torch.randn(2, 2, length, 16, dtype=torch.float64, requires_grad=True)
        results = []
        for function in (attend, compiled):
            torch.manual_seed(3)  # one seed drops the same weights
            mean = function(query)
            results.append([mean, *torch.autograd.grad(mean.square().sum(), query)])
        assert_close(*results)
    assert len(frames) < 4  # not one for each length


@pytest.mark.slow
def test_dropout_in_compiled_code_differs_from_call_to_call():
    torch._dynamo.reset()
    layer, x = MultiHeadAttention(SIZE, HEADS, dropout=0.5), torch.randn(BATCH, LENGTH, SIZE)
    compiled = torch.compile(layer)  # torch's default, which writes C++
    first, second = compiled(x), compiled(x)
    assert not torch.allclose(first, second)
    second.sum().backward()
    assert layer.output.weight.grad is not None


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gaussian", "rotary"])
def test_the_compiler_has_nothing_to_warn_of(name):
    """It warns the user of functions that are cached, of which silently wrong results are a risk."""
    torch._dynamo.reset()
    layer = Attention(SIZE, score=scores.Gaussian(1.0)) if name == "gaussian" else LAYERS["odd heads"]()
    x = torch.randn(BATCH, LENGTH, SIZE)
    call = (lambda x: layer(x, x)) if name == "gaussian" else layer
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.compile(call, backend="eager")(x)
    assert not [str(warning.message) for warning in caught if "cache" in str(warning.message)]


@pytest.mark.slow
@pytest.mark.parametrize("name", LAYERS)
def test_layers_are_compiled_in_one_piece(name):
    torch._dynamo.reset()
    layer, x = made(name), rand(BATCH, LENGTH, SIZE)
    assert_close(torch.compile(layer, backend="eager", fullgraph=True)(x), layer(x))


@pytest.mark.parametrize("name", [*LAYERS, "language model"])
def test_programs_are_exported_for_all_batches_and_lengths(name):
    if name == "language model":
        model = language_model(50, TransformerConfig(size=SIZE, heads=HEADS, blocks=1), context=64).eval()
        x, other = torch.randint(50, (2, 9)), torch.randint(50, (3, 21))
    else:
        model, x, other = made(name).eval(), rand(2, 9, SIZE), rand(3, 21, SIZE)
    sizes = {0: torch.export.Dim("batch", min=2), 1: torch.export.Dim("length", min=2, max=64)}
    exported = torch.export.export(model, (x,), dynamic_shapes=(sizes,), strict=False)
    assert not [node for node in exported.graph.nodes if "regard" in str(node.target)]  # torch's own operations only
    assert_close(exported.module()(other), model(other))


class Layers(nn.Sequential):
    """Several kinds of attention, one after the other."""

    def __init__(self):
        super().__init__(*(LAYERS[name]() for name in ("odd heads", "alibi", "additive", "encoder")))


ONNX = {
    "language model": lambda: language_model(50, TransformerConfig(size=SIZE, heads=HEADS, blocks=1), context=64),
    "text encoder": lambda: text_encoder(50, TransformerConfig(size=SIZE, heads=HEADS, blocks=1)),
    "layers": Layers,
}


@pytest.mark.slow  # torch traces a program, and onnxruntime reads it
@pytest.mark.parametrize("name", ONNX)
def test_models_and_layers_run_in_onnx(name, tmp_path):
    torch.manual_seed(1)
    model = ONNX[name]().eval()
    batch, length = torch.export.Dim("batch", min=2), torch.export.Dim("length", min=2, max=64)
    given, other = ([torch.randint(50, (rows, n))] for rows, n in ((2, 9), (3, 21)))
    sizes = [{0: batch, 1: length}]
    if name == "layers":
        given, other = [torch.randn(2, 9, SIZE)], [torch.randn(3, 21, SIZE)]
    if name == "text encoder":
        given, other = [*given, torch.tensor([9, 4])], [*other, torch.tensor([21, 1, 8])]
        sizes.append({0: batch})
    program = torch.onnx.export(model, tuple(given), dynamo=True, dynamic_shapes=tuple(sizes))
    program.save(tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    names = [one.name for one in session.get_inputs()]
    found = session.run(None, {name: x.numpy() for name, x in zip(names, other, strict=True)})[0]
    assert_close(torch.from_numpy(found), model(*other).detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", LAYERS)
def test_exported_layers_are_the_same_and_leave_nothing_behind(name):
    layer, x = made(name).eval(), rand(BATCH, LENGTH, SIZE)
    exported = torch.export.export(layer, (x,), strict=False).module()
    other = rand(BATCH, LENGTH, SIZE, seed=5)
    assert_close(exported(other), layer(other))


class Padded(MultiHeadAttention):
    """Lengths that come in, and are a mask within."""

    def forward(self, x, lengths):
        return super().forward(x, mask=regard.masks.padding(lengths))


def test_lengths_are_a_mask_where_torch_reads_the_program():
    layer, x, lengths = Padded(SIZE, HEADS).eval(), torch.randn(BATCH, LENGTH, SIZE), torch.tensor([7, 3, 1])
    exported = torch.export.export(layer, (x, lengths), strict=False).module()
    assert_close(exported(x, lengths), layer(x, lengths))
    one = vmap(lambda x, lengths: layer(x.unsqueeze(0), lengths.unsqueeze(0)).squeeze(0))
    assert_close(one(x, lengths), layer(x, lengths), rtol=1e-4, atol=1e-5)


def test_gradients_by_the_parameters_of_a_score_alone():
    """Queries and keys are not transformed, and too many for a matrix elsewhere."""
    score = regard.scores.Additive(5, 5, 3).double()
    x = rand(800, 5)

    def loss(parameters):
        return regard.attend(x, x, x, score=lambda *pair: functional_call(score, parameters, pair)).square().sum()

    parameters = {name: parameter.detach() for name, parameter in score.named_parameters()}
    found = grad(loss)(parameters)
    loss(dict(score.named_parameters())).backward()
    for name, parameter in score.named_parameters():
        assert_close(found[name], parameter.grad)


def test_no_table_of_a_stand_in_is_kept():
    layer, x = Sinusoidal(26, base=777.0), torch.randn(2, 5, 26)  # a table that nobody else has asked for
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        layer(mode.from_tensor(x))
    assert type(layer(x)) is torch.Tensor


WEIGHINGS = {
    "softmax": weighing.softmax,
    "sinks": weighing.sinks(0.3),
    "sigmoid": weighing.sigmoid(-1.0),
    "softpick": weighing.softpick,
    "linear": weighing.linear,
    "sparsemax": weighing.sparsemax,
    "entmax15": weighing.entmax15,
}


@pytest.mark.parametrize("name", WEIGHINGS)
def test_dense_has_second_derivatives(name):
    weigh = WEIGHINGS[name]
    query, key, value = (rand(2, 5, 3, seed=seed).requires_grad_() for seed in range(3))
    bias = rand(5, 5, seed=4).requires_grad_()

    def attend(query, key, value, bias):
        return regard.attend(query, key, value, mask=masks.both(masks.causal, bias), weigh=weigh, engine="dense")

    assert torch.autograd.gradgradcheck(attend, (query, key, value, bias))


def tanh_score(query, key):
    return torch.tanh(query @ key.mT)


@pytest.mark.parametrize("name", ["softmax", "softpick"])
@pytest.mark.parametrize("own_score", [True, False])
@pytest.mark.parametrize("constant", [True, False])
def test_other_engines_raise_for_second_derivatives(name, own_score, constant):
    """Also where the gradient of the output is a constant: torch's own decorator gives a wrong number there."""
    weigh, score = WEIGHINGS[name], tanh_score if own_score else scores.scaled_dot
    x, weight = rand(1, 2, 9, 8).requires_grad_(), rand(8, seed=1).requires_grad_()
    mean = regard.attend(x * weight, x, x, score=score, weigh=weigh, engine="stream")
    loss = mean.sum() if constant else mean.square().sum()
    [gradient] = torch.autograd.grad(loss, x, create_graph=True)
    assert_close(gradient.detach(), torch.autograd.grad(loss, x)[0])
    with pytest.raises(RuntimeError, match="first derivatives only: for second ones, attend with engine='dense'"):
        torch.autograd.grad(gradient.square().sum() + weight.sum(), weight)
