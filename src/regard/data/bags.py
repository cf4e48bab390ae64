"""Bags: inputs of several rows each, with one target per bag.

A bag is a matrix [n, d] of n instances with d features; n differs from bag to bag, d does not. Bags are stored in one
array without padding, one after another:

    instances  [N, d]   the instances of bag b are instances[starts[b] : starts[b + 1]]
    starts     [B + 1]  from 0 to N, increasing

`as_bags` reads every supported form, and checks it: at least one bag, none of them empty, the same number of features
in all, no NaN and no infinity.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from regard.checks import quote_names
from regard.data.tables import check_complete, import_pandas, select_columns

if TYPE_CHECKING:
    from pandas import DataFrame, Series

Floats = NDArray[np.floating]
Integers = NDArray[np.integer]
Labels = NDArray[np.generic]
_MUST = "must be numbers, [instances, features]"
_FORMS = "a list of [n, d] arrays, an array [bags, n, d], as_bags(padded, lengths=…), or a frame with a column of bags"


@dataclass(frozen=True, eq=False)
class Bags:
    """Bags of instances without padding. An index gives one bag [n, d]; a slice, a mask or several indices give Bags.

    >>> import numpy as np
    >>> bags = as_bags([np.zeros((2, 3)), np.ones((5, 3))])
    >>> len(bags), bags.sizes.tolist(), bags[1].shape, len(bags[[1, 1, 0]])
    (2, [2, 5], (5, 3), 3)
    """

    instances: Floats  # [N, d] float64
    starts: Integers  # [B + 1] int64
    names: Labels | None = None  # [B] names of the bags
    features: tuple[str, ...] | None = None  # [d] names of the features
    rows: Labels | None = None  # [N] labels of the instances: the index of the frame they come from

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def shape(self) -> tuple[int]:
        """[B]: scikit-learn indexes with an array only what has a shape."""
        return (len(self),)

    @property
    def sizes(self) -> Integers:
        """The number of instances of each bag, [B]."""
        return np.diff(self.starts)

    @property
    def bag_index(self) -> Integers:
        """The index of the bag of each instance, [N]."""
        return np.repeat(np.arange(len(self)), self.sizes)

    def __iter__(self) -> Iterator[Floats]:
        return (self[index] for index in range(len(self)))

    @overload
    def __getitem__(self, key: int) -> Floats: ...
    @overload
    def __getitem__(self, key: slice | Sequence[int] | Labels) -> "Bags": ...
    def __getitem__(self, key: Any) -> "Floats | Bags":
        if isinstance(key, tuple) and len(key) == 2 and key[1] is Ellipsis:
            key = key[0]  # scikit-learn indexes with bags[index, ...]
        chosen = np.arange(len(self))[key]
        if chosen.ndim == 0:
            return self.instances[self.starts[chosen] : self.starts[chosen + 1]]
        sizes = self.sizes[chosen]
        starts = _starts_of(sizes)
        row = np.repeat(self.starts[chosen] - starts[:-1], sizes) + np.arange(starts[-1])
        names = None if self.names is None else self.names[chosen]
        rows = None if self.rows is None else self.rows[row]
        return Bags(self.instances[row], starts, names, self.features, rows)

    def sums(self, values: Floats) -> Floats:
        """Sums over each bag, [N, ...] → [B, ...]."""
        return np.add.reduceat(values, self.starts[:-1], axis=0)

    def blocks(self, limit: int) -> Iterator[slice]:
        """Slices of consecutive bags with at most `limit` instances each; a larger bag is a block by itself."""
        start = 0
        while start < len(self):
            last = int(np.searchsorted(self.starts, self.starts[start] + limit, side="right")) - 1
            stop = max(start + 1, last)
            yield slice(start, stop)
            start = stop

    def describe(self, index: int) -> str:
        """A bag in a message: by its name, or by its index if it has none."""
        return f"bag {index}" if self.names is None else f"bag {self.names[index]!s}"


def as_bags(X: object, *, lengths: ArrayLike | None = None, by: str | None = None) -> Bags:  # noqa: N803
    """Bags from any supported form.

    X        Bags; a list of [n, d] arrays, or of frames, whose columns are matched by name; an array [B, n, d]; or a
             pandas frame with a row for each instance
    lengths  [B] the number of instances of each bag of an array [B, n, d]; the rest is padding
    by       the column of a frame that names the bag of each row. The rows of a bag need not be consecutive; bags are
             in the order in which they first appear

    >>> import pandas as pd
    >>> frame = pd.DataFrame({"bag": ["b", "a", "b"], "x": [1.0, 2.0, 3.0]})
    >>> bags = as_bags(frame, by="bag")
    >>> bags.names.tolist(), bags[0].tolist(), bags[1].tolist()
    (['b', 'a'], [[1.0], [3.0]], [[2.0]])
    """
    is_frame = hasattr(X, "columns")
    if by is not None and not is_frame:
        raise ValueError(f"by={by!r} names a column of a frame, got {_describe_type(X)}")
    if lengths is not None and np.ndim(X) != 3:  # type: ignore[arg-type]
        raise ValueError(f"lengths need a padded array [bags, n, d], got {_describe_type(X)}")
    if isinstance(X, Bags):
        if not len(X):
            raise ValueError("there must be at least one bag, got none")
        return X
    if is_frame:
        return _check_finite(_from_frame(X, by))
    if hasattr(X, "__array__"):  # also a tensor
        X = np.asarray(X)  # noqa: N806
    if lengths is not None or (isinstance(X, np.ndarray) and X.ndim == 3):
        return _check_finite(_from_array(_as_floats(X, f"bags {_MUST}"), lengths))
    if isinstance(X, Sequence) or (isinstance(X, np.ndarray) and X.ndim == 1):
        return _check_finite(_from_list(list(X)))
    raise ValueError(f"bags must be {_FORMS}; got {_describe_type(X)}")


def _from_list(bags: Sequence[object]) -> Bags:
    """Bags from a list of [n, d] arrays, copied into one array."""
    bags, features = _match_columns(bags)
    arrays = [_as_floats(bag, f"bag {index} {_MUST}") for index, bag in enumerate(bags)]
    if not arrays:
        raise ValueError("there must be at least one bag, got an empty list")
    for index, array in enumerate(arrays):
        shape = list(array.shape)
        if not array.size:
            raise ValueError(f"bag {index} is empty, got shape {shape}: a bag needs an instance")
        if array.ndim != 2:
            raise ValueError(f"bag {index} must be [instances, features], got shape {shape}: bags are {_FORMS}")
        if shape[1] != arrays[0].shape[1]:
            counts = f"bag 0 has {arrays[0].shape[1]}, bag {index} has {shape[1]}"
            raise ValueError(f"all bags must have the same number of features: {counts}")
    return Bags(np.concatenate(arrays), _starts_of([len(array) for array in arrays]), features=features)


def _match_columns(bags: Sequence[Any]) -> tuple[Sequence[object], tuple[str, ...] | None]:
    """Bags with their columns in the order of the first bag's, and the names of the columns if they are text."""
    columns = [list(bag.columns) if hasattr(bag, "columns") else None for bag in bags]
    columns = [None if names == list(range(len(names or ()))) else names for names in columns]  # pandas' default names
    if all(names is None for names in columns):
        return bags, None
    first = columns[0] or []
    for index, names in enumerate(columns):
        names = names or []
        if set(names) != set(first) or len(set(names)) != len(names):
            ours, theirs = (quote_names(map(str, some)) if some else "no names" for some in (first, names))
            raise ValueError(
                "if one bag has column names, all bags must have the same, each once:"
                f" bag 0 has {ours}, bag {index} has {theirs}"
            )
    features = tuple(first) if all(isinstance(name, str) for name in first) else None
    return [bag[first] for bag in bags], features


