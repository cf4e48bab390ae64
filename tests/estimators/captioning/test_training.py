"""The training of a captioner: its encoder, its data, its validation, and the soft start of hard attention."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing import assert_close

from regard import Captioner
from regard.estimators.captioning import training as module
from regard.estimators.captioning.training import (
    Example,
    GridEncoder,
    TrainingData,
    encoded_images,
    make_encoder,
    validation_score,
    warn_of_soft_epoch,
)
from regard.models.captioner import HardCaptionDecoder

TINY = {"least": 1, "size": 4, "hidden": 5, "score_size": 3, "batch_size": 4, "epochs": 2, "warm": 1, "dropout": 0.0,
        "random_state": 0, "verbose": False}  # fmt: skip


class Whole(nn.Module):
    """A frozen encoder: the image is its own grid."""

    image_size = 3

    def forward(self, image):
        return image


def validate(monkeypatch, captions, references):
    """The validation of captions after 11 training images, and the indices of the images that were used."""
    indices, answers = [], iter(captions)
    monkeypatch.setattr(
        module, "caption_tokens", lambda decoder, grids, *_: [next(answers) for grid in grids for _ in grid]
    )
    monkeypatch.setattr(module, "caption_text", lambda tokenizer, tokens: tokens)
    validation = [Example(None, [reference]) for reference in references]
    data = TrainingData([Example(None, [])] * 11, validation, None, [], [], {})
    score = validation_score(data, None, lambda chosen: indices.append(chosen.tolist()) or chosen, 9)
    return score, indices


def test_the_validation_uses_the_held_out_images(monkeypatch):
    captions = [f"a b c d {number}" for number in range(259)]
    score, indices = validate(monkeypatch, captions, captions)
    assert score == pytest.approx(-100.0001)
    assert indices == [list(range(11, 267)), [267, 268, 269]]


def test_epochs_without_a_common_4_gram_are_ordered_by_single_words(monkeypatch):
    none, some = (validate(monkeypatch, [caption], ["a b c d e"])[0] for caption in ("v w x y z", "a x c y e"))
    assert -1e-3 < some < none <= 0


def test_grids_are_scaled_by_those_of_training_images():
    images = np.random.default_rng(0).integers(0, 256, (8, 3, 3, 3), dtype=np.uint8)
    held = np.full((5, 3, 3, 3), 255, np.uint8)
    captions = [f"{word} it is" for word in "abcdefgh"]
    captioner = Captioner(encoder=Whole(), **TINY).fit(images, captions, validation=(held, captions[:5]))
    grid = torch.tensor(images / 255).float().flatten(0, 2)
    assert_close(captioner.decoder_.centre, grid.mean(dim=0), rtol=1e-3, atol=1e-3)
    assert_close(captioner.decoder_.width, grid.std(dim=0, correction=0), rtol=1e-3, atol=1e-3)


@pytest.mark.filterwarnings("ignore:epoch 1 of 2 has the best validation")
@pytest.mark.parametrize(
    ("fraction", "accumulate", "first"),
    [(0.5, 1, 4), (0.5, 2, 4), (0.5, 3, 4), (0.25, 16, 2), (0.0, 1, 0), (1.0, 1, 8)],
)
def test_hard_attention_starts_softly_for_a_fraction_of_its_batches(fraction, accumulate, first, monkeypatch):
    soft, usual = [], HardCaptionDecoder._draw

    def record(self, words):
        draw = usual(self, words)
        if self.training:
            soft.append(bool(draw.expected.all()))
        return draw

    monkeypatch.setattr(HardCaptionDecoder, "_draw", record)
    images = np.random.default_rng(0).integers(0, 256, (16, 3, 3, 3), dtype=np.uint8)
    captions = [f"{word} it is" for word in "abcdefghijklmnop"]
    settings = TINY | {"expected": 0.0, "soft_start": fraction, "accumulate": accumulate}
    Captioner("hard", encoder=Whole(), **settings).fit(images, captions, validation=(images[:3], captions[:3]))
    assert soft == [True] * first + [False] * (8 - first)  # four batches per epoch


def test_a_warning_if_the_best_epoch_of_hard_attention_is_soft():
    with pytest.warns(UserWarning, match="epoch 2 of 8 has the best validation, but is part of the soft start"):
        warn_of_soft_epoch(2, 8, 4.0)
    warn_of_soft_epoch(5, 8, 4.0)
    warn_of_soft_epoch(2, 8, 0.0)


class Itself(nn.Module):
    """Every pixel is a cell; `counts` has the number of images of each call."""

    image_size = 5

    def __init__(self):
        super().__init__()
        self.weight, self.counts = nn.Parameter(torch.ones(1)), []

    def forward(self, image):
        self.counts.append(len(image))
        return image * self.weight


def pictures(count=7):
    return np.random.default_rng(0).integers(0, 256, (count, 5, 5, 3), dtype=np.uint8)


def cells(images):
    return torch.tensor(images / 255).float().flatten(1, 2)


def test_images_are_chosen_by_index_and_encoded_once():
    encoder, images = Itself(), pictures()
    grids = encoded_images(GridEncoder(encoder), images)
    encoder.counts.clear()
    indices = torch.tensor([6, 2, 2, 0, 6])
    assert_close(grids(indices), cells(images[indices]))
    assert encoder.counts == [3]


def test_half_of_the_images_are_mirrored_in_training_only():
    images = pictures(101)
    encoder, indices = GridEncoder(Itself()), torch.arange(101)
    grids = encoded_images(encoder, images, mirror=True)
    encoder.eval()
    assert_close(grids(indices), cells(images))
    encoder.train()
    torch.manual_seed(0)
    first, second = grids(indices), grids(indices)
    plain, mirrored = (
        [torch.equal(a, b) for a, b in zip(first, cells(way), strict=True)] for way in (images, images[:, :, ::-1])
    )
    assert all(a != b for a, b in zip(plain, mirrored, strict=True))
    assert 30 < sum(mirrored) < 71
    assert not torch.equal(first, second)
    assert_close(encoded_images(encoder, images)(indices), cells(images))


def test_a_users_encoder_is_copied():
    encoder = Itself()
    made = make_encoder(encoder, None)
    with torch.no_grad():
        made.encoder.weight.add_(1)
    assert encoder.weight.tolist() == [1.0]
    assert (made.image_size, made.channels, made.shape) == (5, 3, (5, 5))
    assert make_encoder(encoder, 4).shape == (4, 4)


def test_an_encoder_without_trainable_parameters_is_frozen():
    made = GridEncoder(Itself())
    assert not made.frozen
    made.encoder.requires_grad_(False)
    assert made.frozen
