"""Evidence of a text: the tokens that each token looked at, by block and head."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from regard.attend import Look

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame


@dataclass(frozen=True)
class TextEvidence:
    """The largest weights of each token, in descending order, and the total weight of all other tokens before it.

    If a token has fewer tokens before it than `top`: index -1, weight 0.

    >>> import numpy as np
    >>> index, weight = np.array([[[[0, -1], [0, 1]]]]), np.array([[[[1.0, 0.0], [0.7, 0.3]]]])
    >>> TextEvidence(["a", "b"], index, weight, rest=np.zeros((1, 1, 2))).matrix(block=0, head=0).tolist()
    [[1.0, 0.0], [0.7, 0.3]]
    """

    tokens: list[str]
    index: NDArray[np.int64]  # [blocks, heads, tokens, top]  index of each token that is looked at
    weight: NDArray[np.float64]  # [blocks, heads, tokens, top]
    rest: NDArray[np.float64]  # [blocks, heads, tokens]

    def __len__(self) -> int:
        return len(self.tokens)

    def to_frame(self) -> "DataFrame":
        """A row for each token, block, head and token looked at, with the index of both, the rank and the weight.

        `rest` is the total weight of the tokens that are not listed.
        """
        import pandas as pd

        block, head, token, rank = np.nonzero(self.index >= 0)
        looked_at = self.index[block, head, token, rank]
        names = np.array(self.tokens, dtype=object)
        frame = pd.DataFrame(
            {
                "place": token,
                "token": names[token],
                "block": block,
                "head": head,
                "rank": rank + 1,
                "looked_at": names[looked_at],
                "looked_at_place": looked_at,
                "weight": self.weight[block, head, token, rank],
                "rest": self.rest[block, head, token],
            }
        )
        return frame.sort_values(["place", "block", "head", "rank"], ignore_index=True)

    def matrix(self, block: int, head: int | None = None) -> NDArray[np.float64]:
        """The weights of a head as a matrix `[tokens, tokens]`, 0 for those that are not among the largest.

        Without `head`, the mean of all heads of the block.
        """
        matrix = np.zeros((self.index.shape[1], len(self), len(self) + 1))  # index -1 is the last column
        np.put_along_axis(matrix, self.index[block], self.weight[block], axis=-1)
        return matrix[:, :, :-1].mean(axis=0) if head is None else matrix[head, :, :-1]

    def plot(self, block: int = -1, head: int | None = None, axes: "Axes | None" = None) -> "Axes":
        """A heat map of tokens by tokens: the weights of one head, or the mean of all heads of a block."""
        from regard.plots import alignment_map

        which = f"block {block % len(self.index)}, " + ("mean of heads" if head is None else f"head {head}")
        if self.rest[block].any():
            which += f", the {self.index.shape[-1]} largest weights of each"
        labels = [token.replace("\n", "↵").replace(" ", "␣") for token in self.tokens]
        axes = alignment_map(self.matrix(block, head), labels, labels, axes=axes)
        axes.set(xlabel="token looked at", ylabel="token that looks", title=which)
        return axes


def text_evidence(tokens: list[str], looks: Sequence[Look]) -> TextEvidence:
    """The evidence of one text from the weights of each block, `Look`s of `[1, heads, tokens, top]`."""
    index = np.stack([look.index[0].numpy() for look in looks])
    weight = np.stack([look.weight[0].double().numpy() for look in looks])
    rest = 1.0 - weight.sum(axis=-1)
    return TextEvidence(tokens, index, weight, np.where(rest < 1e-6, 0.0, rest))  # below: rounding
