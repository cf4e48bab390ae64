"""What is kept of a training with the model that came of it, and what is said of it."""

import json
from types import SimpleNamespace

import pytest

from regard.estimators.common import restored_history, saved_history
from regard.estimators.runs import bleu_of, epoch_of
from regard.training import History


@pytest.mark.parametrize(
    ("history", "epoch", "bleu"),
    [
        (History((), (-10.0, -12.0, -11.0), best_epoch=1, averaged=0, best=-12.0), "2 of 3", "12.0"),
        (History((), (-10.0, -12.0), best_epoch=1, averaged=2, best=-15.0), "the mean of the last 2 of 2", "15.0"),
        (History((), (-10.0,), best_epoch=0), "1 of 1", "not known"),
    ],
)
def test_a_model_says_which_state_it_has_and_what_that_was_worth(history, epoch, bleu):
    kept = json.loads(json.dumps(saved_history(history)))
    assert restored_history(kept) == history
    model = SimpleNamespace(history_=restored_history(kept))
    assert (epoch_of(model), bleu_of(model)) == (epoch, bleu)


def test_folders_of_before_the_state_was_kept_are_read():
    told = restored_history({"history": [-10.0, -12.0, -11.0]})
    assert told == History((), (-10.0, -12.0, -11.0), best_epoch=1, best=-12.0)
    assert restored_history({"history": []}) == History((), (), best_epoch=0)
