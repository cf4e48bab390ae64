"""The encoder of a captioner: its images, mirrored or not, and its copy of a user's encoder."""

import numpy as np
import torch
from torch import nn
from torch.testing import assert_close

from regard.estimators.captioning.networks import EncodedImages, GridEncoder, make_encoder


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
    grids = EncodedImages(GridEncoder(encoder), images)
    encoder.counts.clear()
    indices = torch.tensor([6, 2, 2, 0, 6])
    assert_close(grids(indices), cells(images[indices]))
    assert encoder.counts == [3]


def test_half_of_the_images_are_mirrored_in_training_only():
    images = pictures(101)
    grids, indices = EncodedImages(GridEncoder(Itself()), images, mirror=True), torch.arange(101)
    grids.encoder.eval()
    assert_close(grids(indices), cells(images))
    grids.encoder.train()
    torch.manual_seed(0)
    first, second = grids(indices), grids(indices)
    plain, mirrored = (
        [torch.equal(a, b) for a, b in zip(first, cells(way), strict=True)] for way in (images, images[:, :, ::-1])
    )
    assert all(a != b for a, b in zip(plain, mirrored, strict=True))
    assert 30 < sum(mirrored) < 71
    assert not torch.equal(first, second)
    grids.mirror = False
    assert_close(grids(indices), cells(images))


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
