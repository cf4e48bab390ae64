"""The targets of bags: one for each, in the order of the bags or by their names."""

from typing import TYPE_CHECKING, Any

import numpy as np

from regard.data.bags import Bags
from regard.data.tables import listed

if TYPE_CHECKING:
    from pandas import Series

Array = Any


def per_bag(y: Any, bags: Bags) -> Array:
    """One target a bag, [B]: in the order of the bags, or a Series whose index names them."""
    target = np.asarray(y)
    if target.ndim == 2 and target.shape[1] == 1:
        target = target[:, 0]
    if target.ndim != 1:
        raise ValueError(f"y must be [{len(bags)}], one target a bag, got shape {list(target.shape)}")
    named = hasattr(y, "index") and hasattr(y, "iloc") and bags.names is not None
    all_named = named and set(bags.names) <= set(y.index)  # type: ignore[arg-type]
    if len(target) == len(bags.instances) != len(bags) and not all_named:
        raise ValueError(
            f"y must have one target a bag, {len(bags)}, got {len(target)}: one for each instance. Give each bag's,"
            " such as frame.groupby(bag, sort=False)[target].first()"
        )
    if named:
        return by_name(y, bags)
    if len(target) != len(bags):
        raise ValueError(f"y must have one target a bag, {len(bags)}, got {len(target)}")
    return target


def by_name(y: Any, bags: Bags) -> Array:
    """The targets of a Series, by the names of the bags in its index."""
    if not y.index.is_unique:
        raise ValueError(f"y must name each bag once in its index, got {y.index[y.index.duplicated()][0]!s} twice")
    place = y.index.get_indexer(bags.names)
    if (place < 0).any():
        raise ValueError(
            f"y is a Series without an entry for {bags.call(int(np.argmax(place < 0)))}: its index must name the bags."
            " If it is in the order of the bags, give y.to_numpy()"
        )
    return np.asarray(y.iloc[place]).reshape(-1)


def of_bags(target: "Series", bag: "Series") -> "Series":
    """The target of each bag, by its name, from that of its instances, which must all have the same.

    >>> import pandas as pd
    >>> of_bags(pd.Series(["yes", "no", "yes"]), pd.Series(["b", "a", "b"])).to_dict()
    {'b': 'yes', 'a': 'no'}
    """
    groups = target.groupby(bag, sort=False)
    several = groups.nunique(dropna=False) > 1
    if several.any():
        name = several.index[int(np.argmax(several.to_numpy()))]
        found = listed(map(str, target[bag == name].unique()), most=5)
        column = "" if target.name is None else f" in column {target.name!r}"
        raise ValueError(f"all instances of a bag must have one target, and those of bag {name} have {found}{column}")
    return groups.first()
