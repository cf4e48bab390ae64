"""A translator's training data (split, filter, BPE-dropout), networks, loss and search."""

import warnings
from functools import partial

import numpy as np
import pytest
import torch
from helpers.translation_cases import TINY
from torch.testing import assert_close

from regard import Translator
from regard.data.samples import dates
from regard.data.text import Pairs, pair_batch
from regard.data.tokenizers import END, PADDING, START, train_vocabularies
from regard.decoding import beam, forbid
from regard.estimators.common import predicted_tokens
from regard.estimators.translation import training
from regard.estimators.translation.training import (
    bleu_tokenizer,
    length_limit,
    mean_loss,
    prepare_corpus,
    tokens_by_epoch,
    translate_tokens,
)
from regard.layers import Block, MultiHeadAttention

SOURCES, TARGETS = dates(20)
KNOWN = train_vocabularies(SOURCES, TARGETS, tokens="characters", count=0, joint=True, lower=False)

CHARACTERS = partial(train_vocabularies, tokens="characters", count=0, joint=True, lower=False)
PIECES = partial(train_vocabularies, tokens="pieces", count=300, joint=True, lower=False)
USUAL = {"longest": 200, "validation_fraction": 0.2, "seed": 0}


def network(model="bahdanau", **settings):
    return Translator(model, **TINY | settings)._build_network(KNOWN).eval()


def test_both_dropouts_reach_the_transformer():
    model = network(model="transformer", dropout=0.5, attention_dropout=0.25)
    assert {part.attend.dropout for part in model.modules() if isinstance(part, MultiHeadAttention)} == {0.25}
    assert {part.dropout.p for part in model.modules() if isinstance(part, Block)} == {0.5}


@pytest.mark.parametrize("model", ["rnn", "bahdanau", "luong", "transformer"])
def test_the_loss_is_the_mean_cross_entropy_of_target_tokens(model):
    batch = pair_batch([[5, 6, 7], [8]], [[9], [3, 4, 5, 6]])
    assert predicted_tokens(batch.target) == 7
    made = network(model=model)
    logits = made(batch.source, batch.lengths, batch.target[:, :-1])
    for smoothing in (0.0, 0.3):
        expected = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), batch.target[:, 1:].flatten(), ignore_index=PADDING, label_smoothing=smoothing
        )
        assert_close(mean_loss(made, batch, smoothing), expected)


@pytest.mark.slow
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


def test_validation_pairs_are_a_random_part_and_all_others_are_trained_on():
    pairs = Pairs(*dates(60))
    corpus = prepare_corpus(pairs, None, CHARACTERS, **USUAL)
    assert len(corpus.validation.sources) == 12
    both = [*zip(*corpus.validation, strict=True), *zip(*corpus.training, strict=True)]
    assert sorted(both) == sorted(zip(*pairs, strict=True))
    assert corpus.vocabularies.decode(corpus.tokens[1]) == corpus.training.targets
    assert corpus.longest_target == 10
    same, other = (prepare_corpus(pairs, None, CHARACTERS, **USUAL | {"seed": seed}) for seed in (0, 1))
    assert same.validation == corpus.validation != other.validation
    assert corpus.given == pairs


def test_vocabularies_are_learned_from_the_training_pairs_alone():
    given = []

    def make(sources, targets):
        given.append((sources, targets))
        return CHARACTERS(sources, targets)

    corpus = prepare_corpus(Pairs(*dates(60)), None, make, **USUAL)
    assert given == [tuple(corpus.training)]


def test_dropped_joins_differ_between_epochs_and_stop_at_the_longest():
    with pytest.warns(UserWarning, match="pairs are left out"):
        corpus = prepare_corpus(Pairs(*dates(60, seed=5)), None, PIECES, **USUAL | {"longest": 17})
    tokens = tokens_by_epoch(corpus, 0.5, 0)
    first, second = tokens(0), tokens(1)
    assert first == tokens(0) != second
    assert first[0] != corpus.tokens[0]
    assert first[1] != corpus.tokens[1]
    assert corpus.vocabularies.decode(first[1]) == corpus.vocabularies.decode(corpus.tokens[1])
    assert max(map(len, first[0])) <= 17
    assert tokens_by_epoch(corpus, 0.0, 0)(1) is corpus.tokens


def test_validation_pairs_with_an_empty_side_are_left_out():
    sources, targets = dates(6)
    validation = [*sources, "", "x"], [*targets, "1999-01-01", " "]
    with pytest.warns(UserWarning, match="2 of 8 validation pairs have an empty side and are left out"):
        corpus = prepare_corpus(Pairs(*dates(60)), validation, CHARACTERS, **USUAL)
    assert corpus.validation == (sources, targets)
    assert len(corpus.training.sources) == 60


@pytest.mark.parametrize(
    ("validation", "error", "message"),
    [
        ((["a"], [""]), ValueError, "validation must have a pair without an empty side, got none"),
        ((["a"], ["b"], ["b"]), TypeError, "validation must be two lists, sources and targets, got tuple"),
        ("ab", TypeError, "validation must be two lists, sources and targets, got str"),
    ],
)
def test_invalid_validation_pairs_raise(validation, error, message):
    with pytest.raises(error, match=message):
        prepare_corpus(Pairs(*dates(60)), validation, CHARACTERS, **USUAL)


def test_pairs_that_leave_nothing_to_train_on_raise():
    with pytest.raises(ValueError, match="60 of 60 pairs are held out for validation, which leaves none"):
        prepare_corpus(Pairs(*dates(60)), None, CHARACTERS, **USUAL | {"validation_fraction": 0.999})
    with pytest.raises(ValueError, match="no pair is left to train on: 0 of 60 have an empty side, 60 have more"):
        prepare_corpus(Pairs(*dates(60)), None, CHARACTERS, **USUAL | {"longest": 2})


def test_long_and_empty_pairs_are_left_out_with_their_indices():
    sources, targets = dates(60)
    sources[3], targets[7], sources[9] = "", " ", "x" * 50
    with pytest.warns(
        UserWarning, match="3 pairs are left out: 2 of 60 have an empty side, 1 have more than longest=40 tokens"
    ):
        corpus = prepare_corpus(Pairs(sources, targets), dates(5), CHARACTERS, **USUAL | {"longest": 40})
    assert corpus.left_out == {"empty": [3, 7], "long": [9]}
    assert corpus.training.sources == [source for index, source in enumerate(sources) if index not in (3, 7, 9)]
    # Indices are those of the given list, also of pairs that are held out.
    for index in range(0, 60, 2):
        sources[index] = ""
    with pytest.warns(UserWarning, match="33 pairs are left out: 32 of 60"):
        corpus = prepare_corpus(Pairs(sources, targets), None, CHARACTERS, **USUAL | {"longest": 40})
    assert corpus.left_out == {"empty": sorted({*range(0, 60, 2), 3, 7}), "long": [9]}


def test_warnings_name_the_line_that_calls_fit():
    sources, _ = dates(40)
    settings = {"tokens": "characters", "size": 4, "epochs": 1, "verbose": False}
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        Translator("rnn", **settings).fit(["", *sources], ["x", *sources], validation=(["a", ""], ["b", "c"]))
    assert len(warned) == 3
    assert "40 of 41 targets are the same as their sources" in str(warned[0].message)
    assert {warning.filename for warning in warned} == {__file__}


def test_bleu_is_of_characters_if_targets_have_few_words():
    assert bleu_tokenizer(["a b c d", "a b c d", "a"]) == "13a"
    assert bleu_tokenizer(["a b c d", "a", "a b c"]) == "char"
    assert bleu_tokenizer(["一二三。"]) == "char"
