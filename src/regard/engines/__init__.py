"""Engines: ways to compute the same thing.

An engine computes a `Job` (`attend`), unless it cannot: then `refuses` gives the reason. Engines that can
also compute log weights have `attend_parts`. `dense`, `flash` and `stream` agree with the slow definition in
`tests/reference.py` in values and gradients; `pairs` and `gauss` agree in values to a tolerance, and compute no
gradients.

`attend` takes an engine by name, or as an object with its settings: `engine=Stream(block=256)`.
"""

from regard.engines.dense import Dense
from regard.engines.flash import Flash
from regard.engines.kernel_sums.gauss import Gauss
from regard.engines.kernel_sums.pairs import Pairs
from regard.engines.stream import Stream

__all__ = ["Dense", "Flash", "Gauss", "Pairs", "Stream"]
