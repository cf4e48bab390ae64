"""What a `Translator` trains on, its loss and its validation, and the search for the translations of many sentences."""

import functools
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.data.text import PairBatch, Pairs, as_pairs, group_by_tokens, pad_rows
from regard.data.tokenizers import END, PADDING, START, BPEDropout, Vocabularies
from regard.decoding import Batch, Step, decode_batches, forbid
from regard.estimators.common import split_held_out
from regard.estimators.translation.evidence import TranslationScore, translation_score
from regard.models.recurrent import Bahdanau, Luong, Vanilla
from regard.models.transformer import Transformer
from regard.ops.cross_entropy import cross_entropy

VALIDATED = 1000
"""The maximum number of sentences that a validation translates."""
SEARCHED_TOKENS = 1 << 13
"""The maximum number of source tokens times hypotheses in a batch of a search."""

Seq2Seq = Transformer | Vanilla | Bahdanau | Luong
"""The sequence-to-sequence models, which have the same methods; see `regard.models.recurrent`."""

_Lengths = NDArray[np.int64]
_TokenPairs = tuple[list[list[int]], list[list[int]]]  # of sources, and of their targets


class Corpus(NamedTuple):
    """All that a translator trains on."""

    given: Pairs  # all pairs, usable or not
    validation: Pairs
    training: Pairs
    tokens: _TokenPairs  # of the training pairs
    vocabularies: Vocabularies
    longest: int  # the maximum number of tokens of a sentence
    left_out: dict[str, list[int]]  # indices of the pairs that cannot be used, by the reason

    @property
    def bleu_tokenizer(self) -> str:
        """sacreBLEU's name for the unit of the validation BLEU."""
        return bleu_tokenizer(self.validation.targets[:VALIDATED])

    @property
    def longest_target(self) -> int:
        """The number of tokens of the longest training target."""
        return max(map(len, self.tokens[1]))


def prepare_corpus(
    pairs: Pairs,
    validation: object,
    make_vocabularies: Callable[[Sequence[str], Sequence[str]], Vocabularies],
    *,
    longest: int,
    validation_fraction: float,
    seed: int,
) -> Corpus:
    """Split, tokenize and filter pairs of sentences; a warning counts the pairs that are left out.

    validation          sources and targets to validate with; None: a random `validation_fraction` of the pairs
    make_vocabularies   from training sources and targets to vocabularies
    """
    _warn_of_copies(pairs)
    if validation is None:
        among, held_out = split_held_out(len(pairs.sources), validation_fraction, seed, "pairs")
        validation_pairs = _select_pairs(pairs, held_out)
    else:
        among, validation_pairs = list(range(len(pairs.sources))), _checked_validation(validation)
    vocabularies = make_vocabularies(*_select_pairs(pairs, among))
    both = list(zip(vocabularies.encode(pairs.sources), vocabularies.encode(pairs.targets, target=True), strict=True))
    empty = [index for index, pair in enumerate(both) if not all(pair)]
    long = [index for index, pair in enumerate(both) if max(map(len, pair)) > longest]
    unusable = {*empty, *long}
    reasons = f"{len(empty)} of {len(both)} have an empty side, {len(long)} have more than longest={longest} tokens"
    usable = [index for index in among if index not in unusable]
    if not usable:
        raise ValueError(f"no pair is left to train on: {reasons}")
    if unusable:
        warnings.warn(f"{len(unusable)} pairs are left out: {reasons}", stacklevel=3)
    tokens = [both[index][0] for index in usable], [both[index][1] for index in usable]
    left_out = {"empty": empty, "long": long}
    return Corpus(pairs, validation_pairs, _select_pairs(pairs, usable), tokens, vocabularies, longest, left_out)


def _select_pairs(pairs: Pairs, indices: Sequence[int]) -> Pairs:
    return Pairs(*([side[index] for index in indices] for side in pairs))


def _checked_validation(validation: object) -> Pairs:
    """The given validation pairs, without those that have an empty side: no score can be computed for them."""
    if not isinstance(validation, tuple | list) or len(validation) != 2:
        raise TypeError(f"validation must be two lists, sources and targets, got {type(validation).__name__}")
    pairs = as_pairs(*validation)
    full = [index for index, pair in enumerate(zip(*pairs, strict=True)) if all(side.strip() for side in pair)]
    if not full:
        raise ValueError("validation must have a pair without an empty side, got none")
    empty, total = len(pairs.sources) - len(full), len(pairs.sources)
    if empty:
        warnings.warn(f"{empty} of {total} validation pairs have an empty side and are left out", stacklevel=4)
    return _select_pairs(pairs, full)


def _warn_of_copies(pairs: Pairs) -> None:
    """Warn if most targets equal their sources: probably one file was given twice."""
    equal = sum(source.strip() == target.strip() for source, target in zip(*pairs, strict=True))
    if 2 * equal > len(pairs.sources):
        warnings.warn(
            f"{equal} of {len(pairs.sources)} targets are the same as their sources: is one file given twice?",
            stacklevel=4,
        )


