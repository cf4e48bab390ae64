"""How good translations are: BLEU and chrF by sacreBLEU, with the signatures that make two scores comparable."""

from collections.abc import Sequence
from typing import Any

from regard.data.tables import INSTALL


class TranslationScore(float):
    """BLEU, from 0 to 100, which is a number like any other, and beside it what else there is to say.

    signature        how BLEU was counted: tokens, smoothing, version
    chrf             F-score of character n-grams, from 0 to 100
    chrf_signature   how that was counted

    >>> found = translation_score(["the cat sat on the mat"], ["the cat sat on the mat"])
    >>> round(found, 1), round(found.chrf, 1), "tok:13a" in found.signature
    (100.0, 100.0, True)
    """

    signature: str
    chrf: float
    chrf_signature: str

    def __repr__(self) -> str:
        return f"BLEU {float(self):.2f} ({self.signature}), chrF {self.chrf:.2f} ({self.chrf_signature})"

    __str__ = __repr__


def translation_score(
    written: Sequence[str], right: Sequence[str], *, tokenize: str = "13a", lowercase: bool = False
) -> TranslationScore:
    """The score of what was written, beside what is right.

    tokenize   sacreBLEU's name for how words are told apart; "none" for texts that are tokenised already
    """
    metrics = sacrebleu().metrics
    known = metrics.BLEU.TOKENIZERS
    if tokenize not in known:
        raise ValueError(f"tokenize must be one of {', '.join(map(str, known))}, got {tokenize!r}")
    bleu, chrf = metrics.BLEU(tokenize=tokenize, lowercase=lowercase, force=True), metrics.CHRF(lowercase=lowercase)
    found = TranslationScore(bleu.corpus_score(list(written), [list(right)]).score)
    found.chrf = chrf.corpus_score(list(written), [list(right)]).score
    found.signature, found.chrf_signature = str(bleu.get_signature()), str(chrf.get_signature())
    return found


def sacrebleu() -> Any:
    """The package, or what to do without it."""
    try:
        import sacrebleu.metrics
    except ImportError:
        raise ModuleNotFoundError(f"scores of translations need the package sacrebleu: {INSTALL}") from None
    return sacrebleu
