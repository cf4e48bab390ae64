"""A translator's networks, loss and search."""

import numpy as np
import pytest
import torch
from helpers.translation_cases import TINY
from torch.testing import assert_close

from regard import Translator
from regard.data.samples import dates
from regard.data.text import pair_batch
from regard.data.tokenizers import END, PADDING, START, train_vocabularies
from regard.decoding import beam, forbid
from regard.estimators.translation import training
from regard.estimators.translation.training import (
    length_limit,
    mean_loss,
    target_tokens,
    translate_tokens,
)
from regard.layers import Block, MultiHeadAttention

SOURCES, TARGETS = dates(20)
KNOWN = train_vocabularies(SOURCES, TARGETS, tokens="characters", count=0, joint=True, lower=False)


def network(model="bahdanau", **settings):
    return Translator(model, **TINY | settings)._build_network(KNOWN).eval()


def test_both_dropouts_reach_the_transformer():
    model = network(model="transformer", dropout=0.5, attention_dropout=0.25)
    assert {part.attend.dropout for part in model.modules() if isinstance(part, MultiHeadAttention)} == {0.25}
    assert {part.dropout.dropout for part in model.modules() if isinstance(part, Block)} == {0.5}


@pytest.mark.parametrize("model", ["rnn", "bahdanau", "luong", "transformer"])
def test_the_loss_is_the_mean_cross_entropy_of_target_tokens(model):
    batch = pair_batch([[5, 6, 7], [8]], [[9], [3, 4, 5, 6]])
    assert target_tokens(batch) == 7
    made = network(model=model)
    logits = made(batch.source, batch.lengths, batch.target[:, :-1])
    for smoothing in (0.0, 0.3):
        expected = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), batch.target[:, 1:].flatten(), ignore_index=PADDING, label_smoothing=smoothing
        )
        assert_close(mean_loss(made, batch, smoothing), expected)


@pytest.mark.parametrize("size", [1, 3])
def test_sentences_in_batches_get_the_same_tokens_as_alone(size, monkeypatch):
    monkeypatch.setattr(training, "SEARCHED_TOKENS", 100)
    model, limit, done = network(), length_limit(5, 30), []
    tokens = KNOWN.encode(["", *SOURCES, ""])
    together = translate_tokens(model, tokens, limit, size=size, penalty=1.0, progress=done.append)
    assert together[0] == together[-1] == []
    assert done == sorted(done)
    assert done[-1] == 22
    assert len(done) > 3
    alone = [translate_tokens(model, [source], limit, size=size, penalty=1.0)[0] for source in tokens]
    assert together == alone
    assert max(map(len, alone)) <= 31
    step = forbid(model.step, [PADDING, START])
    state = model.begin(torch.tensor([tokens[1]]), torch.tensor([len(tokens[1])]), 31)
    length = int(limit(np.array([len(tokens[1])]))[0])
    if size > 1:
        [[best]] = beam(step, state, torch.tensor([START]), end=END, length=length, size=size, penalty=1.0)
        assert best.tokens == alone[1]


def test_a_translation_may_be_as_long_as_the_longest_training_target():
    assert length_limit(45, 200)(np.array([1, 30, 500])).tolist() == [46, 81, 201]
