"""Bags: inputs that are several rows each, with one target for all of them.

A bag is a matrix [n, d] of n instances with d features; n differs from bag to bag, d does not. Bags are kept as one
array without padding, bag after bag:

    instances  [N, d]   the instances of bag b are instances[starts[b] : starts[b + 1]]
    starts     [B + 1]  from 0 to N, rising

They come as a list of [n, d] arrays or frames, as an array [B, n, d] of bags of one size, as one that is padded, with
lengths, or as a frame with a row for each instance and a column that says which bag it is in. What must hold is checked
here, once: at least one bag, none of them empty, one number of features, no NaN and no infinity.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self, overload

import numpy as np

from regard.data.tables import column, listed, pandas

if TYPE_CHECKING:
    from pandas import DataFrame

Array = Any
FORMS = "a list of [n, d] arrays, an array [bags, n, d], as_bags(padded, lengths=…), or a frame with a column of bags"


@dataclass(frozen=True, eq=False)
class Bags:
    """Bags of instances without padding. An index gives one bag [n, d]; a slice, a mask or several indices give Bags.

    >>> import numpy as np
    >>> bags = as_bags([np.zeros((2, 3)), np.ones((5, 3))])
    >>> len(bags), bags.sizes.tolist(), bags[1].shape, len(bags[[1, 1, 0]])
    (2, [2, 5], (5, 3), 3)
    """

    instances: Array  # [N, d] float64
    starts: Array  # [B + 1] int64
    names: Array | None = None  # [B] what the bags are called
    features: tuple[str, ...] | None = None  # [d] what the features are called
    rows: Array | None = None  # [N] what the instances are called: the index of the frame they come from

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def shape(self) -> tuple[int]:
        """[bags]: by it scikit-learn knows that it may index with an array."""
        return (len(self),)

    @property
    def sizes(self) -> Array:
        """How many instances each bag has, [B]."""
        return np.diff(self.starts)

    @property
    def bag(self) -> Array:
        """Which bag each instance is in, [N]."""
        return np.repeat(np.arange(len(self)), self.sizes)

    def __iter__(self) -> Iterator[Array]:
        return (self[place] for place in range(len(self)))

    @overload
    def __getitem__(self, key: int) -> Array: ...
    @overload
    def __getitem__(self, key: Any) -> "Bags": ...
    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, tuple) and len(key) == 2 and key[1] is Ellipsis:
            key = key[0]  # scikit-learn asks for bags[index, ...]
        chosen = np.arange(len(self))[key]
        if chosen.ndim == 0:
            return self.instances[self.starts[chosen] : self.starts[chosen + 1]]
        return self.take(chosen)

    def take(self, chosen: Array) -> "Bags":
        """Some of the bags, in the order asked for."""
        sizes = self.sizes[chosen]
        starts = starts_of(sizes)
        row = np.repeat(self.starts[chosen] - starts[:-1], sizes) + np.arange(starts[-1])
        names = None if self.names is None else self.names[chosen]
        rows = None if self.rows is None else self.rows[row]
        return Bags(self.instances[row], starts, names, self.features, rows)

    def with_instances(self, instances: Array) -> Self:
        """The same bags with other instances, row by row."""
        return replace(self, instances=instances)

    def sums(self, values: Array) -> Array:
        """Sums over each bag, [N, ...] → [B, ...]."""
        return np.add.reduceat(values, self.starts[:-1], axis=0)

    def runs(self, most: int) -> Iterator[slice]:
        """Bags one after another, at most so many instances at a time, but for a bag that has more by itself."""
        start = 0
        while start < len(self):
            reach = int(np.searchsorted(self.starts, self.starts[start] + most, side="right")) - 1
            stop = max(start + 1, reach)
            yield slice(start, stop)
            start = stop

    def nameless(self) -> Self:
        """The same bags, whose features have no names."""
        return replace(self, features=None)

    def call(self, place: int) -> str:
        """A bag as a message calls it: by its name, or by its place."""
        return f"bag {place}" if self.names is None else f"bag {self.names[place]!s}"


def as_bags(X: Any, *, lengths: Any = None, by: str | None = None) -> Bags:  # noqa: N803
    """Bags of whatever form.

    X        Bags; a list of [n, d] arrays, or of frames, whose columns are found by name; an array [B, n, d]; or a
             pandas frame, a row for each instance
    lengths  [B] how many instances of each bag of an array [B, n, d] count; what is behind them is padding
    by       the column of a frame that names the bag of each row. The rows of a bag need not stand together: they
             are gathered, and bags are in the order in which they first appear

    >>> import pandas as pd
    >>> frame = pd.DataFrame({"bag": ["b", "a", "b"], "x": [1.0, 2.0, 3.0]})
    >>> bags = as_bags(frame, by="bag")
    >>> bags.names.tolist(), bags[0].tolist(), bags[1].tolist()
    (['b', 'a'], [[1.0], [3.0]], [[2.0]])
    """
    framed = hasattr(X, "columns")
    if by is not None and not framed:
        raise ValueError(f"by={by!r} names the column of a frame, got {type(X).__name__}")
    if lengths is not None and np.ndim(X) != 3:
        raise ValueError(f"lengths belong to a padded array [bags, n, d], got {described(X)}")
    if isinstance(X, Bags):
        if not len(X):
            raise ValueError("there must be at least one bag, got none")
        return X
    if framed:
        return checked(from_frame(X, by))
    if hasattr(X, "__array__"):  # a tensor too
        X = np.asarray(X)  # noqa: N806
    if lengths is not None or (isinstance(X, np.ndarray) and X.ndim == 3):
        return checked(from_array(real(X, "bags"), lengths))
    if isinstance(X, Sequence) or (isinstance(X, np.ndarray) and X.ndim == 1):
        return checked(from_list(list(X)))
    raise ValueError(f"bags must be {FORMS}; got {described(X)}")


def from_list(bags: Sequence[Any]) -> Bags:
    """A list of [n, d] arrays, copied into one."""
    bags, features = by_columns(bags)
    arrays = [real(bag, f"bag {place}") for place, bag in enumerate(bags)]
    if not arrays:
        raise ValueError("there must be at least one bag, got an empty list")
    for place, array in enumerate(arrays):
        if array.ndim != 2 and array.size:
            raise ValueError(
                f"bag {place} must be [instances, features], got shape {list(array.shape)}: bags are {FORMS}"
            )
        if not array.size:
            raise ValueError(f"bag {place} is empty, got shape {list(array.shape)}: a bag must have an instance")
        if array.shape[1] != arrays[0].shape[1]:
            raise ValueError(
                f"all bags must have the same features: bag 0 has {arrays[0].shape[1]}, bag {place} has"
                f" {array.shape[1]}"
            )
    return Bags(np.concatenate(arrays), starts_of([len(array) for array in arrays]), features=features)


def by_columns(bags: Sequence[Any]) -> tuple[Sequence[Any], tuple[str, ...] | None]:
    """Bags whose columns have names, in the order of the first of them; and those names, if they are text."""
    columns = [list(bag.columns) if hasattr(bag, "columns") else None for bag in bags]
    columns = [None if names == list(range(len(names or ()))) else names for names in columns]  # pandas' own numbers
    if all(names is None for names in columns):
        return bags, None
    wanted = columns[0]
    for place, names in enumerate(columns):
        if names is None or wanted is None:
            alike = names is wanted
        else:
            alike = set(names) == set(wanted) and len(set(names)) == len(names)
        if not alike:
            told = ["no names" if some is None else listed(map(str, some)) for some in (wanted, names)]
            raise ValueError(
                "all bags must have the same features, each with a name of its own, if one of them has names:"
                f" bag 0 has {told[0]}, bag {place} has {told[1]}"
            )
    assert wanted is not None
    named = tuple(wanted) if all(isinstance(name, str) for name in wanted) else None
    return [bag[wanted] for bag in bags], named


def from_array(array: Array, lengths: Any) -> Bags:
    """An array [B, n, d]: all of it, or of each bag as many instances as its length says."""
    count, most, size = array.shape
    if not count or not size:
        raise ValueError(f"there must be at least one bag and one feature, got shape {list(array.shape)}")
    if lengths is None:
        if not most:
            raise ValueError(f"bag 0 is empty, got shape {list(array.shape)}: a bag must have an instance")
        return Bags(array.reshape(-1, size), np.arange(count + 1) * most)
    sizes = np.asarray(lengths)
    if sizes.shape != (count,) or sizes.dtype.kind not in "iu":
        raise ValueError(
            f"lengths must be [{count}] whole numbers, one a bag, got shape {list(sizes.shape)} of {sizes.dtype}"
        )
    if (sizes < 1).any():
        place = int(np.argmax(sizes < 1))
        raise ValueError(f"bag {place} is empty, its length is {sizes[place]}: a bag must have an instance")
    if (sizes > most).any():
        place = int(np.argmax(sizes > most))
        raise ValueError(
            f"lengths must be at most {most}, the instances there is room for, got {sizes[place]} for bag {place}"
        )
    return Bags(array[np.arange(most) < sizes[:, None]], starts_of(sizes))


def from_frame(frame: "DataFrame", by: str | None) -> Bags:
    """A row for each instance; rows of a bag are gathered."""
    if by is None:
        raise ValueError(f"which column of the frame says the bag? Its columns are {listed(map(str, frame.columns))}")
    twice = frame.columns[frame.columns.duplicated()]
    if len(twice):
        raise ValueError(f"the columns of a frame must have names of their own, got {twice[0]!r} more than once")
    ids = column(frame, by)
    if not len(frame):
        raise ValueError("there must be at least one bag, got a frame without rows")
    if ids.isna().any():
        raise ValueError(f"column {by!r} must say the bag of each row, and is missing in row {missing(ids)}")
    code, names = pandas().factorize(ids)  # in order of first appearance
    order = np.argsort(code, kind="stable")
    features = [name for name in frame.columns if name != by]
    if not features:
        raise ValueError(f"there is no feature beside the column of bags {by!r}")
    instances = np.empty((len(frame), len(features)))
    for place, name in enumerate(features):
        instances[:, place] = numbers(frame, name)[order]
    named = tuple(features) if all(isinstance(name, str) for name in features) else None
    return Bags(instances, starts_of(np.bincount(code)), np.asarray(names), named, np.asarray(frame.index)[order])


def real(values: Any, what: str) -> Array:
    """An array in floating point."""
    try:
        if np.ma.isMaskedArray(values) and np.ma.getmaskarray(values).any():
            raise ValueError("some of them are masked")
        array = np.asarray(values)
        check_kind(array.dtype)
        return array.astype(np.float64, copy=False)
    except (ValueError, TypeError) as error:
        raise ValueError(f"the features of {what} must be numbers, [instances, features]: {error}") from None


def numbers(frame: "DataFrame", name: str) -> Array:
    """A column of numbers, in floating point; what is missing is NaN."""
    try:
        check_kind(frame[name].dtype)
        return frame[name].to_numpy(dtype=np.float64, na_value=np.nan)
    except (ValueError, TypeError) as error:
        raise ValueError(f"the features of a bag must be numbers, and column {name!r} is not: {error}") from None


def check_kind(dtype: Any) -> None:
    """Complex numbers, dates and times would become floating point without a word."""
    if getattr(dtype, "kind", "f") in "cmM":
        raise ValueError(f"got {dtype}")


def missing(ids: Any) -> Any:
    """The label of the first row whose bag is missing."""
    return ids.index[int(np.argmax(ids.isna().to_numpy()))]


def checked(bags: Bags) -> Bags:
    """The bags, if all their numbers are finite; the error says which is not."""
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(bags.instances.sum()):  # without an array of truths for the usual case
            return bags
    finite = np.isfinite(bags.instances)
    if finite.all():
        return bags
    row, place = np.argwhere(~finite)[0]
    which = int(np.searchsorted(bags.starts, row, side="right")) - 1
    feature = place if bags.features is None else repr(bags.features[place])
    found = "NaN" if np.isnan(bags.instances[row, place]) else "an infinite number"
    raise ValueError(
        f"{bags.call(which)} has {found} in instance {row - bags.starts[which]}, feature {feature}:"
        " fill it in, or leave the instance out"
    )


def starts_of(sizes: Any) -> Array:
    """Where bags of these sizes start, and where the last one ends: [B + 1]."""
    return np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])


def described(X: Any) -> str:  # noqa: N803
    """What something is, for a message: its type, and its shape where it has one."""
    shape = getattr(X, "shape", None)
    return type(X).__name__ + ("" if shape is None else f" of shape {list(shape)}")
