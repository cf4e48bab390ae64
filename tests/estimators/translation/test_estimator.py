"""A translator on dates: it learns, it shows what it looked at, it is saved, and it says what is wrong."""

import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone

import regard
from regard import Translator
from regard.data.samples import dates, held_out_dates
from regard.estimators.translation import estimator as module
from regard.estimators.translation.evidence import translation_score
from regard.training import Muon

QUICK = {"tokens": "characters", "smoothing": 0.0, "dropout": 0.0, "warm": 20, "random_state": 0, "verbose": False}
TINY = QUICK | {"size": 8, "hidden": 12, "epochs": 2, "batch_tokens": 256, "blocks": 1, "heads": 2}
MODELS = ("rnn", "bahdanau", "luong", "transformer")


@pytest.fixture(scope="module")
def fitted():
    """A translator that knows dates."""
    settings = QUICK | {"size": 32, "hidden": 64, "epochs": 5, "batch_tokens": 512, "learning_rate": 0.01}
    return Translator("bahdanau", **settings).fit(*dates(3000))


def test_it_translates_days_it_has_never_seen(fitted):
    asked, right = held_out_dates(200)
    found = fitted.translate(asked)
    assert np.mean([one == other for one, other in zip(found, right, strict=True)]) >= 0.98
    assert fitted.score(asked, right) > 98


def test_the_alignment_puts_the_year_on_the_year(fitted):
    asked, right = held_out_dates(50, seed=1)
    shares = []
    for sentence, iso in zip(asked, right, strict=True):
        found = fitted.evidence(sentence, iso)
        at = sentence.index(iso[:4])
        np.testing.assert_allclose(found.weight.sum(axis=1), 1, atol=1e-5)
        assert found.source == list(sentence)
        shares.append(found.weight[:4, at : at + 4].sum(axis=1).mean())
    assert np.mean(shares) >= 0.8


def test_evidence_is_of_the_models_own_translation_where_none_is_given(fitted):
    found = fitted.evidence("4 July 1976")
    assert found.translation == fitted.translate(["4 July 1976"])[0] == "1976-07-04"
    frame = found.to_frame(top=2)
    assert list(frame.columns) == ["place", "token", "rank", "looked_at", "looked_at_place", "weight"]
    assert len(frame) == 2 * len(found.target)
    best = frame[frame["rank"] == 1]
    np.testing.assert_array_equal(best["looked_at_place"], found.weight.argmax(axis=1))
    axes = found.plot()
    assert [label.get_text() for label in axes.get_yticklabels()][:4] == list("1976")
    assert axes.get_xlabel() == "source"


def test_order_is_kept_and_an_empty_line_stays_empty(fitted):
    asked, _ = held_out_dates(30, seed=2)
    one_by_one = [fitted.translate([sentence])[0] for sentence in asked]
    assert fitted.translate(["", *asked, "  "]) == ["", *one_by_one, ""]
    assert fitted.translate([]) == []


def test_it_is_saved_and_loaded(fitted, tmp_path):
    fitted.save(tmp_path / "model")
    torch.manual_seed(7)
    again = regard.load(tmp_path / "model")
    assert torch.rand(1) == torch.rand(1, generator=torch.Generator().manual_seed(7))  # nobody's numbers were drawn
    assert again.history_ == fitted.history_._replace(loss=())
    asked, _ = held_out_dates(20)
    assert again.translate(asked) == fitted.translate(asked)
    assert again.get_params() == fitted.get_params()
    np.testing.assert_array_equal(again.evidence(asked[0]).weight, fitted.evidence(asked[0]).weight)


@pytest.mark.parametrize("model", MODELS)
def test_every_model_learns_is_saved_and_one_seed_gives_one_result(model, tmp_path):
    pairs = dates(120)
    first, again = (Translator(model, **TINY).fit(*pairs) for _ in range(2))
    assert first.history_ == again.history_
    assert first.history_.loss[1] < first.history_.loss[0]
    written = first.translate(pairs[0][:5], beam=3)
    assert written == again.translate(pairs[0][:5], beam=3)
    first.save(tmp_path / "model")
    assert regard.load(tmp_path / "model").translate(pairs[0][:5], beam=3) == written
    if model == "rnn":
        with pytest.raises(ValueError, match="without attention looks at nothing"):
            first.evidence("4 July 1976")
    else:
        assert first.evidence("4 July 1976", "1976").weight.shape == (5, 11)


