"""Evidence of a translation: which source tokens each target token looked at."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from regard.estimators.evidence import checked_top

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame

Array = Any


@dataclass(frozen=True)
class Alignment:
    """The weights of all source tokens at each target token. The last row is the end of the sentence.

    >>> import numpy as np
    >>> found = Alignment(["ein", "Hund"], ["a", "dog", "■"], np.array([[0.9, 0.1], [0.2, 0.8], [0.5, 0.5]]), "a dog")
    >>> found.to_frame(top=1)[["token", "looked_at", "weight"]].values.tolist()
    [['a', 'ein', 0.9], ['dog', 'Hund', 0.8], ['■', 'ein', 0.5]]
    """

    source: list[str]
    target: list[str]
    weight: Array  # [target, source]; each row adds up to 1, or to less where a window fades towards its ends
    translation: str

    def to_frame(self, top: int | None = None) -> "DataFrame":
        """A row for each target token and source token: their places and themselves, rank and weight.

        top   how many source tokens of each target token, largest first; all of them where it is not given
        """
        import pandas as pd

        order = np.argsort(-self.weight, axis=1, kind="stable")[:, : checked_top(top, len(self.source), "tokens")]
        place = np.repeat(np.arange(len(self.target)), order.shape[1])
        seen = order.ravel()
        return pd.DataFrame(
            {
                "place": place,
                "token": np.array(self.target, dtype=object)[place],
                "rank": np.tile(np.arange(1, order.shape[1] + 1), len(self.target)),
                "looked_at": np.array(self.source, dtype=object)[seen],
                "looked_at_place": seen,
                "weight": self.weight[place, seen],
            }
        )

    def to_json(self) -> dict[str, Any]:
        """Everything, as JSON can hold it."""
        weight = [[round(float(one), 4) for one in row] for row in self.weight]
        return {"source": self.source, "target": self.target, "weight": weight}

    def plot(self, axes: "Axes | None" = None) -> "Axes":
        """The familiar heat map: source tokens above, target tokens at the side, dark where it looked."""
        from regard.plots import alignment_map

        keys, queries = ([shown(one) for one in side] for side in (self.source, self.target))
        axes = alignment_map(self.weight, keys, queries, axes=axes)
        axes.set(xlabel="source", ylabel="translation")
        axes.set_title("what each token of the translation looked at", loc="left")
        return axes


def shown(token: str) -> str:
    """A token as a label: a blank within characters is seen, one before a word is not needed."""
    return "␣" if token == " " else token.strip() or "·"
