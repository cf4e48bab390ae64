"""Pictures with captions, settings and an encoder for the tests of captioners."""

from typing import NamedTuple

import numpy as np
from torch import nn

from regard.models.image_encoders import SmallResNet

SCENES = {"least": 1, "size": 64, "hidden": 128, "score_size": 64, "dropout": 0.0, "spread": 0.0, "batch_size": 16,
          "epochs": 10, "learning_rate": 4e-3, "warm": 50, "random_state": 0, "verbose": False}  # fmt: skip
TINY = SCENES | {"encoder": SmallResNet(16, image_size=16), "size": 16, "hidden": 32, "score_size": 8, "batch_size": 8,
                 "epochs": 20, "learning_rate": 2e-2, "clip": 5.0, "validation_fraction": 0.25, "warm": 2}  # fmt: skip
COLOURS = {
    "a picture that is red": (210, 40, 40),
    "all of it is green": (40, 160, 60),
    "this one is quite blue": (40, 70, 220),
    "there is nothing in this picture but the colour yellow today": (240, 220, 40),
}


class MeanColours(nn.Module):
    """A frozen encoder: the mean colours of an image's parts."""

    image_size = 12

    def __init__(self, side=3):
        super().__init__()
        self.side = side

    def forward(self, image):
        return nn.functional.adaptive_avg_pool2d(image, self.side)


class Pictures(NamedTuple):
    """Images with captions."""

    images: np.ndarray
    captions: list[str]


def colour_pictures():
    """Pictures of one colour, which a model soon learns to distinguish."""
    random = np.random.default_rng(0)
    which = random.integers(4, size=40)
    noise = random.normal(0, 12, (40, 16, 16, 3))
    images = np.array(list(COLOURS.values()))[which][:, None, None] + noise
    return Pictures(images.clip(0, 255).astype(np.uint8), [list(COLOURS)[one] for one in which])