def bleu_tokenizer(targets: Sequence[str]) -> str:
    """sacreBLEU's name for the unit of a validation BLEU: "13a", words, or "char", characters.

    BLEU counts sequences of four. If most targets have fewer words (dates, names, languages without spaces), the BLEU
    of words would be 0 in every epoch.

    >>> bleu_tokenizer(["A dog runs in the park."]), bleu_tokenizer(["19760704", "20260131"])
    ('13a', 'char')
    """
    short = sum(len(target.split()) < 4 for target in targets)
    return "char" if 2 * short > len(targets) else "13a"


def tokens_by_epoch(corpus: Corpus, piece_dropout: float, seed: int) -> Callable[[int], _TokenPairs]:
    """From an epoch to its training tokens: always the same ones, or with `piece_dropout` random pieces."""
    if not piece_dropout:
        return lambda epoch: corpus.tokens
    sides = [
        BPEDropout(tokenizer, [line.strip() for line in lines])
        for tokenizer, lines in zip(corpus.vocabularies, corpus.training, strict=True)
    ]

    @functools.lru_cache(maxsize=1)  # epoch 0 is needed twice: once to count its batches
    def random_tokens(epoch: int) -> _TokenPairs:
        both = [side.sample(piece_dropout, f"{seed} {epoch} {number}") for number, side in enumerate(sides)]
        # More pieces may exceed the maximum length: such a sentence keeps its usual ones.
        source, target = (
            [ids if len(ids) <= corpus.longest else usual for ids, usual in zip(new, old, strict=True)]
            for new, old in zip(both, corpus.tokens, strict=True)
        )
        return source, target

    return random_tokens


def mean_loss(model: Seq2Seq, batch: PairBatch, smoothing: float) -> Tensor:
    """The mean cross-entropy of the target tokens; padding does not count."""
    given, expected = batch.target[:, :-1], batch.target[:, 1:]
    rows, real = model.rows(batch.source, batch.lengths, given), expected != PADDING
    weight, bias = model.output_weights
    return cross_entropy(rows[real], weight, expected[real], bias, smoothing=smoothing)


def validation_bleu(model: Seq2Seq, corpus: Corpus, *, lowercase: bool) -> TranslationScore:
    """BLEU of greedy translations of the validation pairs; of a source that is too long, its first tokens."""
    sources, targets = (side[:VALIDATED] for side in corpus.validation)
    tokens = [ids[: corpus.longest] for ids in corpus.vocabularies.encode(sources)]
    limit = length_limit(corpus.longest_target, corpus.longest)
    translations = corpus.vocabularies.decode(translate_tokens(model, tokens, limit))
    return translation_score(translations, targets, tokenize=corpus.bleu_tokenizer, lowercase=lowercase)


def length_limit(longest_target: int, longest: int) -> Callable[[_Lengths], _Lengths]:
    """From numbers of source tokens to the maximum numbers of target tokens, including the end.

    The limit is that of the longest training target, or twice the source's length plus 20 if that is more; at most
    `longest`.

    >>> import numpy as np
    >>> length_limit(45, 200)(np.array([1, 30, 500])).tolist()
    [46, 81, 201]
    """
    return lambda lengths: np.minimum(np.maximum(2 * lengths + 20, longest_target), longest) + 1


def translate_tokens(
    model: Seq2Seq,
    sources: Sequence[list[int]],
    limit: Callable[[_Lengths], _Lengths],
    *,
    size: int = 1,
    penalty: float = 0.0,
    progress: Callable[[int], None] = lambda done: None,
) -> list[list[int]]:
    """The target tokens of each source, none for an empty one.

    limit      from the sources' lengths to the maximum lengths of their targets, including the end
    size       the number of open hypotheses; 1 is the greedy search
    progress   is called with the number of sentences translated so far
    """
    lengths = np.array([len(source) for source in sources], dtype=np.int64)
    order = np.argsort(-lengths, kind="stable")  # sentences of similar length together: little padding
    order = order[lengths[order] > 0]
    empty = len(sources) - len(order)

    def batches() -> Iterator[Batch[Any]]:
        for group in group_by_tokens(lengths[order], SEARCHED_TOKENS // size):
            inputs = order[group].tolist()
            length = torch.from_numpy(limit(lengths[inputs]))
            source = pad_rows([sources[index] for index in inputs])
            state = model.begin(source, torch.from_numpy(lengths[inputs]), int(length.max()))
            yield Batch(inputs, state, length)

    tokens = decode_batches(
        forbid(cast(Step[Any], model.step), [PADDING, START]),
        batches(),
        start=START,
        end=END,
        size=size,
        penalty=penalty,
        progress=lambda done: progress(empty + done),
    )
    return [tokens.get(index, []) for index in range(len(sources))]
