"""A translator of dates: what it learns, what it returns, how it is saved, and what raises an error."""

import numpy as np
import pandas as pd
import pytest
import torch
from helpers.translation_cases import SMALL, TINY
from sklearn.base import clone

import regard
from regard import Translator
from regard.data.samples import dates, held_out_dates
from regard.estimators import common
from regard.estimators.translation import estimator as module
from regard.training import Muon


@pytest.mark.slow
def test_it_translates_unseen_dates_and_aligns_the_year():
    translator = Translator("bahdanau", **SMALL | {"size": 32, "hidden": 48}).fit(*dates(1000))
    sources, targets = held_out_dates(200)
    translations = translator.translate(sources)
    assert np.mean([one == other for one, other in zip(translations, targets, strict=True)]) >= 0.98
    assert translator.score(sources, targets) > 98
    weights = []
    for sentence, iso in zip(*held_out_dates(50, seed=1), strict=True):
        alignment = translator.evidence(sentence, iso)
        start = sentence.index(iso[:4])
        np.testing.assert_allclose(alignment.weight.sum(axis=1), 1, atol=1e-5)
        assert alignment.source == list(sentence)
        weights.append(alignment.weight[:4, start : start + 4].sum(axis=1).mean())
    assert np.mean(weights) >= 0.8


def test_most_translations_of_a_small_model_are_right(translator):
    sources, targets = held_out_dates(30)
    assert np.mean([one == other for one, other in zip(translator.translate(sources), targets, strict=True)]) >= 0.6
    assert 60 < translator.score(sources, targets) <= 100


def test_evidence_is_of_the_models_own_translation_by_default(translator):
    alignment = translator.evidence("4 July 1976")
    assert alignment.translation == translator.translate(["4 July 1976"])[0]
    assert alignment.source == list("4 July 1976")
    assert "".join(alignment.target) == f"{alignment.translation}■"
    assert alignment.weight.shape == (len(alignment.target), 11)
    given = translator.evidence("4 July 1976", alignment.translation)
    np.testing.assert_array_equal(given.weight, alignment.weight)


@pytest.mark.slow
def test_translations_keep_the_order_and_empty_lines(translator):
    sources, _ = held_out_dates(30, seed=2)
    one_by_one = [translator.translate([sentence])[0] for sentence in sources]
    assert translator.translate(["", *sources, "  "]) == ["", *one_by_one, ""]
    assert translator.translate([]) == []
    assert translator.predict(sources[:3]) == one_by_one[:3]


def test_a_saved_translator_is_the_same(translator, tmp_path):
    translator.save(tmp_path / "model")
    torch.manual_seed(7)
    loaded = regard.load(tmp_path / "model")
    # Loading draws no random numbers of the caller.
    assert torch.rand(1) == torch.rand(1, generator=torch.Generator().manual_seed(7))
    assert loaded.history_ == translator.history_._replace(loss=())
    assert loaded.history_.best == translator.history_.best == min(translator.history_.validation)
    sources, _ = held_out_dates(20)
    assert loaded.translate(sources) == translator.translate(sources)
    assert loaded.get_params() == translator.get_params()
    np.testing.assert_array_equal(loaded.evidence(sources[0]).weight, translator.evidence(sources[0]).weight)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["rnn", "bahdanau", "luong", "transformer"])
def test_every_model_learns_is_saved_and_depends_on_its_seed_alone(model, tiny, tmp_path):
    pairs = dates(60)
    first, again = tiny(model), Translator(model, **TINY).fit(*pairs)
    assert first.history_ == again.history_
    assert first.history_.loss[1] < first.history_.loss[0]
    translations = first.translate(pairs[0][:5], beam=3)
    assert translations == again.translate(pairs[0][:5], beam=3)
    first.save(tmp_path / "model")
    assert regard.load(tmp_path / "model").translate(pairs[0][:5], beam=3) == translations
    if model == "rnn":
        with pytest.raises(ValueError, match="no attention weights"):
            first.evidence("4 July 1976")
    else:
        assert first.evidence("4 July 1976", "1976").weight.shape == (5, 11)


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {"attention": "dot"},
        {"attention": "concat"},
        {"attention": "location"},
        {"window": "local-m", "radius": 2},
        {"window": "local-p", "radius": 2},
        {"input_feeding": False},
        {"cell": "lstm", "layers": 2, "joint": False},
    ],
    ids=str,
)
def test_the_settings_of_luongs_model_reach_it(settings, tiny):
    translator = Translator("luong", **TINY | settings).fit(*dates(60))
    assert translator.history_.loss != tiny("luong").history_.loss
    weight = translator.evidence("4 July 1976", "1976-07-04").weight
    if settings.get("window") == "local-m":
        target = np.arange(len(weight))[:, None]
        assert not weight[np.abs(np.arange(11)[None, :] - target) > 2].any()


