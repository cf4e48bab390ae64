"""The Transformer and the language model: what they may see, and that steps with a cache are the whole pass."""

import pytest
import torch
from torch.testing import assert_close

from regard.layers import Rotary
from regard.layers.blocks import Block, Decoder
from regard.layers.feed_forward import FeedForward, swiglu
from regard.layers.multi_head import MultiHeadAttention
from regard.models.language import LanguageModel, language_model
from regard.models.transformer import Embedding, text_encoder, transformer


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def llama(vocabulary=23, size=24, context=19):
    return LanguageModel(
        Embedding(vocabulary, size),
        Decoder(
            2,
            lambda: Block(
                MultiHeadAttention(size, 6, kv_heads=3, positions=Rotary(4), bias=False),
                FeedForward(size, 31, activation=swiglu, bias=False),
                norm=torch.nn.RMSNorm,
            ),
            norm=torch.nn.RMSNorm(size),
        ),
        context=context,
        read=torch.nn.Linear(size, vocabulary, bias=False),
    )


@pytest.mark.parametrize("make", [lambda: language_model(23, context=19, blocks=3, heads=2, size=10), llama])
def test_steps_of_a_language_model_are_the_whole_pass(make):
    model = make().eval()
    tokens = torch.randint(23, (5, 17))
    with torch.inference_mode():
        whole = model(tokens).log_softmax(dim=-1)
        cache = model.begin(tokens[:, :7], max_length=17)
        for place in range(7, 17):
            cache, found = model.step(cache, tokens[:, place])
            assert_close(found, whole[:, place], atol=1e-5, rtol=1e-5)
        assert cache.length == 17


def test_the_past_does_not_see_the_future():
    model = language_model(23, context=19, blocks=2, heads=2, size=10).eval()
    tokens = torch.randint(23, (3, 11))
    other = tokens.clone()
    other[:, 6:] = (other[:, 6:] + 1) % 23
    assert_close(model(tokens)[:, :6], model(other)[:, :6])
    assert (model(tokens)[:, 6:] - model(other)[:, 6:]).abs().max() > 1e-4


def test_the_loss_is_of_the_next_token():
    model = language_model(23, context=19, blocks=2, heads=2, size=10)
    tokens = torch.randint(23, (3, 11))
    log_p = model(tokens).log_softmax(dim=-1)
    slow = -sum(log_p[row, place, tokens[row, place + 1]] for row in range(3) for place in range(10)) / 30
    assert_close(model.loss(tokens), slow)


def test_weights_start_as_they_should():
    model = language_model(997, context=101, blocks=8, heads=4, size=64, bias=True)
    assert model.embedding.token.weight.std().item() == pytest.approx(0.02, rel=0.05)
    narrow = model.decoder.blocks[3].attention.output.weight.std().item()
    assert narrow == pytest.approx(0.02 / 4, rel=0.1)
    assert not model.decoder.blocks[0].feed_forward.input.bias.any()
    # At the start nothing is known: the loss is that of a guess.
    assert model.loss(torch.randint(997, (5, 90))).item() == pytest.approx(6.905, abs=0.1)


def test_a_translation_step_by_step_is_the_whole_pass():
    model = transformer(29, 23, blocks=2, heads=2, size=12, hidden=17).eval()
    source, lengths, target = torch.randint(29, (5, 7)), torch.tensor([7, 1, 3, 6, 5]), torch.randint(23, (5, 11))
    with torch.inference_mode():
        whole = model(source, lengths, target).log_softmax(dim=-1)
        state = model.begin(source, lengths, max_length=11)
        for place in range(11):
            state, found = model.step(state, target[:, place])
            assert_close(found, whole[:, place], atol=1e-5, rtol=1e-5)


def test_padding_is_not_looked_at():
    model = transformer(29, 23, blocks=2, heads=2, size=12).eval()
    encoder = text_encoder(29, blocks=2, heads=3, size=12).eval()
    source, target = torch.randint(29, (3, 7)), torch.randint(23, (3, 5))
    lengths = torch.tensor([7, 2, 4])
    padded = torch.cat([source, torch.randint(29, (3, 4))], dim=1)
    for row, length in enumerate(lengths):
        padded[row, length:] = torch.randint(29, (11 - int(length),))
    assert_close(model(padded, lengths, target), model(source, lengths, target))
    for row, length in enumerate(lengths):
        alone = source[row : row + 1, :length]
        assert_close(encoder(padded, lengths)[row, :length], encoder(alone)[0])


def test_a_sequence_is_no_longer_than_its_tokens():
    model = transformer(29, 23, blocks=1, heads=2, size=12).eval()
    encoder = text_encoder(29, blocks=1, heads=3, size=12).eval()
    source, target = torch.randint(29, (3, 7)), torch.randint(23, (3, 5))
    model(source, torch.tensor([7, 2, 0]), target)
    for run in (lambda lengths: model(source, lengths, target), lambda lengths: encoder(source, lengths)):
        with pytest.raises(ValueError, match="lengths must be at most 7, the tokens there are, got 8"):
            run(torch.tensor([7, 8, 4]))
        with pytest.raises(ValueError, match=r"lengths must be \[3\], one a sequence, got shape \[2\]"):
            run(torch.tensor([7, 4]))


def test_one_vocabulary_has_one_set_of_vectors():
    model = transformer(23, 23, blocks=1, heads=2, size=12, shared=True)
    assert model.source is model.target
    with pytest.raises(ValueError, match="one size, got 23 and 29"):
        transformer(23, 29, blocks=1, heads=2, size=12, shared=True)


def test_what_cannot_be_read_says_why():
    model = language_model(23, context=19, blocks=1, heads=2, size=10)
    with pytest.raises(ValueError, match="context is 19 tokens, got 20"):
        model(torch.zeros(1, 20, dtype=torch.long))
    with pytest.raises(ValueError, match="at least 0 and below 23, the vocabulary, got 23"):
        model(torch.tensor([[1, 23]]))
    with pytest.raises(ValueError, match="at least 0 and below 23, the vocabulary, got -1"):
        model(torch.tensor([[1, -1]]))
    with pytest.raises(ValueError, match=r"whole numbers \[batch, length\], got shape \[3\]"):
        model(torch.tensor([1, 2, 3]))
    with pytest.raises(ValueError, match="heads must divide size, got size=10 and heads=3"):
        language_model(23, heads=3, size=10)
    with pytest.raises(ValueError, match=r"at least 2 tokens, .* got shape \[3, 1\]"):
        model.loss(torch.zeros(3, 1, dtype=torch.long))
    with torch.inference_mode():
        cache = model.begin(torch.zeros(1, 19, dtype=torch.long))
        with pytest.raises(ValueError, match="context is 19 tokens, got 20"):
            model.step(cache, torch.tensor([1]))


def test_weights_have_a_dropout_of_their_own():
    model = transformer(29, 23, blocks=2, heads=2, size=12, dropout=0.5, attention_dropout=0.25)
    assert {part.attend.dropout for part in model.modules() if isinstance(part, MultiHeadAttention)} == {0.25}
    assert {part.dropout.dropout for part in model.modules() if isinstance(part, Block | Embedding)} == {0.5}
