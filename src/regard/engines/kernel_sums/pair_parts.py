"""What the loops of the `pairs` engine are given."""

from typing import Any, NamedTuple


class Asked(NamedTuple):
    """The queries, in blocks of neighbours."""

    points: Any  # [features, queries] in bandwidths
    codes: Any  # [columns, queries]
    starts: Any  # where each block starts, and the last one ends
    own: Any  # [queries]: the key that each must not see, or -1


class Known(NamedTuple):
    """The keys, in the order of their blocks."""

    points: Any  # [features, keys] in bandwidths
    codes: Any  # [columns, keys]
    slope: Any  # [columns]: what each step between codes takes off the log weight
    jump: Any  # [columns]: and what any difference does
    log_mass: Any  # [keys]: the logarithm of the key's own weight, of which the largest is 1
    column: Any  # [1 + values, keys]: ones, and the values
    single: Any  # the same in float32, times the keys' weights


class Tree(NamedTuple):
    """Blocks of keys, and groups of blocks."""

    starts: Any
    boxes: Any  # [blocks, 2, features + columns]
    group_starts: Any  # in blocks
    group_boxes: Any


class Limits(NamedTuple):
    """What may be left out, and where float32 will do."""

    trusted: float  # the summed weight from which float32 is good enough; for a kernel that ends, of each key met
    allowed: float  # a block is passed over when its largest weight is at most this share of what was found
    weighted: bool  # whether the keys differ in weight
    leaves_out: bool  # whether some query must not see some key