@pytest.mark.parametrize(
    "more",
    [
        {"attention": "dot"},
        {"attention": "concat"},
        {"attention": "location"},
        {"window": "local-m", "radius": 2},
        {"window": "local-p", "radius": 2},
        {"input_feeding": False},
        {"cell": "lstm", "layers": 2, "joint": False},
    ],
)
def test_the_settings_of_luongs_model_reach_it(more):
    translator = Translator("luong", **TINY | more).fit(*dates(60))
    plain = Translator("luong", **TINY).fit(*dates(60))
    assert translator.history_.loss != plain.history_.loss
    weight = translator.evidence("4 July 1976", "1976-07-04").weight
    if more.get("window") == "local-m":
        place = np.arange(len(weight))[:, None]
        assert not weight[np.abs(np.arange(11)[None, :] - place) > 2].any()


def test_a_run_that_was_stopped_goes_on_to_the_same_weights(tmp_path, monkeypatch):
    class StopError(Exception):
        pass

    def stopping(*given):
        if stopping.left == 0:
            raise StopError
        stopping.left -= 1
        return loss(*given)

    pairs, settings = dates(120), TINY | {"epochs": 4, "average": 3}
    whole = Translator("bahdanau", **settings).fit(*pairs, checkpoint=tmp_path / "whole")
    loss, stopping.left = module.mean_loss, 25
    with monkeypatch.context() as patch:
        patch.setattr(module, "mean_loss", stopping)
        with pytest.raises(StopError):
            Translator("bahdanau", **settings).fit(*pairs, checkpoint=tmp_path / "run")
    with pytest.raises(FileExistsError, match="resume=True"):
        Translator("bahdanau", **settings).fit(*pairs, checkpoint=tmp_path / "run")
    with pytest.raises(ValueError, match=r"must keep its settings: .* has data="):
        Translator("bahdanau", **settings).fit(*dates(121), checkpoint=tmp_path / "run", resume=True)
    again = Translator("bahdanau", **settings).fit(*pairs, checkpoint=tmp_path / "run", resume=True)
    assert again.history_ == whole.history_
    for name, tensor in whole.model_.state_dict().items():
        torch.testing.assert_close(again.model_.state_dict()[name], tensor, rtol=0, atol=0)


