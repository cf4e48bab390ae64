"""Histories of trainings in the config of saved models, checkpoints of estimators, and held-out examples."""

import json

import pytest

from regard import Writer
from regard.estimators.common import State, TrainedEstimator, split_held_out
from regard.training import History, Monitor


class Trained(TrainedEstimator):
    """An estimator that has learned nothing but its history."""

    def _learned(self):
        return State({}, {})

    def _restore(self, config, arrays):
        pass


def restored_history(config):
    return Trained.from_state({"settings": {}, **config}, {}).history_


@pytest.mark.parametrize(
    "history",
    [
        History((), (-10.0, -12.0, -11.0), best_epoch=1, averaged=0, best=-12.0),
        History((), (-10.0, -12.0), best_epoch=1, averaged=2, best=-15.0),
        History((), (-10.0,), best_epoch=0),
    ],
)
def test_a_history_is_restored_from_json(history):
    model = Trained()
    model.history_ = history
    assert restored_history(json.loads(json.dumps(model.state().config))) == history


def test_folders_of_earlier_versions_have_the_validations_alone():
    history = restored_history({"history": [-10.0, -12.0, -11.0]})
    assert history == History((), (-10.0, -12.0, -11.0), best_epoch=1, best=-12.0)
    assert restored_history({"history": []}) == History((), (), best_epoch=0)


def test_a_checkpoint_has_all_settings_but_verbose_and_a_hash_of_the_data():
    def settings(data, **changed):
        run = Writer(random_state=3, **changed)._start_run(Monitor(), "run", False, seed=5, data=data)
        return run.keywords["checkpoint"].settings

    usual = settings(["a", "b"])
    assert (usual["context"], usual["seed"]) == (256, 5)
    assert settings(["a", "b"], verbose=False) == usual
    assert settings(["a", "b"], context=8) != usual
    assert len({settings(data)["data"] for data in (["a", "b"], ["ab"], ["b", "a"], ["a"])}) == 4


def test_a_seeded_fraction_is_held_out():
    training, held_out = split_held_out(20, 0.1, 3, "images")
    assert len(held_out) == 2
    assert sorted(training + held_out) == list(range(20))
    assert split_held_out(20, 0.1, 3, "images") == (training, held_out)
    assert split_held_out(20, 0.1, 4, "images")[1] != held_out
    with pytest.raises(ValueError, match="1 of 1 images are held out for validation, which leaves none to train on"):
        split_held_out(1, 0.1, 0, "images")
