"""Positions: what tells a set that it is a sequence.

Two kinds, because two things can be told where they stand:

* the rows themselves: `Sinusoidal` and `Learned` add a vector to each, before the first block;
* queries and keys inside attention, given to `MultiHeadAttention(positions=…)`: `Rotary` turns them by an angle
  that grows with their position, so that their inner product knows their distance; `Alibi` takes a
  share of the distance off their score. Such a thing has two methods, and any object that has them will do:

      turn(x [..., length, size], start) -> the same shape     queries, and new keys, that stand at start, start + 1, …
      bias(mask) -> mask                                       the mask, with what is added to the scores

`start` is where the first row stands: behind a cache of n rows, at n.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from regard.checks import positive
from regard.layers.checks import check_rows
from regard.masks import Mask, both
from regard.torch_modes import compiling, transforming

Stretch = Callable[[Tensor], Tensor]
Table = Callable[..., tuple[Tensor, Tensor]]


class Positions(Protocol):
    """What `MultiHeadAttention` asks of its positions.

    >>> import torch
    >>> from regard.layers import MultiHeadAttention
    >>> class Backwards:
    ...     def turn(self, x, start):  # every other row the other way round
    ...         return x * (-1.0) ** (torch.arange(x.shape[-2]) + start).unsqueeze(-1)
    ...     def bias(self, mask):
    ...         return mask
    >>> MultiHeadAttention(16, heads=4, positions=Backwards())(torch.randn(2, 5, 16)).shape
    torch.Size([2, 5, 16])
    """

    def turn(self, x: Tensor, start: int) -> Tensor: ...

    def bias(self, mask: Mask | None) -> Mask | None: ...


class Sinusoidal(nn.Module):
    """x + p, with p(t) = sin(t / 10000^(2i / size)) and its cosine (Vaswani et al. 2017, section 3.5).

    x `[..., length, size]`, of any length; even places have the sine, odd ones the cosine of the same angle.
    Nothing is learned.

    >>> import torch
    >>> Sinusoidal(4)(torch.zeros(2, 4)).round(decimals=3).tolist()
    [[0.0, 1.0, 0.0, 1.0], [0.8410000205039978, 0.5400000214576721, 0.009999999776482582, 1.0]]
    """

    def __init__(self, size: int, *, base: float = 10000.0) -> None:
        super().__init__()
        self.size, self.base = positive("size", size), float(base)

    def forward(self, x: Tensor, start: int = 0) -> Tensor:
        check_rows("x", x, self.size)
        end = start + x.shape[-2]
        sine, cosine = angles(room_for(end), self.size + self.size % 2, self.base, None, x.dtype, x.device)
        table = torch.stack((sine[start:end], cosine[start:end]), dim=-1).flatten(-2)
        return x + table[:, : self.size]

    def extra_repr(self) -> str:
        return f"{self.size}"


class Learned(nn.Module):
    """x + p, with a learned vector p(t) for each of `room` positions (GPT-2, BERT).

    x `[..., length, size]`, of at most `room` rows.

    >>> import torch
    >>> Learned(16, 4)(torch.randn(2, 5, 4)).shape
    torch.Size([2, 5, 4])
    """

    def __init__(self, room: int, size: int) -> None:
        super().__init__()
        self.room = room = positive("room", room)
        self.size = size = positive("size", size)
        self.weight = nn.Parameter(torch.empty(room, size))
        nn.init.normal_(self.weight, std=0.02)

    def forward(self, x: Tensor, start: int = 0) -> Tensor:
        check_rows("x", x, self.size)
        end = start + x.shape[-2]
        if end > self.room:
            raise ValueError(f"there is room for {self.room} positions, got a sequence of {end}")
        return x + self.weight[start:end]

    def extra_repr(self) -> str:
        return f"{self.room}, {self.size}"


@dataclass(frozen=True)
class Stretched:
    """Speeds of `Rotary` for sequences longer than those it was first trained on, as in Llama 3.1.

    A pair that turns at speed s goes round n = known · s / 2π times within the `known` positions. One that goes round
    at least `fast` times keeps its speed; one that goes round at most `slow` times becomes `factor` times slower;
    between the two the speed is interpolated along n.

    >>> import torch
    >>> Stretched(8.0, known=100, slow=1.0, fast=4.0)(torch.tensor([1.0, 0.01])).tolist()
    [1.0, 0.0012499999720603228]
    """

    factor: float
    known: int
    slow: float = 1.0
    fast: float = 4.0

    def __post_init__(self) -> None:
        positive("known", self.known)
        if not self.factor >= 1 or not 0 < self.slow < self.fast:
            raise ValueError(
                "factor must be at least 1, slow positive and fast above it, got"
                f" factor={self.factor}, slow={self.slow} and fast={self.fast}"
            )

    def __call__(self, speed: Tensor) -> Tensor:
        rounds = self.known * speed / (2 * math.pi)
        kept = ((rounds - self.slow) / (self.fast - self.slow)).clamp(0.0, 1.0)
        return speed * (kept + (1 - kept) / self.factor)


class Rotary(nn.Module):
    """Queries and keys turned by their position: the score knows how far apart they are (Su et al. 2021).

    Pair i of a head's `size` numbers is a point in the plane, turned at position t by t / base^(2i / size).
    A pair is (i, i + size / 2), as in Hugging Face's Llama; `interleaved=True` makes it (2i, 2i + 1), as in the
    paper and llama2.c. `stretch` is a function of these speeds, `[size / 2]`, such as `Stretched`. Nothing is learned.

    >>> import torch
    >>> rotary, query, key = Rotary(8), torch.randn(1, 8), torch.randn(1, 8)
    >>> near, far = ((rotary.turn(query, t + 3) * rotary.turn(key, t)).sum() for t in (0, 100))
    >>> bool(torch.allclose(near, far, atol=1e-4))
    True
    """

    def __init__(
        self, size: int, *, base: float = 10000.0, interleaved: bool = False, stretch: Stretch | None = None
    ) -> None:
        super().__init__()
        size = positive("size", size)
        if size % 2:
            raise ValueError(f"Rotary turns pairs: size must be even, got {size}")
        if not base > 0:
            raise ValueError(f"base must be positive, got {base}")
        self.size, self.base, self.interleaved, self.stretch = size, float(base), bool(interleaved), stretch

    def turn(self, x: Tensor, start: int = 0) -> Tensor:
        """x `[..., length, size]` whose first row stands at `start`."""
        check_rows("queries and keys", x, self.size)
        end = start + x.shape[-2]
        across, along = rotation(room_for(end), self.size, self.base, self.stretch, self.interleaved, x.dtype, x.device)
        partner = (
            x.reshape(*x.shape[:-1], -1, 2).flip(-1).flatten(-2) if self.interleaved else x.roll(self.size // 2, -1)
        )
        return torch.addcmul(x * along[start:end], partner, across[start:end])

    def bias(self, mask: Mask | None) -> Mask | None:
        """Nothing is added to the scores."""
        return mask

    def forward(self, x: Tensor, start: int = 0) -> Tensor:
        return self.turn(x, start)

    def extra_repr(self) -> str:
        stretch = "" if self.stretch is None else f", stretch={self.stretch!r}"
        return f"{self.size}, base={self.base:g}" + (", interleaved=True" if self.interleaved else "") + stretch


class Alibi(nn.Module):
    """-slope · |q - k| is added to the score, with a slope for each head (Press et al. 2022).

    Slopes fall as 2^(-8 i / heads) for i = 1 … heads; where heads is no power of two, those of the next smaller one
    come first, and then every other one of twice that, as in the paper. Under a causal mask it is the paper's
    bias; without one it sees both ways alike. Nothing is learned.

    >>> Alibi(4).slopes.flatten().tolist()
    [0.25, 0.0625, 0.015625, 0.00390625]
    """

    slopes: Tensor  # [heads, 1, 1]

    def __init__(self, heads: int) -> None:
        super().__init__()
        whole = 2 ** int(math.log2(positive("heads", heads)))
        powers = [8 * i / whole for i in range(1, whole + 1)] + [4 * i / whole for i in range(1, 2 * whole, 2)]
        slopes = torch.tensor([2.0**-power for power in powers[:heads]])
        self.register_buffer("slopes", slopes.view(-1, 1, 1), persistent=False)

    def turn(self, x: Tensor, start: int = 0) -> Tensor:
        """Queries and keys stay as they are."""
        return x

    def bias(self, mask: Mask | None) -> Mask:
        """The mask, and the slopes."""
        return self if mask is None else both(mask, self)

    def forward(self, query_index: Tensor, key_index: Tensor) -> Tensor:
        """As a mask: of two index tensors, `[heads, q, k]`."""
        return -self.slopes * (query_index - key_index).abs()

    def extra_repr(self) -> str:
        return f"{len(self.slopes)}"


def room_for(length: int) -> int:
    """The power of two that a table for so many positions is made for, so that few are."""
    return 1 << max(6, (length - 1).bit_length())


def kept(make: Table) -> Table:
    """The last tables that were made are kept; none where torch reads the program and tensors stand in for others."""
    make = torch.inference_mode(False)(make)
    known = functools.lru_cache(maxsize=32)(make)

    @functools.wraps(make)
    def table(*what: Any) -> tuple[Tensor, Tensor]:
        stand_in = compiling() or transforming() or type(torch.empty(0)) is not Tensor
        return make(*what) if stand_in else known(*what)

    return table


@kept
def angles(
    room: int, size: int, base: float, stretch: Stretch | None, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Sine and cosine of t / base^(2i / size), `[room, size / 2]` each. Angles are float64: t may be large."""
    speed = base ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)
    speed = speed if stretch is None else stretch(speed)
    angle = torch.arange(room, dtype=torch.float64).unsqueeze(-1) * speed
    return angle.sin().to(device, dtype), angle.cos().to(device, dtype)


@kept
def rotation(
    room: int,
    size: int,
    base: float,
    stretch: Stretch | None,
    interleaved: bool,
    dtype: torch.dtype,
    device: torch.device,
) -> tuple[Tensor, Tensor]:
    """What each number's partner and the number itself are multiplied by, `[room, size]` each."""
    sine, cosine = angles(room, size, base, stretch, dtype, device)
    pairs = torch.stack((-sine, sine), dim=-1), torch.stack((cosine, cosine), dim=-1)  # [room, size / 2, 2]
    return tuple((x if interleaved else x.mT).flatten(-2) for x in pairs)  # type: ignore[return-value]
