"""What the settings of a `Captioner` mean: what must hold of them, and the decoder that they ask for."""

import math
from typing import Any

from regard.checks import fraction
from regard.estimators.captioning.encoder import Sight
from regard.estimators.common import check_between, check_choice, check_from_zero, check_whole
from regard.models.captioner import CaptionDecoder
from regard.models.hard_captioner import HardCaptionDecoder


def make_decoder(settings: Any, vocabulary: int, seen: Sight) -> CaptionDecoder:
    """A decoder of the settings, with new weights."""
    sizes: dict[str, Any] = {"size": settings.size, "hidden": settings.hidden, "attention": settings.score_size}
    usual = sizes | {"shape": seen.shape, "dropout": settings.dropout, "tied": settings.tied}
    if settings.attention == "soft":
        return CaptionDecoder(vocabulary, seen.channels, **usual)
    drawing = {name: getattr(settings, name) for name in ("samples", "reward", "entropy", "expected")}
    return HardCaptionDecoder(vocabulary, seen.channels, **usual, **drawing)


def check_sight(settings: Any, seen: Sight) -> None:
    """Settings of an encoder that is trained along mean nothing for one that is frozen, and the other way round."""
    if seen.frozen and settings.mirror:
        raise ValueError("mirror=True needs an encoder that is trained along; this one sees each image only once")
    if not seen.frozen and settings.cache is not None:
        raise ValueError("cache= needs a frozen encoder; this one is trained along, and nothing of it can be kept")


def check_settings(settings: Any) -> None:
    """What must hold of the settings, before an image is read."""
    check_choice(settings, attention=("soft", "hard"), tokens=("words", "pieces"))
    check_choice(settings, tied=(True, False), mirror=(True, False))
    check_whole(settings, ("least", "vocabulary", "longest", "size", "hidden", "score_size", "samples"))
    check_whole(settings, ("epochs", "batch_size", "accumulate", "average"))
    check_whole(settings, [name for name in ("image_size", "patience") if getattr(settings, name) is not None])
    check_between(settings, learning_rate=(0, math.inf), clip=(0, math.inf), validation_fraction=(0, 1))
    check_from_zero(settings, dropout=1, smoothing=1, warm=math.inf, weight_decay=math.inf, spread=math.inf)
    check_from_zero(settings, reward=math.inf, entropy=math.inf)
    fraction("soft_start", settings.soft_start)
    fraction("expected", settings.expected)
