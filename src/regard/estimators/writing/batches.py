"""A long text for a language model: windows of its tokens to learn from, and all of them to be measured by."""

from collections.abc import Iterator

import torch
from torch import Tensor

from regard.models.language import LanguageModel

READ_AT_ONCE = 1 << 14
"""Tokens that are read at a time without gradients."""


class Windows:
    """The batches of an epoch: windows `[size, context + 1]` of the tokens, drawn by a seed."""

    def __init__(self, ids: Tensor, context: int, size: int, count: int, seed: tuple[int, int]) -> None:
        self.ids, self.count, self.size = ids, count, size
        self.place = torch.arange(context + 1)
        self.generator = torch.Generator().manual_seed((seed[0] * 1_000_003 + seed[1]) % 2**63)

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Tensor]:
        starts = torch.randint(
            len(self.ids) - len(self.place) + 1, (self.count, self.size, 1), generator=self.generator
        )
        return (self.ids[some + self.place] for some in starts)


@torch.no_grad()
def mean_loss(model: LanguageModel, ids: Tensor, overlap: int = 0) -> float:
    """The mean -log p of tokens `[n]` but the first, in windows of the context; what overlaps is counted once."""
    context = model.context
    starts = [0, *range(context - overlap, max(1, len(ids) - 1 - overlap), context - overlap)]
    total, batch = 0.0, max(1, READ_AT_ONCE // context)
    whole = [start for start in starts if start + context + 1 <= len(ids)]
    groups = [whole[i : i + batch] for i in range(0, len(whole), batch)] + [[s] for s in starts if s not in set(whole)]
    for group in groups:
        window = torch.stack([ids[start : start + context + 1] for start in group])
        log_p = model(window[:, :-1]).log_softmax(dim=-1).gather(-1, window[:, 1:, None])[..., 0]
        for start, row in zip(group, log_p, strict=True):
            total -= float(row[overlap if start else 0 :].sum(dtype=torch.float64))
    return total / (len(ids) - 1)
