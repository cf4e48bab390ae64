"""Pictures of arrays; each function returns its axes. matplotlib is imported when the first one is drawn."""

from regard.plots.charts import (
    BLUE,
    CYCLE,
    INK,
    MARKERS,
    ORANGE,
    SKY,
    VERMILION,
    alignment_map,
    bare,
    error_curves,
    evidence_bars,
    fit_curve,
    fresh,
    weight_map,
)
from regard.plots.images import image_strip

__all__ = [
    "BLUE",
    "CYCLE",
    "INK",
    "MARKERS",
    "ORANGE",
    "SKY",
    "VERMILION",
    "alignment_map",
    "bare",
    "error_curves",
    "evidence_bars",
    "fit_curve",
    "fresh",
    "image_strip",
    "weight_map",
]