def _from_array(array: Floats, lengths: ArrayLike | None) -> Bags:
    """Bags from an array [B, n, d]: all of its rows, or those that the lengths say."""
    count, most, size = array.shape
    if not array.size:
        raise ValueError(f"there must be at least one bag, instance and feature, got shape {list(array.shape)}")
    sizes = np.full(count, most) if lengths is None else np.asarray(lengths)
    if sizes.shape != (count,) or sizes.dtype.kind not in "iu":
        raise ValueError(
            f"lengths must be [{count}] whole numbers, one per bag, got shape {list(sizes.shape)} of {sizes.dtype}"
        )
    wrong = (sizes < 1) | (sizes > most)
    if wrong.any():
        index = int(np.argmax(wrong))
        raise ValueError(f"lengths must be from 1 to {most}, the size of the array, got {sizes[index]} for bag {index}")
    if (sizes == most).all():
        return Bags(array.reshape(-1, size), _starts_of(sizes))  # [B, n, d] → [B · n, d]
    return Bags(array[np.arange(most) < sizes[:, None]], _starts_of(sizes))  # the mask [B, n] drops the padding


def _from_frame(frame: "DataFrame", by: str | None) -> Bags:
    """Bags from a frame with a row for each instance, gathered by the column `by`."""
    if by is None:
        columns = quote_names(map(str, frame))
        raise ValueError(f"the column that names the bags must be given; the columns are {columns}")
    twice = frame.columns[frame.columns.duplicated()]
    if len(twice):
        raise ValueError(f"the columns of a frame must have different names, got {twice[0]!r} more than once")
    ids = select_columns(frame, [by])
    if not len(frame):
        raise ValueError("there must be at least one bag, got a frame without rows")
    check_complete(ids, "each row must name its bag: fill it in, or leave the row out")
    code, names = import_pandas().factorize(ids[by])  # in order of first appearance
    order = np.argsort(code, kind="stable")
    features = [name for name in frame.columns if name != by]
    if not features:
        raise ValueError(f"there must be a feature beside the column of bags {by!r}")
    instances = np.empty((len(frame), len(features)))
    for index, name in enumerate(features):
        instances[:, index] = _as_floats(frame[name], f"a bag must be numbers, and column {name!r} is not")[order]
    named = tuple(features) if all(isinstance(name, str) for name in features) else None
    return Bags(instances, _starts_of(np.bincount(code)), np.asarray(names), named, np.asarray(frame.index)[order])


