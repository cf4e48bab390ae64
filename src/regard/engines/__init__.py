"""Engines: ways to compute the same thing.

An engine takes a `Job`, says whether it can do it (`refuses` gives the reason why not), and does it
(`attend`). Engines that can also give the summed weight have `attend_parts`. Each must agree with the
one slow definition in `tests/reference.py`, in value and in gradient.

`attend` knows them by name; one with settings of its own is given itself, `engine=Stream(block=256)`.
"""

from regard.engines.dense import Dense
from regard.engines.flash import Flash
from regard.engines.kernel_sums.gauss import Gauss
from regard.engines.kernel_sums.pairs import Pairs
from regard.engines.stream import Stream

__all__ = ["Dense", "Flash", "Gauss", "Pairs", "Stream"]