def test_a_corpus_that_is_its_own_translation_is_warned_of():
    sources, _ = dates(40)
    with pytest.warns(UserWarning, match="40 of 40 targets are the same as their sources"):
        Translator("rnn", **TINY | {"epochs": 1}).fit(sources, sources)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Translator("rnn", **TINY | {"epochs": 1}).fit(*dates(40))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model": "rmm"}, "model must be transformer, bahdanau, luong or rnn, got 'rmm'"),
        ({"window": "local"}, "window must be None, local-m or local-p, got 'local'"),
        ({"epochs": 0}, "epochs must be a positive whole number, got 0"),
        ({"optimizer": "sgd"}, "optimizer must be muon or adamw, got 'sgd'"),
        ({"piece_dropout": 1.0}, "piece_dropout must be a number of at least 0 and below 1, got 1.0"),
        ({"attention_dropout": -0.1}, "attention_dropout must be a number of at least 0 and below 1, got -0.1"),
        ({"dropout": 1.0}, "dropout must be a number of at least 0 and below 1, got 1.0"),
        ({"smoothing": True}, "smoothing must be a number"),
        ({"learning_rate": 0}, "learning_rate must be a number above 0"),
        ({"tokens": "pieces", "vocabulary": 200}, "vocabulary must be at least 259"),
        ({"validation_fraction": 0.999}, "60 of 60 pairs are held out"),
        ({"longest": 2}, "no pair is left to train on: 0 of 60 have an empty side, 60 have more"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        Translator(**TINY | settings).fit(*dates(60))


@pytest.mark.parametrize("beam", [0, -1, 2.5])
def test_a_beam_of_nothing_is_refused(fitted, beam):
    with pytest.raises(ValueError, match=f"beam must be a positive whole number, got {beam}"):
        fitted.translate(["4 July 1976"], beam=beam)


def test_one_text_is_no_list_of_sentences(fitted):
    with pytest.raises(TypeError, match="put it in a list"):
        fitted.translate("4 July 1976")
    with pytest.raises(ValueError, match="sentence must not be empty"):
        fitted.evidence(" ")


def test_clone_has_the_settings_and_nothing_learned(fitted):
    copy = clone(fitted)
    assert copy.get_params() == fitted.get_params()
    assert not hasattr(copy, "model_")


def test_the_score_is_sacrebleus_and_a_number():
    written, right = ["the cat sat on the mat today", "a dog"], ["the cat sat on a mat today", "a dog"]
    import sacrebleu

    found = translation_score(written, right)
    assert found == sacrebleu.corpus_bleu(written, [right]).score
    assert found.chrf == sacrebleu.corpus_chrf(written, [right]).score
    assert found + 1 > found
    assert "version" in found.signature
    assert "tok:13a" in repr(found)
    assert "tok:none" in translation_score(written, right, tokenize="none").signature


def test_a_shuffled_column_of_a_table_is_taken_in_its_order():
    sources, targets = dates(60)
    frame = pd.DataFrame({"source": sources, "target": targets}).sample(frac=1, random_state=0)
    listed = Translator("rnn", **TINY).fit(list(frame.source), list(frame.target))
    column = Translator("rnn", **TINY).fit(frame.source, list(frame.target))
    assert column.history_ == listed.history_
    again = Translator("rnn", **TINY).fit(iter(frame.source), np.array(frame.target))
    assert again.history_ == listed.history_


def test_a_translation_may_be_as_long_as_those_it_learned_from():
    codes = [chr(97 + place % 26) for place in range(60)]
    long = [code * 45 for code in codes]
    found = Translator("rnn", **TINY).fit(codes, long)
    assert found.longest_target_ == 45


def test_lower_case_counts_for_nothing_in_the_score_of_a_model_that_writes_it(fitted, monkeypatch):
    monkeypatch.setattr(fitted, "translate", lambda sources, beam: [source.lower() for source in sources])
    sentences = ["The Cat Sat On The Mat"]
    assert fitted.score(sentences, sentences) < 50
    monkeypatch.setattr(fitted, "lower", True)
    assert fitted.score(sentences, sentences) > 99
    assert fitted.score(sentences, sentences, lowercase=False) < 50


def test_other_targets_to_validate_with_do_not_go_on(tmp_path):
    pairs, other = dates(60), dates(9, seed=3)
    settings = {"checkpoint": tmp_path / "run", "resume": True}
    Translator("rnn", **TINY).fit(*pairs, validation=other, **settings)
    with pytest.raises(ValueError, match=r"must keep its settings: .* has data="):
        Translator("rnn", **TINY).fit(*pairs, validation=(other[0], other[1][::-1]), **settings)


def test_the_best_validation_is_that_of_the_state_it_has(fitted, tmp_path):
    assert fitted.history_.best == min(fitted.history_.validation)
    fitted.save(tmp_path / "model")
    assert regard.load(tmp_path / "model").history_.best == fitted.history_.best


def test_a_translation_in_pieces_of_letters_is_whole_again():
    settings = TINY | {"tokens": "pieces", "vocabulary": 259}
    found = Translator("bahdanau", **settings).fit(["ж щ"] * 30, ["привет"] * 30)
    assert found.evidence("ж щ", "привет 😀").translation == "привет 😀"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"joint": "no"}, "joint must be True or False, got 'no'"),
        ({"lower": "no"}, "lower must be True or False, got 'no'"),
        ({"input_feeding": "off"}, "input_feeding must be True or False, got 'off'"),
    ],
)
def test_words_are_not_taken_for_true(settings, message):
    with pytest.raises(ValueError, match=message):
        Translator(**TINY | settings).fit(*dates(60))


def test_numpys_numbers_are_numbers():
    settings = TINY | {"size": np.int64(8), "hidden": np.int64(12), "dropout": np.float32(0.1)}
    assert Translator("bahdanau", **settings).fit(*dates(40)).translate(["x"]) is not None


