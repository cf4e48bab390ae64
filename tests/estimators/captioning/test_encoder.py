"""What a captioner sees: images through an encoder, turned left to right or not, and whose encoder it is."""

import numpy as np
import torch
from torch import nn
from torch.testing import assert_close

from regard.estimators.captioning.encoder import Shown, Sight, sight


class Itself(nn.Module):
    """Every pixel is a cell, and the number of images is known."""

    image_size = 5

    def __init__(self):
        super().__init__()
        self.weight, self.seen = nn.Parameter(torch.ones(1)), []

    def forward(self, image):
        self.seen.append(len(image))
        return image * self.weight


def pictures(count=7):
    return np.random.default_rng(0).integers(0, 256, (count, 5, 5, 3), dtype=np.uint8)


def cells(images):
    return torch.tensor(images / 255).float().flatten(1, 2)


def test_images_are_found_by_their_places_and_seen_once():
    encoder, images = Itself(), pictures()
    shown = Shown(Sight(encoder), images)
    encoder.seen.clear()
    places = torch.tensor([6, 2, 2, 0, 6])
    assert_close(shown(places), cells(images[places]))
    assert encoder.seen == [3]


def test_half_of_them_are_turned_left_to_right_in_training_alone():
    images = pictures(101)
    shown, places = Shown(Sight(Itself()), images, mirror=True), torch.arange(101)
    shown.sight.eval()
    assert_close(shown(places), cells(images))
    shown.sight.train()
    torch.manual_seed(0)
    found, other = shown(places), shown(places)
    plain, turned = (
        [torch.equal(a, b) for a, b in zip(found, cells(way), strict=True)] for way in (images, images[:, :, ::-1])
    )
    assert all(a != b for a, b in zip(plain, turned, strict=True))
    assert 30 < sum(turned) < 71
    assert not torch.equal(found, other)
    shown.mirror = False
    assert_close(shown(places), cells(images))


def test_a_users_encoder_is_copied():
    encoder = Itself()
    made = sight(encoder, None)
    with torch.no_grad():
        made.encoder.weight.add_(1)
    assert encoder.weight.tolist() == [1.0]
    assert (made.image_size, made.channels, made.shape) == (5, 3, (5, 5))
    assert sight(encoder, 4).shape == (4, 4)


def test_who_has_nothing_to_learn_is_frozen():
    made = Sight(Itself())
    assert not made.frozen
    made.encoder.requires_grad_(False)
    assert made.frozen
