"""Images and encoders for the tests of cached grids."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from regard.data import encoder_cache as module
from regard.data.encoder_cache import cached_grids, write_file
from regard.data.images import read_images
from regard.models.image_encoders import SmallResNet


class Counting(SmallResNet):
    """Counts the images that go through it."""

    def __init__(self, channels=5, image_size=24):
        super().__init__(channels, image_size)
        self.encoded = 0

    def forward(self, image):
        self.encoded += len(image)
        return super().forward(image)


def trained_encoder():
    """One whose running means and variances are not the initial ones."""
    encoder = Counting()
    for norm in encoder.modules():
        if isinstance(norm, nn.BatchNorm2d):
            norm.running_mean.normal_()
            norm.running_var.uniform_(0.5, 2)
    return encoder


def three_in_a_file(monkeypatch):
    """Three grids in a file, two images at a time."""
    monkeypatch.setattr(module, "GRIDS_PER_FILE", 3)
    monkeypatch.setattr(module, "BATCH", 2)


def photos(folder, count, seed=0):
    random = np.random.default_rng(seed)
    paths = [folder / f"photo-{seed}-{number}.png" for number in range(count)]
    for path in paths:
        Image.fromarray(random.integers(0, 256, (29, 31, 3), dtype=np.uint8)).save(path)
    return paths


def compute_grids(encoder, images):
    """[images, cells, channels]"""
    encoder.eval()
    with torch.no_grad():
        return encoder(encoder.prepare(read_images(images, encoder.image_size))).flatten(2).mT


def read_all(grids, count):
    return grids(torch.arange(count))


def count_new_grids(encoder, *arguments, **settings):
    """The cached grids, and the number of grids that were new."""
    new = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            module, "write_file", lambda folder, keys, grids: (new.extend(keys), write_file(folder, keys, grids))
        )
        cached = cached_grids(*arguments, **settings, progress=False)
    assert encoder.encoded >= len(new)
    return cached, len(new)


class Scaled(nn.Module):
    """Images times a factor, such as one that float16 cannot hold."""

    image_size, channels = 8, 3

    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def prepare(self, images):
        return torch.tensor(np.asarray(images)).movedim(-1, 1).float()

    def forward(self, image):
        return image * self.factor
