"""The language model: steps with a cache equal the whole pass, the past does not depend on the future, errors."""

import pytest
import torch
from torch.testing import assert_close

from regard.decoding import beam, greedy, sample
from regard.layers import (
    Alibi,
    Block,
    Decoder,
    FeedForward,
    Heads,
    LearnedPositions,
    MultiHeadAttention,
    Rotary,
    Sinusoidal,
    SlidingWindow,
    swiglu,
)
from regard.models.language import LanguageModel, language_model
from regard.models.transformer import Embedding, TransformerConfig


def llama(vocabulary=23, size=24, context=19):
    return LanguageModel(
        Embedding(vocabulary, size),
        Decoder(
            2,
            lambda: Block(
                MultiHeadAttention(size, Heads(6, kv=3), positions=Rotary(4), bias=False),
                FeedForward(size, 31, activation=swiglu, bias=False),
                norm=torch.nn.RMSNorm,
            ),
            norm=torch.nn.RMSNorm(size),
        ),
        context=context,
        read=torch.nn.Linear(size, vocabulary, bias=False),
    )


@pytest.mark.parametrize(
    "make", [lambda: language_model(23, TransformerConfig(blocks=3, heads=2, size=10), context=19), llama]
)
def test_steps_equal_the_whole_pass(make):
    model = make().eval()
    tokens = torch.randint(23, (5, 17))
    with torch.inference_mode():
        whole = model(tokens).log_softmax(dim=-1)
        cache = model.begin(tokens[:, :7], max_length=17)
        for index in range(7, 17):
            cache, log_p = model.step(cache, tokens[:, index])
            assert_close(log_p, whole[:, index], atol=1e-5, rtol=1e-5)
        assert cache.length == 17


def with_positions(attention=None, added=None, heads=6):
    """A model of 24 random positions of any kind."""
    embedding = Embedding(23, 24, positions=added)

    def block():
        layer = MultiHeadAttention(24, Heads(heads, kv=3), positions=attention)
        return Block(layer, FeedForward(24, 31, activation=swiglu))

    model = LanguageModel(embedding, Decoder(2, block), context=24)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return model.eval()


POSITIONS = {
    "learned": lambda: with_positions(added=LearnedPositions(24, 24)),
    "sinusoidal": lambda: with_positions(added=Sinusoidal(24)),
    "rotary": lambda: with_positions(Rotary(4)),
    "alibi": lambda: with_positions(Alibi(6)),
    "window": lambda: with_positions(SlidingWindow(2, Rotary(4))),
}
PROMPTS = [[3, 1, 4, 1, 5, 9, 2], [6], [5, 3], [8, 9, 7, 9, 3, 2, 3], [2, 2, 2, 2]]


@pytest.mark.parametrize("make", POSITIONS.values(), ids=POSITIONS)
@torch.inference_mode()
def test_prompts_of_unequal_length_give_the_same_tokens_as_alone(make):
    model = make()

    def write(prompts, seeds):
        """Greedy, beam and samples, for all of the prompts at once."""
        best = greedy(model.step, *model.read_prompts(prompts), end=0, length=9)
        ranked = beam(model.step, *model.read_prompts(prompts), end=0, length=9, size=3, keep=2)
        generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        start = model.read_prompts(prompts, max_length=16)
        drawn = sample(model.step, *start, end=0, length=9, generator=generators)
        return [row.tokens for row in best], [[one.tokens for one in row] for row in ranked], torch.stack([*drawn])

    together, number = write(PROMPTS, range(5)), 0
    for number, prompt in enumerate(PROMPTS):
        alone = write([prompt], [number])
        assert together[0][number] == alone[0][0]
        assert together[1][number] == alone[1][0]
        drawn = [token for token in together[2][:, number].tolist() if token >= 0]
        assert drawn == alone[2].flatten().tolist()
    assert len({*map(tuple, together[0])}) > 1


