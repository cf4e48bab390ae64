"""Charts of arrays; each function returns its axes. matplotlib is imported when a chart is drawn.

The colours `BLUE`, `VERMILION`, `GREY` and `CYCLE` and the `MARKERS` are those of all charts.
"""

from regard.plots.charts import (
    BLUE,
    CYCLE,
    GREY,
    MARKERS,
    VERMILION,
    alignment_map,
    error_curves,
    evidence_bars,
    fit_curve,
    hide_frame,
    new_axes,
    weight_map,
)
from regard.plots.images import image_strip

__all__ = [
    "BLUE",
    "CYCLE",
    "GREY",
    "MARKERS",
    "VERMILION",
    "alignment_map",
    "error_curves",
    "evidence_bars",
    "fit_curve",
    "hide_frame",
    "image_strip",
    "new_axes",
    "weight_map",
]
