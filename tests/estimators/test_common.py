"""Histories of trainings in the config of saved models, and checkpoints of estimators."""

import json

import pytest

from regard import Writer
from regard.estimators.common import restored_history, run_checkpoint, saved_history
from regard.training import History


@pytest.mark.parametrize(
    "history",
    [
        History((), (-10.0, -12.0, -11.0), best_epoch=1, averaged=0, best=-12.0),
        History((), (-10.0, -12.0), best_epoch=1, averaged=2, best=-15.0),
        History((), (-10.0,), best_epoch=0),
    ],
)
def test_a_history_is_restored_from_json(history):
    assert restored_history(json.loads(json.dumps(saved_history(history)))) == history


def test_folders_of_earlier_versions_have_the_validations_alone():
    history = restored_history({"history": [-10.0, -12.0, -11.0]})
    assert history == History((), (-10.0, -12.0, -11.0), best_epoch=1, best=-12.0)
    assert restored_history({"history": []}) == History((), (), best_epoch=0)


def test_a_checkpoint_has_all_settings_but_verbose_and_a_hash_of_the_data():
    def settings(data, **changed):
        return run_checkpoint(Writer(random_state=3, **changed), "run", False, every=7, seed=5, data=data).settings

    usual = settings(["a", "b"])
    assert (usual["context"], usual["seed"]) == (256, 5)
    assert settings(["a", "b"], verbose=False) == usual
    assert settings(["a", "b"], context=8) != usual
    assert len({settings(data)["data"] for data in (["a", "b"], ["ab"], ["b", "a"], ["a"])}) == 4