@pytest.mark.parametrize("make", POSITIONS.values(), ids=POSITIONS)
@torch.inference_mode()
def test_log_probabilities_after_unequal_prompts_are_those_of_the_whole_pass(make):
    model, lengths, tokens = make(), torch.tensor([6, 0, 1, 6, 3]), torch.randint(23, (5, 6))
    cache, more = model.begin(tokens, lengths=lengths), torch.randint(23, (5, 4))
    assert cache.start.tolist() == lengths.tolist()
    for index in range(4):
        cache, log_p = model.step(cache, more[:, index])
        for row, length in enumerate(lengths.tolist()):
            whole = torch.cat([tokens[row, :length], more[row, : index + 1]])
            assert_close(log_p[row], model(whole[None])[0, -1].log_softmax(dim=-1), atol=1e-5, rtol=1e-5)


def test_wrong_prompts_raise():
    model = with_positions()
    for prompts, got in (([], "no prompt"), ([[1], []], r"prompt 1 of shape \[0\]"), ([[[1]]], r"0 of shape \[1, 1\]")):
        with pytest.raises(ValueError, match=rf"at least one sequence of at least one token, got .*{got}"):
            model.read_prompts(prompts)
    with pytest.raises(ValueError, match="lengths must be at least 0 and at most 3, the tokens given, got 4"):
        model.begin(torch.zeros(2, 3, dtype=torch.long), lengths=torch.tensor([4, 1]))
    with torch.inference_mode(), pytest.raises(ValueError, match="context is at most 24 tokens, got 25"):
        list(sample(model.step, *model.read_prompts([[1] * 20, [2]]), length=9))


def test_the_output_does_not_depend_on_later_tokens():
    model = language_model(23, TransformerConfig(blocks=2, heads=2, size=10), context=19).eval()
    tokens = torch.randint(23, (3, 11))
    other = tokens.clone()
    other[:, 6:] = (other[:, 6:] + 1) % 23
    assert_close(model(tokens)[:, :6], model(other)[:, :6])
    assert (model(tokens)[:, 6:] - model(other)[:, 6:]).abs().max() > 1e-4


def test_the_loss_is_that_of_the_next_token():
    model = language_model(23, TransformerConfig(blocks=2, heads=2, size=10), context=19)
    tokens = torch.randint(23, (3, 11))
    log_p = model(tokens).log_softmax(dim=-1)
    slow = -sum(log_p[row, index, tokens[row, index + 1]] for row in range(3) for index in range(10)) / 30
    assert_close(model.loss(tokens), slow)


def test_initial_weights():
    model = language_model(997, TransformerConfig(blocks=8, heads=4, size=64, bias=True), context=101)
    assert model.embedding.token.weight.std().item() == pytest.approx(0.02, rel=0.05)
    narrow = model.decoder.blocks[3].attention.output.weight.std().item()
    assert narrow == pytest.approx(0.02 / 4, rel=0.1)
    assert not model.decoder.blocks[0].feed_forward.input.bias.any()
    # The untrained model predicts all tokens alike: log 997.
    assert model.loss(torch.randint(997, (5, 90))).item() == pytest.approx(6.905, abs=0.1)


def test_wrong_tokens_raise():
    model = language_model(23, TransformerConfig(blocks=1, heads=2, size=10), context=19)
    with pytest.raises(ValueError, match="context is at most 19 tokens, got 20"):
        model(torch.zeros(1, 20, dtype=torch.long))
    with pytest.raises(ValueError, match="at least 0 and below 23, the vocabulary, got 23"):
        model(torch.tensor([[1, 23]]))
    with pytest.raises(ValueError, match="at least 0 and below 23, the vocabulary, got -1"):
        model(torch.tensor([[1, -1]]))
    with pytest.raises(ValueError, match=r"whole numbers \[batch, length\], got shape \[3\]"):
        model(torch.tensor([1, 2, 3]))
    with pytest.raises(ValueError, match="heads must divide size, got size=10 and heads=3"):
        language_model(23, TransformerConfig(blocks=1, heads=3, size=10))
    with pytest.raises(ValueError, match=r"at least 2 tokens, .* got shape \[3, 1\]"):
        model.loss(torch.zeros(3, 1, dtype=torch.long))
    with torch.inference_mode():
        cache = model.begin(torch.zeros(1, 19, dtype=torch.long))
        with pytest.raises(ValueError, match="context is at most 19 tokens, got 20"):
            model.step(cache, torch.tensor([1]))
