"""How a captioner learns: which images scale the grids and validate it, and by what."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing import assert_close

from regard import Captioner
from regard.estimators.captioning import training as caption_learning
from regard.estimators.captioning.training import Material, check_drawn, validated
from regard.models.hard_captioner import HardCaptionDecoder

TINY = {"least": 1, "size": 4, "hidden": 5, "score_size": 3, "batch_size": 4, "epochs": 2, "warm": 1, "dropout": 0.0,
        "random_state": 0, "verbose": False}  # fmt: skip


class Whole(nn.Module):
    """A frozen encoder: the image is its own grid."""

    image_size = 3

    def forward(self, image):
        return image


def material(said):
    """So many captions to validate with, behind 11 images to learn from."""
    return Material(list(range(11)), [], [], [], list(range(len(said))), [[one] for one in said], None, {})


def heard(monkeypatch, said, right):
    """The validation of what is said where something else is right, and the places that were looked at."""
    seen = []
    answers = iter(said)
    monkeypatch.setattr(caption_learning, "told", lambda decoder, grid, *_: [next(answers) for _ in grid])
    grids = lambda places: seen.append(places.tolist()) or places  # noqa: E731
    return validated(SimpleNamespace(longest=9), material(right), None, grids), seen


def test_it_validates_by_the_images_that_were_held_out(monkeypatch):
    right = [f"a b c d {number}" for number in range(259)]
    found, seen = heard(monkeypatch, right, right)
    assert found == pytest.approx(-100.0001)
    assert seen == [list(range(11, 267)), [267, 268, 269]]


def test_without_four_words_in_a_row_single_ones_count(monkeypatch):
    right = ["a b c d e"]
    none, some = (heard(monkeypatch, [said], right)[0] for said in ("v w x y z", "a x c y e"))
    assert -1e-3 < some < none <= 0


def test_grids_are_scaled_by_those_that_are_learned_from():
    images = np.random.default_rng(0).integers(0, 256, (8, 3, 3, 3), dtype=np.uint8)
    held = np.full((5, 3, 3, 3), 255, np.uint8)
    captions = [f"{word} it is" for word in "abcdefgh"]
    found = Captioner(encoder=Whole(), **TINY).fit(images, captions, validation=(held, captions[:5]))
    grid = torch.tensor(images / 255).float().flatten(0, 2)
    assert_close(found.decoder_.centre, grid.mean(dim=0), rtol=1e-3, atol=1e-3)
    assert_close(found.decoder_.width, grid.std(dim=0, correction=0), rtol=1e-3, atol=1e-3)


@pytest.mark.filterwarnings("ignore:epoch 1 of 2 validated best")
@pytest.mark.parametrize(
    ("share", "accumulate", "first"), [(0.5, 1, 4), (0.5, 2, 4), (0.5, 3, 4), (0.25, 16, 2), (0.0, 1, 0), (1.0, 1, 8)]
)
def test_hard_attention_starts_softly_for_a_share_of_its_batches(share, accumulate, first, monkeypatch):
    soft, usual = [], HardCaptionDecoder.draw

    def watched(self, words):
        draw = usual(self, words)
        if self.training:
            soft.append(bool(draw.expected.all()))
        return draw

    monkeypatch.setattr(HardCaptionDecoder, "draw", watched)
    images = np.random.default_rng(0).integers(0, 256, (16, 3, 3, 3), dtype=np.uint8)
    captions = [f"{word} it is" for word in "abcdefghijklmnop"]
    settings = TINY | {"expected": 0.0, "soft_start": share, "accumulate": accumulate}
    Captioner("hard", encoder=Whole(), **settings).fit(images, captions, validation=(images[:3], captions[:3]))
    assert soft == [True] * first + [False] * (8 - first)  # four batches an epoch


def test_hard_attention_that_kept_a_soft_epoch_says_so():
    with pytest.warns(UserWarning, match="epoch 2 of 8 validated best, and was still of the soft start"):
        check_drawn(2, 8, 4.0)
    check_drawn(5, 8, 4.0)
    check_drawn(2, 8, 0.0)
