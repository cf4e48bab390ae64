"""The loss and the validation of a `Translator`, and the search for the translations of many sentences."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.data.text import PairBatch, group_by_tokens, pad_rows
from regard.data.tokenizers import END, PADDING, START
from regard.decoding import Batch, Step, decode_batches, forbid
from regard.estimators.translation.corpus import VALIDATED, Corpus
from regard.estimators.translation.evidence import TranslationScore, translation_score
from regard.models.recurrent import Bahdanau, Luong, Vanilla
from regard.models.transformer import Transformer
from regard.ops.cross_entropy import cross_entropy

SEARCHED_TOKENS = 1 << 13
"""The maximum number of source tokens times hypotheses in a batch of a search."""

Seq2Seq = Transformer | Vanilla | Bahdanau | Luong
"""The sequence-to-sequence models, which have the same methods; see `regard.models.recurrent`."""

_Lengths = NDArray[np.int64]


def mean_loss(model: Seq2Seq, batch: PairBatch, smoothing: float) -> Tensor:
    """The mean cross-entropy of the target tokens; padding does not count."""
    given, expected = batch.target[:, :-1], batch.target[:, 1:]
    rows, real = model.rows(batch.source, batch.lengths, given), expected != PADDING
    weight, bias = model.output_weights
    return cross_entropy(rows[real], weight, expected[real], bias, smoothing=smoothing)


def target_tokens(batch: PairBatch) -> int:
    """The number of target tokens that are predicted."""
    return int((batch.target[:, 1:] != PADDING).sum())


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