@pytest.mark.slow
def test_a_stopped_run_resumes_to_the_same_weights(tmp_path, monkeypatch):
    class StopError(Exception):
        pass

    def stopping(*given):
        if stopping.left == 0:
            raise StopError
        stopping.left -= 1
        return mean_loss(*given)

    pairs, settings = dates(120), TINY | {"epochs": 4, "average": 3}
    whole = Translator("bahdanau", **settings).fit(*pairs, checkpoint=tmp_path / "whole")
    mean_loss, stopping.left = module.mean_loss, 25
    with monkeypatch.context() as patch:
        patch.setattr(module, "mean_loss", stopping)
        with pytest.raises(StopError):
            Translator("bahdanau", **settings).fit(*pairs, checkpoint=tmp_path / "run")
    with pytest.raises(FileExistsError, match="resume=True"):
        Translator("bahdanau", **settings).fit(*pairs, checkpoint=tmp_path / "run")
    with pytest.raises(ValueError, match=r"must keep its settings: .* has data="):
        Translator("bahdanau", **settings).fit(*dates(121), checkpoint=tmp_path / "run", resume=True)
    resumed = Translator("bahdanau", **settings).fit(*pairs, checkpoint=tmp_path / "run", resume=True)
    assert resumed.history_ == whole.history_
    for name, tensor in whole.model_.state_dict().items():
        torch.testing.assert_close(resumed.model_.state_dict()[name], tensor, rtol=0, atol=0)


def test_a_finished_run_resumes_with_more_epochs_but_not_with_other_validation_pairs(tmp_path):
    pairs, validation = dates(60), dates(9, seed=3)
    run = {"checkpoint": tmp_path / "run", "resume": True}
    short = Translator("rnn", **TINY).fit(*pairs, validation=validation, **run)
    longer = Translator("rnn", **TINY | {"epochs": 3}).fit(*pairs, validation=validation, **run)
    assert longer.history_.loss[:2] == short.history_.loss
    assert len(longer.history_.loss) == 3
    with pytest.raises(ValueError, match=r"must keep its settings: .* has data="):
        Translator("rnn", **TINY | {"epochs": 3}).fit(*pairs, validation=(validation[0], validation[1][::-1]), **run)


@pytest.mark.slow
@pytest.mark.parametrize(("optimizer", "kind"), [("muon", Muon), ("adamw", torch.optim.AdamW)])
def test_the_settings_of_the_training_reach_it(monkeypatch, optimizer, kind):
    recipes = []

    def watched(model, batches, loss, recipe, **more):
        recipes.append(recipe)
        return train(model, batches, loss, recipe, **more)

    train = common.train
    monkeypatch.setattr(common, "train", watched)
    settings = {"optimizer": optimizer, "learning_rate": 0.02, "weight_decay": 0.3, "clip": 0.5, "patience": 7}
    Translator("luong", **TINY | settings | {"average": 2, "accumulate": 3}).fit(*dates(60))
    [recipe] = recipes
    assert (recipe.epochs, recipe.clip, recipe.accumulate, recipe.average, recipe.patience) == (2, 0.5, 3, 2, 7)
    assert type(recipe.optimizer) is kind
    for group in recipe.optimizer.param_groups:
        assert (group["initial_lr"], group["betas"]) == (0.02, (0.9, 0.98))
        assert {parameter.ndim > 1 for parameter in group["params"]} == {group["weight_decay"] == 0.3}


@pytest.mark.slow
def test_smoothing_reaches_the_loss(tiny):
    smooth = Translator("rnn", **TINY | {"smoothing": 0.3}).fit(*dates(60))
    assert smooth.history_.loss[0] != tiny("rnn").history_.loss[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("targets", "counted"), [(["19760704"] * 40, "char"), (["a b c d"] * 40, "13a"), (["一二三。"] * 40, "char")]
)
def test_the_best_epoch_is_found_if_targets_have_few_words(targets, counted):
    sources = [f"{n} x" for n in range(40)]
    settings = {"learning_rate": 0.02, "epochs": 12, "batch_tokens": 64, "smoothing": 0.1}
    translator = Translator("bahdanau", **TINY | settings).fit(sources, targets)
    assert translator.counted_ == counted
    assert translator.history_.best < -50
    assert translator.translate(["7 x"]) == targets[:1]


def test_pairs_that_are_left_out_are_reported():
    sources, targets = dates(60)
    sources[3], targets[7] = "", " "
    with pytest.warns(UserWarning, match="2 pairs are left out: 2 of 60 have an empty side"):
        translator = Translator("rnn", **TINY | {"epochs": 1}).fit(sources, targets)
    assert translator.left_out_ == {"empty": [3, 7], "long": []}


def test_a_column_of_a_shuffled_table_keeps_its_order():
    sources, targets = dates(60)
    frame = pd.DataFrame({"source": sources, "target": targets}).sample(frac=1, random_state=0)
    settings = TINY | {"epochs": 1}
    expected = Translator("rnn", **settings).fit(list(frame.source), list(frame.target)).history_
    assert Translator("rnn", **settings).fit(frame.source, list(frame.target)).history_ == expected
    assert Translator("rnn", **settings).fit(iter(frame.source), np.array(frame.target)).history_ == expected


