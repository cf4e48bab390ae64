"""Encoder-decoder and encoder: steps with a cache equal the whole pass, padding has no influence, errors."""

import pytest
import torch
from torch.testing import assert_close

from regard.layers import Block, MultiHeadAttention
from regard.models.transformer import Embedding, TransformerConfig, text_encoder, transformer


def test_steps_equal_the_whole_pass():
    model = transformer(29, 23, TransformerConfig(blocks=2, heads=2, size=12, hidden=17)).eval()
    source, lengths, target = torch.randint(29, (5, 7)), torch.tensor([7, 1, 3, 6, 5]), torch.randint(23, (5, 11))
    with torch.inference_mode():
        whole = model(source, lengths, target).log_softmax(dim=-1)
        state = model.begin(source, lengths, max_length=11)
        for index in range(11):
            state, log_p = model.step(state, target[:, index])
            assert_close(log_p, whole[:, index], atol=1e-5, rtol=1e-5)


def test_padding_has_no_influence():
    model = transformer(29, 23, TransformerConfig(blocks=2, heads=2, size=12)).eval()
    encoder = text_encoder(29, TransformerConfig(blocks=2, heads=3, size=12)).eval()
    source, target = torch.randint(29, (3, 7)), torch.randint(23, (3, 5))
    lengths = torch.tensor([7, 2, 4])
    padded = torch.cat([source, torch.randint(29, (3, 4))], dim=1)
    for row, length in enumerate(lengths):
        padded[row, length:] = torch.randint(29, (11 - int(length),))
    assert_close(model(padded, lengths, target), model(source, lengths, target))
    for row, length in enumerate(lengths):
        alone = source[row : row + 1, :length]
        assert_close(encoder(padded, lengths)[row, :length], encoder(alone)[0])


def test_lengths_are_checked():
    model = transformer(29, 23, TransformerConfig(blocks=1, heads=2, size=12)).eval()
    encoder = text_encoder(29, TransformerConfig(blocks=1, heads=3, size=12)).eval()
    source, target = torch.randint(29, (3, 7)), torch.randint(23, (3, 5))
    model(source, torch.tensor([7, 2, 0]), target)
    for run in (lambda lengths: model(source, lengths, target), lambda lengths: encoder(source, lengths)):
        with pytest.raises(ValueError, match="lengths must be at least 0 and at most 7, the tokens given, got 8"):
            run(torch.tensor([7, 8, 4]))
        with pytest.raises(ValueError, match=r"lengths must be whole numbers \[3\], got shape \[2\]"):
            run(torch.tensor([7, 4]))


def test_a_shared_vocabulary_has_one_embedding():
    model = transformer(23, 23, TransformerConfig(blocks=1, heads=2, size=12), shared=True)
    assert model.source is model.target
    with pytest.raises(ValueError, match="one size, got 23 and 29"):
        transformer(23, 29, TransformerConfig(blocks=1, heads=2, size=12), shared=True)


def test_attention_weights_have_their_own_dropout():
    model = transformer(29, 23, TransformerConfig(blocks=2, heads=2, size=12, dropout=0.5, attention_dropout=0.25))
    assert {part.attend.dropout for part in model.modules() if isinstance(part, MultiHeadAttention)} == {0.25}
    assert {part.dropout.p for part in model.modules() if isinstance(part, Block | Embedding)} == {0.5}
