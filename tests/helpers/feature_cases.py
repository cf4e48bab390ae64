"""Images, encoders and counts for the tests of grids on disk."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from regard.data import encoder_cache as module
from regard.data.encoder_cache import features, write
from regard.data.images import read_images
from regard.models.image_encoders import SmallResNet


class Counting(SmallResNet):
    """Counts the images that go through it."""

    def __init__(self, channels=5, image_size=24):
        super().__init__(channels, image_size)
        self.seen = 0

    def forward(self, image):
        self.seen += len(image)
        return super().forward(image)


def shaken():
    """One whose norms have seen something."""
    made = Counting()
    for norm in made.modules():
        if isinstance(norm, nn.BatchNorm2d):
            norm.running_mean.normal_()
            norm.running_var.uniform_(0.5, 2)
    return made


def three_in_a_file(monkeypatch):
    """Three grids in a file, two images at a time."""
    monkeypatch.setattr(module, "IN_FILE", 3)
    monkeypatch.setattr(module, "AT_ONCE", 2)


def photos(folder, count, seed=0):
    drawn = np.random.default_rng(seed)
    paths = [folder / f"photo-{seed}-{number}.png" for number in range(count)]
    for path in paths:
        Image.fromarray(drawn.integers(0, 256, (29, 31, 3), dtype=np.uint8)).save(path)
    return paths


def computed(encoder, images):
    encoder.eval()
    with torch.no_grad():
        return encoder(encoder.prepare(read_images(images, encoder.image_size)))


def counted(encoder, *arguments, **settings):
    """The features, and how many grids were written for them."""
    written = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "write", lambda *given: (written.extend(given[2]), write(*given)))
        found = features(*arguments, **settings, progress=False)
    assert encoder.seen >= len(written)
    return found, len(written)


class Loud(nn.Module):
    """Grids that float16 cannot hold, or nothing can."""

    image_size, channels = 8, 3

    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def prepare(self, images):
        return torch.tensor(np.asarray(images)).movedim(-1, 1).float()

    def forward(self, image):
        return image * self.factor
