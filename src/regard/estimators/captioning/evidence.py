"""Evidence of a caption: where in the image each word looked."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame

Array = Any


@dataclass(frozen=True)
class CaptionEvidence:
    """The weights of all cells of the image's grid before each word; those of a word add up to 1.

    >>> import numpy as np
    >>> weight = np.array([[[0.1, 0.9]], [[0.5, 0.5]]])  # two words, a grid of 1 × 2
    >>> found = CaptionEvidence(np.zeros((8, 8, 3), np.uint8), "red circle", ["red", "circle"], weight, top=1)
    >>> found.to_frame()[["word", "row", "column", "weight"]].values.tolist()
    [['red', 0, 1, 0.9], ['circle', 0, 0, 0.5]]
    """

    image: Array  # uint8 [height, width, 3], as the model saw it
    caption: str
    words: list[str]  # of the caption, or its pieces
    weight: Array  # [words, rows, columns], from the top left
    top: int | None = None  # how many cells of each word `to_frame` gives; None: all

    def __len__(self) -> int:
        return len(self.words)

    def to_frame(self) -> "DataFrame":
        """A row for each word and cell: place and word, rank, the cell's row and column from 0, and its weight."""
        import pandas as pd

        count, rows, columns = self.weight.shape
        flat = self.weight.reshape(count, rows * columns)
        order = np.argsort(-flat, axis=1, kind="stable")[:, : self.top or rows * columns]
        place, cell = np.repeat(np.arange(count), order.shape[1]), order.ravel()
        return pd.DataFrame(
            {
                "place": place,
                "word": np.array(self.words, dtype=object)[place],
                "rank": np.tile(np.arange(1, order.shape[1] + 1), count),
                "row": cell // columns,
                "column": cell % columns,
                "weight": flat[place, cell],
            }
        )

    def plot(self) -> "list[Axes]":
        """The familiar strip: the image, and for each word where it looked, bright; the axes, one a picture."""
        from regard.plots import image_strip

        return image_strip(self.image, self.words, self.weight)
