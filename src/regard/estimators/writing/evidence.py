"""Evidence of a text: which tokens each token looked at, by block and head."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame

Array = Any


@dataclass(frozen=True)
class TextEvidence:
    """The largest weights of each token, falling, and the weight of all the others it could see.

    Where a token could see fewer than were asked for: index -1, weight 0.

    >>> import numpy as np
    >>> index, weight = np.array([[[[0, -1], [0, 1]]]]), np.array([[[[1.0, 0.0], [0.7, 0.3]]]])
    >>> TextEvidence(["a", "b"], index, weight, rest=np.zeros((1, 1, 2))).matrix(block=0, head=0).tolist()
    [[1.0, 0.0], [0.7, 0.3]]
    """

    tokens: list[str]
    index: Array  # [blocks, heads, tokens, top]  which tokens, from 0
    weight: Array  # [blocks, heads, tokens, top]
    rest: Array  # [blocks, heads, tokens]

    def __len__(self) -> int:
        return len(self.tokens)

    def to_frame(self) -> "DataFrame":
        """A row for each token, block, head and token looked at: place, token, block, head, rank, looked_at, its
        place, weight, and the rest that is not shown. Places count from 0.
        """
        import pandas as pd

        block, head, place, rank = np.nonzero(self.index >= 0)
        seen = self.index[block, head, place, rank]
        names = np.array(self.tokens, dtype=object)
        frame = pd.DataFrame(
            {
                "place": place,
                "token": names[place],
                "block": block,
                "head": head,
                "rank": rank + 1,
                "looked_at": names[seen],
                "looked_at_place": seen,
                "weight": self.weight[block, head, place, rank],
                "rest": self.rest[block, head, place],
            }
        )
        return frame.sort_values(["place", "block", "head", "rank"], ignore_index=True)

    def matrix(self, block: int, head: int | None = None) -> Array:
        """The weights as a matrix `[tokens, tokens]`, 0 where they are not among the largest; the mean of all heads
        where none is given.
        """
        heads = range(self.index.shape[1]) if head is None else [head]
        whole = np.zeros((len(self), len(self)))
        for one in heads:
            row, rank = np.nonzero(self.index[block, one] >= 0)
            whole[row, self.index[block, one, row, rank]] += self.weight[block, one, row, rank] / len(heads)
        return whole

    def plot(self, block: int = -1, head: int | None = None, axes: "Axes | None" = None) -> "Axes":
        """The weights of one block and head, or the mean of its heads, as a heat map of tokens by tokens."""
        from regard.plots import alignment_map

        which = f"block {block % len(self.index)}, " + ("mean of heads" if head is None else f"head {head}")
        if self.rest[block].any():
            which += f", the {self.index.shape[-1]} largest weights of each"
        shown = [token.replace("\n", "↵").replace(" ", "␣") for token in self.tokens]
        axes = alignment_map(self.matrix(block, head), shown, shown, axes=axes)
        axes.set(xlabel="token looked at", ylabel="token that looks", title=which)
        return axes


def looked_at(tokens: list[str], looks: list[Any]) -> TextEvidence:
    """Evidence from what each block's attention found for one sequence, `Look` of `[1, heads, tokens, top]`."""
    index = np.stack([look.index[0].numpy() for look in looks])
    weight = np.stack([look.weight[0].double().numpy() for look in looks])
    rest = 1.0 - weight.sum(axis=-1)
    return TextEvidence(tokens, index, weight, np.where(rest < 1e-6, 0.0, rest))