def test_a_translation_may_be_as_long_as_training_targets():
    codes = [chr(97 + number % 26) for number in range(60)]
    translator = Translator("rnn", **TINY | {"epochs": 1}).fit(codes, [code * 45 for code in codes])
    assert translator.longest_target_ == 45


def test_bytes_of_a_character_are_decoded_together():
    settings = TINY | {"tokens": "pieces", "vocabulary": 259, "epochs": 1}
    translator = Translator("bahdanau", **settings).fit(["ж щ"] * 30, ["привет"] * 30)
    assert translator.evidence("ж щ", "привет 😀").translation == "привет 😀"


def test_the_score_ignores_case_if_the_model_does(translator, monkeypatch):
    monkeypatch.setattr(translator, "translate", lambda sources, beam: [source.lower() for source in sources])
    sentences = ["The Cat Sat On The Mat"]
    assert translator.score(sentences, sentences) < 50
    monkeypatch.setattr(translator, "lower", True)
    assert translator.score(sentences, sentences) > 99
    assert translator.score(sentences, sentences, lowercase=False) < 50


def test_numpy_numbers_are_allowed():
    settings = TINY | {"size": np.int64(8), "hidden": np.int64(12), "dropout": np.float32(0.1), "epochs": 1}
    assert Translator("bahdanau", **settings).fit(*dates(40)).translate(["x"]) is not None


def test_a_clone_has_the_settings_and_no_weights(translator):
    copy = clone(translator)
    assert copy.get_params() == translator.get_params()
    assert not hasattr(copy, "model_")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model": "rmm"}, "model must be transformer, bahdanau, luong or rnn, got 'rmm'"),
        ({"window": "local"}, "window must be local-m, local-p or None, got 'local'"),
        ({"epochs": 0}, "epochs must be a positive whole number, got 0"),
        ({"optimizer": "sgd"}, "optimizer must be muon or adamw, got 'sgd'"),
        ({"piece_dropout": 1.0}, "piece_dropout must be a number of at least 0 and below 1, got 1.0"),
        ({"piece_dropout": 0.1}, "needs tokens='pieces', got piece_dropout=0.1 and tokens='characters'"),
        ({"attention_dropout": -0.1}, "attention_dropout must be a number of at least 0 and below 1, got -0.1"),
        ({"dropout": 1.0}, "dropout must be a number of at least 0 and below 1, got 1.0"),
        ({"smoothing": True}, "smoothing must be a number"),
        ({"learning_rate": 0}, "learning_rate must be a number above 0"),
        ({"hidden": 0}, "hidden must be a positive whole number"),
        ({"tokens": "pieces", "vocabulary": 200}, "vocabulary must be at least 259"),
        ({"joint": "no"}, "joint must be True or False, got 'no'"),
        ({"lower": "no"}, "lower must be True or False, got 'no'"),
        ({"input_feeding": "off"}, "input_feeding must be True or False, got 'off'"),
        ({"validation_fraction": 0.999}, "60 of 60 pairs are held out"),
        ({"longest": 2}, "no pair is left to train on: 0 of 60 have an empty side, 60 have more"),
    ],
    ids=str,
)
def test_invalid_settings_raise(settings, message):
    with pytest.raises(ValueError, match=message):
        Translator(**TINY | settings).fit(*dates(60))


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"sentences": "4 July 1976"}, TypeError, "put it in a list"),
        ({"sentences": [None]}, TypeError, r"sentences\[0\] must be a text, got NoneType"),
        ({"sentences": ["a", "b\ud800"]}, ValueError, r"sentences\[1\] is not UTF-8 at character 2"),
        ({"sentences": ["x", "1" * 201]}, ValueError, "sentence 2 has 201 tokens, more than the model's longest, 200:"),
        ({"sentences": ["a"], "penalty": None}, ValueError, "penalty must be a number of at least 0, got None"),
        ({"sentences": ["a"], "beam": "5"}, ValueError, "beam must be a positive whole number, got '5'"),
        ({"sentences": ["a"], "beam": 0}, ValueError, "beam must be a positive whole number, got 0"),
        ({"sentences": ["a"], "beam": -1}, ValueError, "beam must be a positive whole number, got -1"),
        ({"sentences": ["a"], "beam": 2.5}, ValueError, "beam must be a positive whole number, got 2.5"),
    ],
    ids=ascii,
)
def test_invalid_sentences_and_searches_raise(translator, given, error, message):
    with pytest.raises(error, match=message):
        translator.translate(**given)


def test_evidence_of_an_empty_sentence_raises(translator):
    with pytest.raises(ValueError, match="sentence must not be empty"):
        translator.evidence(" ")


def test_an_unknown_tokenizer_raises_before_the_translation(translator, monkeypatch):
    monkeypatch.setattr(translator, "translate", None)
    with pytest.raises(ValueError, match=r"tokenize must be one of .*, got 'nope'"):
        translator.score(["a"], ["b"], tokenize="nope")
