"""How a translator learns: its settings reach the training, its splits are drawn, its run goes on."""

import pytest
import torch

from regard import Translator
from regard.data.samples import dates
from regard.estimators.translation import training as translation_learning
from regard.estimators.translation.training import material, tokens_by_epoch
from regard.training import Muon

TINY = {
    "tokens": "characters", "dropout": 0.0, "warm": 20, "random_state": 0, "verbose": False, "size": 8, "hidden": 12,
    "epochs": 2, "batch_tokens": 256,
}  # fmt: skip


def test_smoothing_reaches_the_loss():
    plain, smooth = (Translator("rnn", **TINY | {"smoothing": share}).fit(*dates(60)) for share in (0.0, 0.3))
    assert plain.history_.loss[0] != smooth.history_.loss[0]


@pytest.mark.parametrize(("optimizer", "kind"), [("muon", Muon), ("adamw", torch.optim.AdamW)])
def test_the_optimizer_is_the_one_that_was_asked_for(monkeypatch, optimizer, kind):
    given = {}
    monkeypatch.setattr(translation_learning, "train", lambda *parts, **settings: given.update(vars(parts[3])))
    translator = Translator("luong", **TINY | {"optimizer": optimizer, "learning_rate": 0.02, "weight_decay": 0.3})
    found = material(translator, *dates(60), None, 0)
    translation_learning.learn(translator, found, translator.make_model(found.known), 0, None, None)
    assert type(given["optimizer"]) is kind
    for group in given["optimizer"].param_groups:
        assert (group["initial_lr"], group["betas"]) == (0.02, (0.9, 0.98))
        assert {parameter.ndim > 1 for parameter in group["params"]} == {group["weight_decay"] == 0.3}


def test_dropped_joins_are_drawn_anew_each_epoch_and_end_at_the_longest():
    asked, right = dates(60, seed=5)
    translator = Translator("rnn", vocabulary=300, piece_dropout=0.5, longest=17, validation_fraction=0.2)
    with pytest.warns(UserWarning, match="pairs are left out"):
        found = material(translator, asked, right, None, 0)
    tokens = tokens_by_epoch(translator, found, 0)
    first, second = tokens(0), tokens(1)
    assert first == tokens(0) != second
    assert first.sources != found.coded.sources
    assert first.targets != found.coded.targets
    assert found.known.written(first.targets) == found.known.written(found.coded.targets)
    assert max(map(len, first.sources)) <= 17
    assert tokens_by_epoch(translator.set_params(piece_dropout=0.0), found, 0)(1) is found.coded
    with pytest.raises(ValueError, match=r"needs tokens='pieces', got piece_dropout=0\.1 and characters"):
        Translator(tokens="characters", piece_dropout=0.1).fit(asked, right)


@pytest.mark.parametrize(
    ("targets", "counted"), [(["19760704"] * 40, "char"), (["a b c d"] * 40, "13a"), (["一二三。"] * 40, "char")]
)
def test_epochs_are_told_apart_where_targets_have_no_words(targets, counted):
    sources, settings = [f"{n} x" for n in range(40)], {"learning_rate": 0.02, "epochs": 12, "batch_tokens": 64}
    found = Translator("bahdanau", **TINY | settings).fit(sources, targets)
    assert found.counted_ == counted
    assert found.history_.best < -50
    assert found.translate(["7 x"]) == targets[:1]


def test_pairs_to_validate_with_have_two_sides():
    translator = Translator("rnn", **TINY)
    asked, right = dates(6)
    with pytest.warns(UserWarning, match="2 of 8 pairs to validate with have an empty side"):
        found = material(translator, *dates(60), ([*asked, "", "x"], [*right, "1999-01-01", " "]), 0)
    assert found.validated == (asked, right)
    with pytest.raises(ValueError, match="validation must have a pair without an empty side, got none"):
        translator.fit(*dates(60), validation=(["a"], [""]))
    with pytest.raises(TypeError, match="validation must be two lists"):
        translator.fit(*dates(60), validation=(asked, right, right))


def test_a_finished_run_learns_on(tmp_path):
    short = Translator("rnn", **TINY).fit(*dates(60), checkpoint=tmp_path / "run")
    longer = Translator("rnn", **TINY | {"epochs": 3}).fit(*dates(60), checkpoint=tmp_path / "run", resume=True)
    assert longer.history_.loss[:2] == short.history_.loss
    assert len(longer.history_.loss) == 3
