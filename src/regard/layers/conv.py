"""Self-attention in a convolutional network: each cell of a grid attends to all cells (Zhang et al. 2019, section 3).

    q, k, v = 1×1 convolutions of x        f(x) = x + gain · W_o attend(q, k, v)

x `[batch, channels, height, width]`. The gain starts at 0: inserted into a trained network, the layer first changes
nothing.
"""

import torch
from torch import Tensor, nn

from regard.attend import Look
from regard.checks import positive
from regard.layers.attention import Attend
from regard.masks import Mask


class ConvSelfAttention(nn.Module):
    """Self-attention over the cells of a grid, added to the grid with a learned gain that starts at 0.

    channels   channels of the grid, in and out
    size       size of queries, keys and values, all heads together; default: `channels`
    heads      number of heads; must divide `size`

    x `[batch, channels, height, width]`, of any height and width, gives the same shape. Cells are numbered row by row:
    cell (y, x) has index y · width + x in masks and in the result of `look`.

    >>> import torch
    >>> layer, x = ConvSelfAttention(6, size=4, heads=2), torch.randn(2, 6, 3, 5)
    >>> bool((layer(x) == x).all()), layer.look(x).shape
    (True, torch.Size([2, 2, 15, 15]))
    """

    def __init__(self, channels: int, size: int | None = None, heads: int = 1) -> None:
        super().__init__()
        self.channels = channels = positive("channels", channels)
        self.heads = heads = positive("heads", heads)
        size = channels if size is None else positive("size", size)
        if size % heads:
            raise ValueError(f"heads must divide size, got size={size} and heads={heads}")
        self.input = nn.Conv2d(channels, 3 * size, 1)
        self.attend = Attend()
        self.output = nn.Conv2d(size, channels, 1)
        self.gain = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor, *, mask: Mask | None = None) -> Tensor:
        mean = self.attend(*self._project(x), mask)  # [batch, heads, cells, d]
        grid = mean.mT.flatten(1, 2).unflatten(-1, x.shape[-2:])  # [batch, size, height, width]
        return x + self.gain * self.output(grid)  # type: ignore[no-any-return]

    def look(self, x: Tensor, *, mask: Mask | None = None, top: int | None = None) -> Tensor | Look:
        """All weights `[batch, heads, cells, cells]`, or the `top` largest of each cell as a `Look`."""
        query, key, _ = self._project(x)
        return self.attend.look(query, key, mask, top)

    def _project(self, x: Tensor) -> tuple[Tensor, ...]:
        if not isinstance(x, Tensor):
            raise TypeError(f"x must be a torch tensor, got {type(x).__name__}")
        if x.ndim != 4 or x.shape[1] != self.channels:
            raise ValueError(f"x must be [batch, {self.channels}, height, width], got {list(x.shape)}")
        qkv = self.input(x).flatten(2).unflatten(1, (3, self.heads, -1)).mT  # [batch, 3, heads, cells, d]
        return qkv.unbind(1)  # type: ignore[no-any-return]