@pytest.mark.parametrize(
    ("asked", "error", "message"),
    [
        ({"sentences": [None]}, TypeError, "sentences must be texts, got NoneType at index 0"),
        ({"sentences": ["a", "b\ud800"]}, ValueError, "half a surrogate pair at index 1"),
        ({"sentences": ["a"], "penalty": None}, ValueError, "penalty must be a number of at least 0, got None"),
        ({"sentences": ["a"], "beam": "5"}, ValueError, "beam must be a positive whole number, got '5'"),
    ],
)
def test_what_cannot_be_translated_is_named(fitted, asked, error, message):
    with pytest.raises(error, match=message):
        fitted.translate(**asked)


def test_a_way_to_tell_words_apart_that_is_unknown_is_refused_before_the_work(fitted, monkeypatch):
    monkeypatch.setattr(fitted, "translate", None)
    with pytest.raises(ValueError, match=r"tokenize must be one of .*, got 'nope'"):
        fitted.score(["a"], ["b"], tokenize="nope")


def test_predict_is_translate_and_of_each_token_there_is_at_least_one_to_show(fitted):
    asked, _ = held_out_dates(3)
    assert fitted.predict(asked) == fitted.translate(asked)
    for top in (0, -1):
        with pytest.raises(ValueError, match=f"top must be a positive whole number, or None for all tokens, got {top}"):
            fitted.evidence(asked[0]).to_frame(top=top)


def test_sentences_that_are_too_long_raise(fitted):
    with pytest.raises(ValueError, match="sentence 2 has 201 tokens, more than the model's longest, 200: split"):
        fitted.translate(["x", "1" * 201])


def test_smoothing_reaches_the_loss():
    plain, smooth = (Translator("rnn", **TINY | {"smoothing": fraction}).fit(*dates(60)) for fraction in (0.0, 0.3))
    assert plain.history_.loss[0] != smooth.history_.loss[0]


@pytest.mark.parametrize(("optimizer", "kind"), [("muon", Muon), ("adamw", torch.optim.AdamW)])
def test_the_settings_of_the_optimizer_reach_it(monkeypatch, optimizer, kind):
    recipes = []

    def watched(model, batches, loss, recipe, **more):
        recipes.append(recipe)
        return train(model, batches, loss, recipe, **more)

    train = module.train
    monkeypatch.setattr(module, "train", watched)
    settings = {"optimizer": optimizer, "learning_rate": 0.02, "weight_decay": 0.3, "clip": 0.5, "patience": 7}
    Translator("luong", **TINY | settings | {"average": 2, "accumulate": 3}).fit(*dates(60))
    [recipe] = recipes
    assert (recipe.epochs, recipe.clip, recipe.accumulate, recipe.average, recipe.patience) == (2, 0.5, 3, 2, 7)
    assert type(recipe.optimizer) is kind
    for group in recipe.optimizer.param_groups:
        assert (group["initial_lr"], group["betas"]) == (0.02, (0.9, 0.98))
        assert {parameter.ndim > 1 for parameter in group["params"]} == {group["weight_decay"] == 0.3}


def test_dropped_joins_need_pieces():
    with pytest.raises(ValueError, match=r"needs tokens='pieces', got piece_dropout=0\.1 and characters"):
        Translator(tokens="characters", piece_dropout=0.1).fit(*dates(60))


@pytest.mark.parametrize(
    ("targets", "counted"), [(["19760704"] * 40, "char"), (["a b c d"] * 40, "13a"), (["一二三。"] * 40, "char")]
)
def test_the_best_epoch_is_found_if_targets_have_no_words(targets, counted):
    sources = [f"{n} x" for n in range(40)]
    settings = {"learning_rate": 0.02, "epochs": 12, "batch_tokens": 64, "smoothing": 0.1}
    found = Translator("bahdanau", **TINY | settings).fit(sources, targets)
    assert found.counted_ == counted
    assert found.history_.best < -50
    assert found.translate(["7 x"]) == targets[:1]


def test_a_finished_run_can_be_resumed_with_more_epochs(tmp_path):
    short = Translator("rnn", **TINY).fit(*dates(60), checkpoint=tmp_path / "run")
    longer = Translator("rnn", **TINY | {"epochs": 3}).fit(*dates(60), checkpoint=tmp_path / "run", resume=True)
    assert longer.history_.loss[:2] == short.history_.loss
    assert len(longer.history_.loss) == 3
