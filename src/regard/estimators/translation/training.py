"""How a `Translator` learns: what of pairs of sentences can be learned from, and the training on it."""

import functools
import math
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from regard.data.bpe_dropout import Splits
from regard.data.sentence_pairs import PADDING, PairBatch, Pairs, TokenBatches, as_pairs
from regard.data.tokenizers import Vocabularies, vocabularies
from regard.estimators.common import OPTIMIZERS
from regard.estimators.translation.corpus import Coded, held_out, some, usable, warn_of_equals
from regard.estimators.translation.decoding import searched
from regard.estimators.translation.networks import Seq2Seq
from regard.estimators.translation.scores import TranslationScore, translation_score
from regard.ops.cross_entropy import cross_entropy
from regard.training import Checkpoint, History, Monitor, ProcessGroup, Recipe, train, warm_cosine

VALIDATED = 1000
"""Sentences that a validation translates."""


class Material(NamedTuple):
    """What is learned from."""

    pairs: Pairs  # as they were given
    validated: Pairs
    used: Pairs  # what can be learned from
    known: Vocabularies
    coded: Coded  # its tokens
    left_out: dict[str, list[int]]

    @property
    def counted(self) -> str:
        """sacreBLEU's name for what BLEU counts in `validated`."""
        return units_of(self.validated.targets[:VALIDATED])

    @property
    def longest_target(self) -> int:
        """The most tokens that a translation has."""
        return max(map(len, self.coded.targets))


def material(settings: Any, sources: Sequence[str], targets: Sequence[str], validation: Any, seed: int) -> Material:
    """What a translator of these settings learns from; what it does not is reported."""
    pairs, among = as_pairs(sources, targets), list(range(len(targets)))
    warn_of_equals(pairs)
    if validation is None:
        among, others = held_out(pairs, settings.validation_fraction, seed)
        validated = some(pairs, others)
    else:
        validated = to_validate(validation)
    known = vocabularies(
        *some(pairs, among),
        tokens=settings.tokens,
        count=settings.vocabulary,
        joint=settings.joint,
        lower=settings.lower,
    )
    coded, left_out = usable(known, pairs, settings.longest, among)
    left = {place for places in left_out.values() for place in places}
    used = some(pairs, [place for place in among if place not in left])
    return Material(pairs, validated, used, known, coded, left_out)


def to_validate(given: Any) -> Pairs:
    """Pairs that were given to validate with; where a side is empty there is nothing to say of a translation."""
    if not isinstance(given, tuple | list) or len(given) != 2:
        raise TypeError("validation must be two lists, sources and targets, got something else")
    pairs = as_pairs(*given)
    full = [place for place, pair in enumerate(zip(*pairs, strict=True)) if all(side.strip() for side in pair)]
    if not full:
        raise ValueError("validation must have a pair without an empty side, got none")
    if len(full) < len(pairs.sources):
        warnings.warn(
            f"{len(pairs.sources) - len(full)} of {len(pairs.sources)} pairs to validate with have an empty side, and"
            " are left out",
            stacklevel=5,
        )
    return some(pairs, full)


def units_of(targets: Sequence[str]) -> str:
    """sacreBLEU's name for what BLEU counts when it validates: words, or characters.

    BLEU is of four words on end. Where targets have fewer, as dates, names and languages without blanks between words,
    it would be 0 for all epochs alike.

    >>> units_of(["A dog runs in the park."]), units_of(["19760704", "20260131"])
    ('13a', 'char')
    """
    few = sum(len(target.split()) < 4 for target in targets)
    return "char" if 2 * few > len(targets) else "13a"


def learn(
    settings: Any,
    found: Material,
    model: Seq2Seq,
    seed: int,
    checkpoint: Checkpoint | None,
    board: str | Path | None,
) -> History:
    """Trains the model."""
    optimizer = OPTIMIZERS[settings.optimizer](model, rate(settings), settings.weight_decay, betas=(0.9, 0.98))
    tokens = tokens_by_epoch(settings, found, seed)
    batches = len(TokenBatches(*tokens(0), settings.batch_tokens))
    steps = settings.epochs * math.ceil(batches / settings.accumulate)
    return train(
        model,
        lambda epoch: TokenBatches(*tokens(epoch), settings.batch_tokens, (seed, epoch)),
        lambda batch: loss(model, batch, settings.smoothing),
        Recipe(
            optimizer,
            settings.epochs,
            schedule=warm_cosine(optimizer, steps, warm=min(settings.warm, steps), least=0.02),
            clip=settings.clip,
            accumulate=settings.accumulate,
            count=tokens_of,
            average=settings.average,
            patience=settings.patience,
        ),
        validate=lambda: -float(bleu(settings, found, model)),
        monitor=Monitor("learning to translate", settings.verbose, unit="tokens", tensorboard=board),
        checkpoint=checkpoint,
        group=ProcessGroup.from_environment(),
    )


def tokens_by_epoch(settings: Any, found: Material, seed: int) -> Callable[[int], Coded]:
    """The tokens to learn from in an epoch: always the same, or, with `piece_dropout`, drawn anew."""
    if not settings.piece_dropout:
        return lambda epoch: found.coded
    sides = [
        Splits(tokenizer, [line.strip() for line in lines])
        for tokenizer, lines in zip(found.known, found.used, strict=True)
    ]

    @functools.lru_cache(maxsize=1)  # the first is asked for twice: once for how many batches it makes
    def drawn(epoch: int) -> Coded:
        both = [side.drawn(settings.piece_dropout, f"{seed} {epoch} {number}") for number, side in enumerate(sides)]
        return Coded(
            *(
                [ids if len(ids) <= settings.longest else usual for ids, usual in zip(new, old, strict=True)]
                for new, old in zip(both, found.coded, strict=True)
            )
        )

    return drawn


def rate(settings: Any) -> float:
    """The learning rate, if none is given the model's usual one."""
    if settings.learning_rate is not None:
        return float(settings.learning_rate)
    return 3e-3 if settings.model == "transformer" else 1e-3


def loss(model: Seq2Seq, batch: PairBatch, smoothing: float) -> Tensor:
    """The mean over all tokens that are to be said."""
    read, said = batch.target[:, :-1], batch.target[:, 1:]
    rows, real = model.rows(batch.source, batch.lengths, read), said != PADDING
    weight, bias = model.output_weights
    return cross_entropy(rows[real], weight, said[real], bias, smoothing=smoothing)


def bleu(settings: Any, found: Material, model: Seq2Seq) -> TranslationScore:
    """BLEU of what a model writes, one token after the other, to validate; of a long sentence, its beginning."""
    pairs, known = found.validated, found.known
    coded = [ids[: settings.longest] for ids in known.coded(pairs.sources[:VALIDATED])]
    limit = most_tokens(found.longest_target, settings.longest)
    written = known.written(searched(model, coded, size=1, penalty=0.0, limit=limit))
    right = pairs.targets[:VALIDATED]
    return translation_score(written, right, tokenize=found.counted, lowercase=settings.lower)


def most_tokens(longest_target: int, longest: int) -> Callable[[Any], Any]:
    """From tokens of sources to the most tokens that their translations may get, the end included.

    As many as any translation had that was learned from, or twice the source's and some more; at most `longest`.

    >>> import numpy as np
    >>> most_tokens(45, 200)(np.array([1, 30, 500])).tolist()
    [46, 81, 201]
    """
    return lambda lengths: np.minimum(np.maximum(2 * lengths + 20, longest_target), longest) + 1


def tokens_of(batch: PairBatch) -> int:
    """How many target tokens are to be said."""
    return int((batch.target[:, 1:] != PADDING).sum())
