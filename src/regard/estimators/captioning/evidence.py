"""Evidence of a caption: where in the image the model looked for each word."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame


@dataclass(frozen=True)
class CaptionEvidence:
    """The weights of all cells of the image's grid for each word; those of a word sum to 1.

    >>> import numpy as np
    >>> weight = np.array([[[0.1, 0.9]], [[0.5, 0.5]]])  # two words, a grid of 1 × 2
    >>> evidence = CaptionEvidence(np.zeros((8, 8, 3), np.uint8), "red circle", ["red", "circle"], weight, top=1)
    >>> evidence.to_frame()[["word", "row", "column", "weight"]].values.tolist()
    [['red', 0, 1, 0.9], ['circle', 0, 0, 0.5]]
    """

    image: NDArray[np.uint8]  # [height, width, 3]  as the encoder got it
    caption: str
    words: list[str]  # of the caption, or its pieces
    weight: NDArray[np.float64]  # [words, rows, columns]  from the top left
    top: int | None = None  # the number of cells of each word in `to_frame`; None: all

    def __len__(self) -> int:
        return len(self.words)

    def to_frame(self) -> "DataFrame":
        """A row for each word and cell: index of the word, word, rank, row and column of the cell from 0, weight."""
        import pandas as pd

        count, rows, columns = self.weight.shape
        flat = self.weight.reshape(count, rows * columns)  # [words, cells]
        order = np.argsort(-flat, axis=1, kind="stable")[:, : self.top or rows * columns]  # [words, top]
        word, cell = np.repeat(np.arange(count), order.shape[1]), order.ravel()
        return pd.DataFrame(
            {
                "place": word,
                "word": np.array(self.words, dtype=object)[word],
                "rank": np.tile(np.arange(1, order.shape[1] + 1), count),
                "row": cell // columns,
                "column": cell % columns,
                "weight": flat[word, cell],
            }
        )

    def plot(self) -> "list[Axes]":
        """The image, and for each word the image again, bright where the model looked; the axes of the pictures."""
        from regard.plots import image_strip

        return image_strip(self.image, self.words, self.weight)
