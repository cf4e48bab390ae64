"""What a `Translator` gives beside translations: their alignment with the source, and their score."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from regard.checks import optional_import
from regard.estimators.common import checked_top, largest_weights

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame


@dataclass(frozen=True)
class Alignment:
    """The attention weights of all source tokens at each target token. The last row is the end of the sentence.

    >>> import numpy as np
    >>> weight = np.array([[0.9, 0.1], [0.2, 0.8], [0.5, 0.5]])
    >>> alignment = Alignment(["ein", "Hund"], ["a", "dog", "■"], weight, "a dog")
    >>> alignment.to_frame(top=1)[["token", "looked_at", "weight"]].values.tolist()
    [['a', 'ein', 0.9], ['dog', 'Hund', 0.8], ['■', 'ein', 0.5]]
    """

    source: list[str]
    target: list[str]
    weight: NDArray[np.float64]  # [target, source]; each row sums to 1, or to less if a window ends smoothly
    translation: str

    def to_frame(self, top: int | None = None) -> "DataFrame":
        """A row for each target token and source token: both with their indices, the rank and the weight.

        top   the number of source tokens for each target token, largest weight first; all by default
        """
        import pandas as pd

        target, rank, source = largest_weights(self.weight, checked_top(top, len(self.source), "tokens"))
        return pd.DataFrame(
            {
                "place": target,
                "token": np.array(self.target, dtype=object)[target],
                "rank": rank,
                "looked_at": np.array(self.source, dtype=object)[source],
                "looked_at_place": source,
                "weight": self.weight[target, source],
            }
        )

    def to_json(self) -> dict[str, list[str] | list[list[float]]]:
        """Tokens and weights as JSON can hold them."""
        return {"source": self.source, "target": self.target, "weight": self.weight.round(4).tolist()}

    def plot(self, axes: "Axes | None" = None) -> "Axes":
        """A heat map: source tokens at the top, target tokens at the side, dark for a large weight."""
        from regard.plots import alignment_map

        keys, queries = ([_token_label(token) for token in side] for side in (self.source, self.target))
        axes = alignment_map(self.weight, keys, queries, axes=axes)
        axes.set(xlabel="source", ylabel="translation")
        axes.set_title("what each token of the translation looked at", loc="left")
        return axes


def _token_label(token: str) -> str:
    """A token as a label: a space is shown as ␣ if it is the whole token, and stripped from a word."""
    return "␣" if token == " " else token.strip() or "·"


class TranslationScore(float):
    """BLEU, from 0 to 100: a number with more attributes.

    signature        how BLEU was counted: tokens, smoothing, version
    chrf             F-score of character n-grams, from 0 to 100
    chrf_signature   how chrF was counted

    >>> score = translation_score(["the cat sat on the mat"], ["the cat sat on the mat"])
    >>> round(score, 1), round(score.chrf, 1), "tok:13a" in score.signature
    (100.0, 100.0, True)
    """

    signature: str
    chrf: float
    chrf_signature: str

    def __repr__(self) -> str:
        return f"BLEU {float(self):.2f} ({self.signature}), chrF {self.chrf:.2f} ({self.chrf_signature})"

    __str__ = __repr__


def translation_score(
    translations: Sequence[str], references: Sequence[str], *, tokenize: str = "13a", lowercase: bool = False
) -> TranslationScore:
    """BLEU and chrF of translations by sacreBLEU, with the signatures that make two scores comparable.

    tokenize   sacreBLEU's name of a tokenizer; "none" for texts that are tokenized already
    """
    with optional_import("scores of translations need the package sacrebleu"):
        from sacrebleu.metrics.bleu import BLEU
        from sacrebleu.metrics.chrf import CHRF
    known = BLEU.TOKENIZERS
    if tokenize not in known:
        raise ValueError(f"tokenize must be one of {', '.join(map(str, known))}, got {tokenize!r}")
    bleu, chrf = BLEU(tokenize=tokenize, lowercase=lowercase, force=True), CHRF(lowercase=lowercase)
    score = TranslationScore(bleu.corpus_score(list(translations), [list(references)]).score)
    score.chrf = chrf.corpus_score(list(translations), [list(references)]).score
    score.signature, score.chrf_signature = str(bleu.get_signature()), str(chrf.get_signature())
    return score
