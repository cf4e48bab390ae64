"""What subjects say of a trained model."""

import pytest

from regard.estimators.subject import describe_bleu, describe_epoch
from regard.training import History


@pytest.mark.parametrize(
    ("history", "epoch", "bleu"),
    [
        (History((), (-10.0, -12.0, -11.0), best_epoch=1, averaged=0, best=-12.0), "2 of 3", "12.0"),
        (History((), (-10.0, -12.0), best_epoch=1, averaged=2, best=-15.0), "mean of the last 2 of 2", "15.0"),
        (History((), (-10.0,), best_epoch=0), "1 of 1", "unknown"),
    ],
)
def test_the_epoch_and_the_bleu_of_a_model(history, epoch, bleu):
    assert (describe_epoch(history), describe_bleu(history)) == (epoch, bleu)
