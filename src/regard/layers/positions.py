"""Positions: they tell attention, which sees a set, the order of a sequence.

There are two kinds:

* added to the rows, before the first block: `Sinusoidal` and `LearnedPositions`;
* inside attention, as `MultiHeadAttention(positions=…)`: `Rotary` rotates queries and keys by an angle that grows with
  their position, so that their inner product depends on the distance; `Alibi` subtracts a multiple of the distance from
  the score; `SlidingWindow` hides distant keys. Any object with these two methods can be used:

      rotate(x [..., length, size], start) -> the same shape    queries, or keys, at positions start, start + 1, …
      bias(mask) -> mask                                        the mask, plus what is added to the scores

`start` is the position of the first row: n if n rows are cached. Positions that are added also take one for each
sequence, `[batch]`: below 0 where a sequence begins with padding.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from regard.checks import check_rows, positive
from regard.masks import Mask, both, window
from regard.torch_modes import compiling, transforming

_Scaling = Callable[[Tensor], Tensor]


class Positions(Protocol):
    """The methods that `MultiHeadAttention` needs of its positions.

    >>> import torch
    >>> from regard.layers import MultiHeadAttention
    >>> class AlternatingSign:
    ...     def rotate(self, x, start):
    ...         return x * (-1.0) ** (torch.arange(x.shape[-2]) + start).unsqueeze(-1)
    ...     def bias(self, mask):
    ...         return mask
    >>> MultiHeadAttention(16, heads=4, positions=AlternatingSign())(torch.randn(2, 5, 16)).shape
    torch.Size([2, 5, 16])
    """

    def rotate(self, x: Tensor, start: int) -> Tensor: ...

    def bias(self, mask: Mask | None) -> Mask | None: ...


class Sinusoidal(nn.Module):
    """x + p, with p(t) = sin(t / 10000^(2i / size)) and its cosine (Vaswani et al. 2017, section 3.5).

    x `[..., length, size]`, of any length. Even features have the sine, odd ones the cosine of the same angle. There
    are no parameters.

    >>> import torch
    >>> Sinusoidal(4)(torch.zeros(2, 4)).round(decimals=3).tolist()
    [[0.0, 1.0, 0.0, 1.0], [0.8410000205039978, 0.5400000214576721, 0.009999999776482582, 1.0]]
    """

    def __init__(self, size: int, *, base: float = 10000.0) -> None:
        super().__init__()
        self.size, self.base = positive("size", size), float(base)

    def forward(self, x: Tensor, start: int | Tensor = 0) -> Tensor:
        check_rows("x", x, self.size)
        length = x.shape[-2]
        end = _latest(start) + length
        table = _rotation_table(end, _Pairs(self.size + self.size % 2, self.base, None, True), x)
        sine, cosine = (_rows_at(part[:, 1::2], start, length) for part in table)
        second = torch.stack((sine, cosine), dim=-1)  # [..., length, pairs, 2]
        return x + second.flatten(-2)[..., : self.size]  # [..., length, size]; an odd size has no last cosine

    def extra_repr(self) -> str:
        return f"{self.size}"


class LearnedPositions(nn.Module):
    """x + p, with a learned vector p(t) for each of `max_length` positions (GPT-2, BERT).

    unused   number of vectors before that of position 0, which no position has (RoBERTa: 2)

    x `[..., length, size]`; a sequence longer than `max_length` raises ValueError.

    >>> import torch
    >>> LearnedPositions(16, 4)(torch.randn(2, 5, 4)).shape
    torch.Size([2, 5, 4])
    """

    def __init__(
        self,
        max_length: int,
        size: int,
        *,
        unused: int = 0,
        device: torch.types.Device = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.max_length = max_length = positive("max_length", max_length)
        self.size, self.unused = positive("size", size), unused
        self.weight = nn.Parameter(torch.empty(unused + max_length, self.size, device=device, dtype=dtype))
        nn.init.normal_(self.weight, std=0.02)

    def forward(self, x: Tensor, start: int | Tensor = 0) -> Tensor:
        check_rows("x", x, self.size)
        length = x.shape[-2]
        end = _latest(start) + length
        if end > self.max_length:
            raise ValueError(f"there are {self.max_length} learned positions, got a sequence of {end}")
        return x + _rows_at(self.weight[self.unused :], start, length)

    def extra_repr(self) -> str:
        return f"{self.max_length}, {self.size}" + (f", unused={self.unused}" if self.unused else "")


def _latest(start: int | Tensor) -> int:
    """The largest start of a batch."""
    return int(start.max()) if isinstance(start, Tensor) else start


def _rows_at(table: Tensor, start: int | Tensor, length: int) -> Tensor:
    """Rows of a table at positions start, start + 1, …: `[length, size]`; for starts `[batch]`, one such for each."""
    if not isinstance(start, Tensor):
        return table[start : start + length]
    position = start.unsqueeze(-1) + torch.arange(length, device=start.device)  # [batch, length]
    return table[position.clamp(min=0)]  # of padding, any row will do


@dataclass(frozen=True)
class RotaryScaling:
    """Frequencies of `Rotary` for sequences longer than those of the first training, as in Llama 3.1.

    A pair of angular frequency f makes n = trained_length · f / 2π turns within the trained length. Its frequency stays
    if n ≥ fast, is divided by `factor` if n ≤ slow, and is interpolated along n between the two.

    >>> import torch
    >>> RotaryScaling(8.0, trained_length=100, slow=1.0, fast=4.0)(torch.tensor([1.0, 0.01])).tolist()
    [1.0, 0.0012499999720603228]
    """

    factor: float
    trained_length: int
    slow: float = 1.0
    fast: float = 4.0

    def __post_init__(self) -> None:
        positive("trained_length", self.trained_length)
        _check_factor(self.factor, self.slow, self.fast)

    def __call__(self, frequency: Tensor) -> Tensor:
        turns = self.trained_length * frequency / (2 * math.pi)
        unscaled = ((turns - self.slow) / (self.fast - self.slow)).clamp(0.0, 1.0)
        return frequency * (unscaled + (1 - unscaled) / self.factor)


@dataclass(frozen=True)
class LinearScaling:
    """Frequencies of `Rotary` divided by a factor, as if positions were that much closer together (Chen et al. 2023).

    >>> import torch
    >>> LinearScaling(4.0)(torch.tensor([1.0, 0.5])).tolist()
    [0.25, 0.125]
    """

    factor: float

    def __post_init__(self) -> None:
        _check_factor(self.factor)

    def __call__(self, frequency: Tensor) -> Tensor:
        return frequency / self.factor


@dataclass(frozen=True)
class YarnScaling:
    """YaRN: as `RotaryScaling`, interpolated along the number of a pair, and with larger scores (Peng et al. 2023).

    Let i(n) be the number of the pair that makes n turns within the trained length. Pairs before i(fast) keep their
    frequency, those after i(slow) have it divided by `factor`, and between them it is interpolated linearly.

    rounded     whether i(fast) is rounded down and i(slow) up to whole numbers
    magnitude   factor of rotated queries and of rotated keys; default: 1 + log(factor) / 10

    >>> import torch
    >>> scaling = YarnScaling(4.0, trained_length=100)
    >>> scaling(torch.tensor([1.0, 0.1, 0.01])).tolist(), round(scaling.magnitude, 3)
    ([1.0, 0.0625, 0.0024999999441206455], 1.139)
    """

    factor: float
    trained_length: int
    slow: float = 1.0
    fast: float = 32.0
    rounded: bool = True
    magnitude: float = math.nan  # becomes the default

    def __post_init__(self) -> None:
        positive("trained_length", self.trained_length)
        _check_factor(self.factor, self.slow, self.fast)
        if math.isnan(self.magnitude):
            object.__setattr__(self, "magnitude", 1.0 + 0.1 * math.log(self.factor))

    def __call__(self, frequency: Tensor) -> Tensor:
        pairs = len(frequency)
        if pairs < 2:
            return frequency
        ratio = -math.log(float(frequency[-1])) / (pairs - 1)  # of neighbours: frequency i is exp(-i · ratio)
        first, last = (math.log(self.trained_length / (2 * math.pi * n)) / ratio for n in (self.fast, self.slow))
        if self.rounded:
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, 2 * pairs - 1)
        number = torch.arange(pairs, dtype=frequency.dtype, device=frequency.device)
        divided = ((number - first) / (last - first or 0.001)).clamp(0.0, 1.0)
        return frequency * (1 - divided + divided / self.factor)


def _check_factor(factor: float, slow: float = 1.0, fast: float = 2.0) -> None:
    if not factor >= 1 or not 0 < slow < fast:
        raise ValueError(
            "factor must be at least 1, slow positive and fast above it, got"
            f" factor={factor}, slow={slow} and fast={fast}"
        )


class Rotary(nn.Module):
    """Queries and keys rotated by their position, so that the score depends on their distance (Su et al. 2021).

    size          size of a head; pair i of its numbers is rotated at position t by the angle t / base^(2i / size)
    interleaved   False: pair i is (i, i + size / 2), as in Hugging Face's Llama; True: (2i, 2i + 1), as in the paper
                  and llama2.c
    scaling       a function of the frequencies `[size / 2]`: `RotaryScaling`, `LinearScaling`, `YarnScaling`; if it has
                  an attribute `magnitude`, what is rotated is multiplied by it

    There are no parameters.

    >>> import torch
    >>> rotary, query, key = Rotary(8), torch.randn(1, 8), torch.randn(1, 8)
    >>> near, far = ((rotary.rotate(query, t + 3) * rotary.rotate(key, t)).sum() for t in (0, 100))
    >>> bool(torch.allclose(near, far, atol=1e-4))
    True
    """

    def __init__(
        self, size: int, *, base: float = 10000.0, interleaved: bool = False, scaling: _Scaling | None = None
    ) -> None:
        super().__init__()
        size = positive("size", size)
        if size % 2:
            raise ValueError(f"Rotary rotates pairs: size must be even, got {size}")
        if not base > 0:
            raise ValueError(f"base must be positive, got {base}")
        self.size, self.base, self.interleaved, self.scaling = size, float(base), bool(interleaved), scaling

    def rotate(self, x: Tensor, start: int = 0) -> Tensor:
        """x `[..., length, size]`, whose first row is at position `start`, rotated."""
        check_rows("queries and keys", x, self.size)
        end = start + x.shape[-2]
        sine, cosine = _rotation_table(end, _Pairs(self.size, self.base, self.scaling, self.interleaved), x)
        # (a, b) -> (a cos - b sin, b cos + a sin): each number needs its partner in the pair.
        partner = (
            x.reshape(*x.shape[:-1], -1, 2).flip(-1).flatten(-2)  # [..., length, size / 2, 2], swapped within pairs
            if self.interleaved
            else x.roll(self.size // 2, -1)
        )
        return torch.addcmul(x * cosine[start:end], partner, sine[start:end])

    def bias(self, mask: Mask | None) -> Mask | None:
        """The mask as it is: nothing is added to the scores."""
        return mask

    def forward(self, x: Tensor, start: int = 0) -> Tensor:
        return self.rotate(x, start)

    def extra_repr(self) -> str:
        scaling = "" if self.scaling is None else f", scaling={self.scaling!r}"
        return f"{self.size}, base={self.base:g}" + (", interleaved=True" if self.interleaved else "") + scaling


class Alibi(nn.Module):
    """-slope · |q - k| is added to the score, with one slope for each head (Press et al. 2022).

    Slopes fall as 2^(-8 i / heads) for i = 1 … heads. If heads is no power of two, the slopes of the next smaller one
    come first, and then every other one of twice that, as in the paper. Under a causal mask it is the paper's bias;
    without one it is symmetric. There are no parameters.

    >>> Alibi(4).slopes.flatten().tolist()
    [0.25, 0.0625, 0.015625, 0.00390625]
    """

    slopes: Tensor  # [heads, 1, 1]

    def __init__(self, heads: int) -> None:
        super().__init__()
        whole = 2 ** int(math.log2(positive("heads", heads)))
        powers = [8 * i / whole for i in range(1, whole + 1)] + [4 * i / whole for i in range(1, 2 * whole, 2)]
        slopes = torch.tensor([2.0**-power for power in powers[:heads]])
        self.register_buffer("slopes", slopes.view(-1, 1, 1), persistent=False)  # [heads, 1, 1]

    def rotate(self, x: Tensor, start: int = 0) -> Tensor:
        """x as it is: queries and keys are not rotated."""
        return x

    def bias(self, mask: Mask | None) -> Mask:
        """The mask, and the slopes."""
        return self if mask is None else both(mask, self)

    def forward(self, query_index: Tensor, key_index: Tensor) -> Tensor:
        """As a mask: of two index tensors, `[heads, q, k]`."""
        return -self.slopes * (query_index - key_index).abs()

    def extra_repr(self) -> str:
        return f"{len(self.slopes)}"


class SlidingWindow(nn.Module):
    """Other positions, and a query sees only keys at most `radius` positions away (Mistral).

    positions   `Rotary`, `Alibi`, or None

    There are no parameters.

    >>> import torch, regard
    >>> from regard.layers import MultiHeadAttention
    >>> layer = MultiHeadAttention(16, heads=2, positions=SlidingWindow(2, Rotary(8)))
    >>> (layer.look(torch.randn(1, 5, 16), mask=regard.masks.causal)[0, 0, 4] > 0).tolist()
    [False, False, True, True, True]
    """

    def __init__(self, radius: int, positions: Positions | None = None) -> None:
        super().__init__()
        self.window, self.positions = window(radius), positions

    def rotate(self, x: Tensor, start: int = 0) -> Tensor:
        """x, rotated by the other positions."""
        return x if self.positions is None else self.positions.rotate(x, start)

    def bias(self, mask: Mask | None) -> Mask:
        """The mask with the bias of the other positions, and the window."""
        mask = mask if self.positions is None else self.positions.bias(mask)
        return self.window if mask is None else both(mask, self.window)

    def extra_repr(self) -> str:
        return f"radius={self.window.radius}"


class _Pairs(NamedTuple):
    """What the angles of a table depend on, besides the position."""

    size: int
    base: float
    scaling: _Scaling | None
    interleaved: bool


@torch.inference_mode(False)
def _make_table(length: int, form: _Pairs, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """See `_rotation_table`. Angles are float64: t may be large."""
    frequency = form.base ** (-torch.arange(0, form.size, 2, dtype=torch.float64) / form.size)
    frequency = frequency if form.scaling is None else form.scaling(frequency)
    angle = torch.arange(length, dtype=torch.float64).unsqueeze(-1) * frequency
    magnitude = getattr(form.scaling, "magnitude", 1.0)
    sine, cosine = ((x * magnitude).to(device, dtype) for x in (angle.sin(), angle.cos()))  # [length, size / 2]
    pairs = torch.stack((-sine, sine), dim=-1), torch.stack((cosine, cosine), dim=-1)  # [length, size / 2, 2]
    # [length, size]: the two of a pair side by side, or the first of all pairs and then the second of all
    return tuple((x if form.interleaved else x.mT).flatten(-2) for x in pairs)


_cached_table = functools.lru_cache(maxsize=32)(_make_table)


def _rotation_table(end: int, form: _Pairs, like: Tensor) -> tuple[Tensor, ...]:
    """The factors of each number's partner (±sine) and of the number itself (cosine), `[end or more, size]` each."""
    if compiling() or transforming() or type(torch.empty(0)) is not Tensor:
        return _make_table(end, form, like.device, like.dtype)  # of stand-ins for tensors, which must not be cached
    length = 1 << max(6, (end - 1).bit_length())  # the next power of two: similar lengths share one table
    return _cached_table(length, form, like.device, like.dtype)
