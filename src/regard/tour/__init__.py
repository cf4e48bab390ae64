"""The tour: every system on a small case, what it looked at, and how it compares with what came before it.

`regard tour` visits the stations and writes a page to look at. A station is the file `station.py` of a subject in
`regard.estimators`, or `layers.py` here.
"""

from regard.tour.findings import Station
from regard.tour.runner import Visited, chosen, tour

__all__ = ["Station", "Visited", "chosen", "tour"]