def _as_floats(values: Any, must: str) -> NDArray[np.float64]:
    """An array, or a column of a frame, as float64; missing cells are NaN. `must` is the rest of the error's text."""
    try:
        if np.ma.isMaskedArray(values) and np.ma.getmaskarray(values).any():
            raise ValueError("some of them are masked")
        is_column = hasattr(values, "to_numpy") and hasattr(values, "dtype")
        array: Any = values if is_column else np.asarray(values)
        if array.dtype.kind in "cmM":  # NumPy converts complex numbers, dates and times to floats silently
            raise ValueError(f"got {array.dtype}")
        if is_column:
            return np.asarray(array.to_numpy(dtype=np.float64, na_value=np.nan))
        return np.asarray(array.astype(np.float64, copy=False))
    except (ValueError, TypeError) as error:
        raise ValueError(f"the features of {must}: {error}") from None


def _check_finite(bags: Bags) -> Bags:
    """The bags; raises with the first NaN or infinity that they contain."""
    wrong = np.argwhere(~np.isfinite(bags.instances))
    if not len(wrong):
        return bags
    row, index = wrong[0]
    bag = int(np.searchsorted(bags.starts, row, side="right")) - 1
    feature = index if bags.features is None else repr(bags.features[index])
    value = "NaN" if np.isnan(bags.instances[row, index]) else "an infinite number"
    raise ValueError(
        f"{bags.describe(bag)} has {value} in instance {row - bags.starts[bag]}, feature {feature}:"
        " fill it in, or leave the instance out"
    )


def _starts_of(sizes: ArrayLike) -> Integers:
    """The starts of bags of these sizes, and the end of the last one: [B + 1]."""
    return np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])


def _describe_type(value: object) -> str:
    """The type of a value for a message, with its shape if it has one."""
    return type(value).__name__ + (f" of shape {list(value.shape)}" if hasattr(value, "shape") else "")


def align_targets(y: Any, bags: Bags) -> Labels:
    """One target per bag, [B], from targets in the order of the bags or from a Series indexed by their names."""
    target = np.asarray(y)
    if target.ndim == 2 and target.shape[1] == 1:
        target = target[:, 0]
    if target.ndim != 1:
        raise ValueError(f"y must be [{len(bags)}], one target per bag, got shape {list(target.shape)}")
    names = bags.names if hasattr(y, "index") and hasattr(y, "iloc") else None
    complete = names is not None and set(names) <= set(y.index)
    counts = f"y must have one target per bag, {len(bags)}, got {len(target)}"
    if len(target) == len(bags.instances) != len(bags) and not complete:
        raise ValueError(f"{counts}: one per instance. Use frame.groupby(bag, sort=False)[target].first()")
    if names is not None:
        return _targets_by_name(y, bags)
    if len(target) != len(bags):
        raise ValueError(counts)
    return target


def _targets_by_name(y: "Series", bags: Bags) -> Labels:
    """The targets of a Series by the names of the bags in its index."""
    if not y.index.is_unique:
        twice = y.index[y.index.duplicated()][0]
        raise ValueError(f"y must name each bag once in its index, got {twice!s} more than once")
    index = y.index.get_indexer(bags.names)
    if (index < 0).any():
        raise ValueError(
            f"y is a Series without an entry for {bags.describe(int(np.argmax(index < 0)))}: its index must name the"
            " bags. If y is in the order of the bags, pass y.to_numpy()"
        )
    return np.asarray(y.iloc[index]).reshape(-1)


def group_targets(target: "Series", bag: "Series") -> "Series":
    """The target of each bag, by its name, from the targets of its rows, which must be equal."""
    groups = target.groupby(bag, sort=False)
    several = groups.nunique(dropna=False) > 1
    if several.any():
        name = several.index[int(np.argmax(several.to_numpy()))]
        values = quote_names(map(str, target[bag == name].unique()), most=5)
        where = "" if target.name is None else f" in column {target.name!r}"
        raise ValueError(f"all rows of a bag must have the same target, those of bag {name} have {values}{where}")
    return groups.first()
