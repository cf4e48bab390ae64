"""The tour: every system on a small case, what it looked at, and how it compares with what came before it.

`regard tour` visits the stations and writes a page to look at. A station is a file here and a line in `STATIONS`.
"""

from regard.tour import bags, captions, kernel_regression, layers, seq2seq, transformer
from regard.tour.running import Visited, chosen, tour
from regard.tour.station import Station

__all__ = ["STATIONS", "Station", "Visited", "chosen", "tour"]

STATIONS = (
    kernel_regression.STATION,
    bags.STATION,
    seq2seq.STATION,
    captions.STATION,
    layers.STATION,
    transformer.STATION,
)
