"""A translator on a user's own sentences: from one context vector to attention to the Transformer.

The models are those of `regard.models.recurrent` and `regard.models.transformer`, the loop `regard.training`, the
search `regard.decoding`. What is validated is what is asked for later: sentences that the model wrote itself, by BLEU.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Self

import torch
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from regard.data.sentence_pairs import START, as_pairs, as_sentences
from regard.data.tokenizers import Vocabularies
from regard.estimators.common import (
    OPTIMIZERS,
    check_between,
    check_choice,
    check_from_zero,
    check_whole,
    kept_run,
    restored_history,
    saved_history,
)
from regard.estimators.settings import check_search, saved_settings, seed_of
from regard.estimators.translation.decoding import searched
from regard.estimators.translation.evidence import Alignment
from regard.estimators.translation.networks import CHOICES, Seq2Seq, seq2seq
from regard.estimators.translation.scores import TranslationScore, translation_score
from regard.estimators.translation.training import learn, material, most_tokens
from regard.progress import ProgressBar
from regard.saving import array_of, write
from regard.training import History


class Translator(BaseEstimator):  # type: ignore[misc]
    """Learns to translate from pairs of sentences.

    model            "transformer"; "bahdanau" or "luong", recurrent with attention; "rnn", recurrent without
    tokens           "pieces": byte-level BPE, learned from the sentences; or "characters"
    vocabulary       how many pieces
    piece_dropout    the share of BPE's joins that are passed over in training, in each epoch others, so that words are
                     learned in several splits; 0.05 is a little better with few sentences and many epochs
    joint            one vocabulary for both languages, or one for each
    lower            read and write lower case only
    longest          the most tokens of a sentence; pairs with longer ones are left out, counted and reported
    size             of the tokens' vectors, and of the Transformer's rows
    hidden           of the Transformer's feed-forward, 4 · size where it is None; or of a recurrent state, 2 · size
    blocks, heads    of the Transformer
    cell, layers     of the recurrent models: "gru" or "lstm", and how many above each other
    attention        of "luong": its score, "dot", "general", "concat" or "location"
    window           of "luong": None, to look everywhere; "local-m", along the diagonal; "local-p", where the model
                     predicts it; `radius`: how far such a window reaches to each side
    input_feeding    of "luong": the last attention vector goes into the next step
    dropout          the share that is dropped in training; `attention_dropout`: of the Transformer's weights
    epochs           passes over the pairs, of batches of at most `batch_tokens` tokens on either side
    accumulate       batches to a step of the optimizer
    optimizer        "muon", which learns more in a step (`regard.training.Muon`); or "adamw", whose steps cost less
    learning_rate    after `warm` steps; it falls along a cosine. None: 3e-3 for "transformer", else 1e-3
    smoothing        how much of each target is spread over the whole vocabulary
    average          the mean of the weights after so many last epochs is tried too, and kept where it validates better
    validation_fraction   of the pairs, held out, where `fit` is not given any to validate with
    patience         stop after so many epochs without a better validation; None: go on to the end
    random_state     a seed: one seed, one result
    verbose          progress bars, where it takes longer than a second

    After `fit`: `model_`, `vocabularies_`, `history_` (validations are -BLEU), `counted_` (what that BLEU is of: "13a",
    words, or "char" where targets have hardly four), `left_out_` (places of pairs, from 0).

    >>> from regard.data.samples import dates
    >>> asked, right = dates(300, seed=0)
    >>> translator = Translator("bahdanau", tokens="characters", size=16, epochs=1, verbose=False)
    >>> len(translator.fit(asked, right).translate(["4 July 1976"]))
    1
    """

    model_: Seq2Seq
    vocabularies_: Vocabularies
    history_: History
    left_out_: dict[str, list[int]]
    longest_target_: int
    counted_: str

    def __init__(
        self,
        model: Literal["transformer", "bahdanau", "luong", "rnn"] = "transformer",
        *,
        tokens: Literal["pieces", "characters"] = "pieces",
        vocabulary: int = 8000,
        piece_dropout: float = 0.0,
        joint: bool = True,
        lower: bool = False,
        longest: int = 200,
        size: int = 256,
        blocks: int = 3,
        heads: int = 4,
        hidden: int | None = None,
        cell: Literal["gru", "lstm"] = "gru",
        layers: int = 1,
        attention: Literal["dot", "general", "concat", "location"] = "general",
        window: Literal["local-m", "local-p"] | None = None,
        radius: int = 10,
        input_feeding: bool = True,
        dropout: float = 0.3,
        attention_dropout: float = 0.0,
        epochs: int = 30,
        batch_tokens: int = 2048,
        accumulate: int = 1,
        optimizer: Literal["muon", "adamw"] = "muon",
        learning_rate: float | None = None,
        warm: int = 400,
        weight_decay: float = 0.01,
        smoothing: float = 0.1,
        clip: float = 1.0,
        average: int = 5,
        validation_fraction: float = 0.05,
        patience: int | None = None,
        random_state: int | None = None,
        verbose: bool = True,
    ) -> None:
        self.model = model
        self.tokens = tokens
        self.vocabulary = vocabulary
        self.piece_dropout = piece_dropout
        self.joint = joint
        self.lower = lower
        self.longest = longest
        self.size = size
        self.blocks = blocks
        self.heads = heads
        self.hidden = hidden
        self.cell = cell
        self.layers = layers
        self.attention = attention
        self.window = window
        self.radius = radius
        self.input_feeding = input_feeding
        self.dropout = dropout
        self.attention_dropout = attention_dropout
        self.epochs = epochs
        self.batch_tokens = batch_tokens
        self.accumulate = accumulate
        self.optimizer = optimizer
        self.learning_rate = learning_rate
        self.warm = warm
        self.weight_decay = weight_decay
        self.smoothing = smoothing
        self.clip = clip
        self.average = average
        self.validation_fraction = validation_fraction
        self.patience = patience
        self.random_state = random_state
        self.verbose = verbose

    def fit(
        self,
        sources: Sequence[str],
        targets: Sequence[str],
        *,
        validation: tuple[Sequence[str], Sequence[str]] | None = None,
        checkpoint: str | Path | None = None,
        resume: bool = False,
        board: str | Path | None = None,
    ) -> Self:
        """Learn from sentences and their translations.

        validation   sources and targets to choose the best epoch by; a part of the pairs where it is not given
        checkpoint   a folder for the run, written after each epoch; with `resume`, a run there goes on
        board        a folder for TensorBoard
        """
        self.check_settings()
        seed = seed_of(self.random_state)
        found = material(self, sources, targets, validation, seed)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = self.make_model(found.known)
            texts = map("\n".join, (*found.pairs, *found.validated))
            run = kept_run(self, checkpoint, resume, every=1 << 30, seed=seed, data=texts)
            history = learn(self, found, model, seed, run, board)
        self.vocabularies_, self.history_, self.left_out_ = found.known, history, found.left_out
        self.longest_target_, self.counted_ = found.longest_target, found.counted
        self.model_ = model.eval().requires_grad_(False)
        return self

    def translate(self, sentences: Sequence[str], beam: int = 5, penalty: float = 1.0) -> list[str]:
        """The translation of each sentence, in their order; of an empty one, an empty one.

        beam      how many hypotheses a sentence has; 1 takes the likeliest token each time
        penalty   how much longer sentences are favoured, α of `regard.decoding.beam`
        """
        check_is_fitted(self)
        check_search(beam, penalty)
        sources = self.asked(as_sentences(sentences))
        with ProgressBar("translating", len(sources), shown=self.verbose) as bar:
            limit = most_tokens(self.longest_target_, self.longest)
            found = searched(self.model_, sources, size=beam, penalty=penalty, limit=limit, done=bar.note)
        return self.vocabularies_.written(found)

    def predict(self, sentences: Sequence[str]) -> list[str]:
        """The same, under scikit-learn's name."""
        return self.translate(sentences)

    def score(
        self,
        sources: Sequence[str],
        targets: Sequence[str],
        *,
        beam: int = 5,
        tokenize: str = "13a",
        lowercase: bool | None = None,
    ) -> TranslationScore:
        """BLEU of the translations, a number from 0 to 100 that also knows its signature, and chrF.

        tokenize    sacreBLEU's name for how words are told apart; "none" for texts that are tokenised already
        lowercase   whether case counts for nothing; as the model reads and writes, where it is not given
        """
        asked, right = as_pairs(sources, targets)
        lowercase = self.lower if lowercase is None else lowercase
        translation_score(right[:1], right[:1], tokenize=tokenize)  # what it refuses is refused before the work
        return translation_score(self.translate(asked, beam), right, tokenize=tokenize, lowercase=lowercase)

    def evidence(self, sentence: str, translation: str | None = None, *, beam: int = 5) -> Alignment:
        """What each token of a translation looked at: of the model's own, where none is given."""
        check_is_fitted(self)
        known = self.vocabularies_
        check_search(beam, 1.0)
        [source] = self.asked(as_sentences([sentence]))
        if not source:
            raise ValueError("an empty sentence has nothing to look at")
        if translation is None:
            limit = most_tokens(self.longest_target_, self.longest)
            [target] = searched(self.model_, [source], size=beam, penalty=1.0, limit=limit)
        else:
            [target] = known.coded(as_sentences([translation]), target=True)
        model: Any = self.model_
        with torch.inference_mode():
            read = torch.tensor([[START, *target]])
            weight = model.look(torch.tensor([source]), torch.tensor([len(source)]), read)
        shown = [*known.shown(target, target=True), "■"]
        return Alignment(known.shown(source), shown, weight[0].double().numpy(), known.written([target])[0])

    def save(self, folder: str | Path) -> Path:
        """Write the model to a folder, from which `regard.load` reads it."""
        check_is_fitted(self)
        return write(folder, *self.state())

    def state(self) -> tuple[dict[str, Any], dict[str, Any], dict[str, str]]:
        """All there is to a fitted model: what JSON can hold, arrays, and the tokenizers."""
        config = {
            "estimator": "Translator",
            "settings": saved_settings(self),
            **saved_history(self.history_),
            "left_out": self.left_out_,
            "longest_target": self.longest_target_,
            "counted": self.counted_,
        }
        arrays = {name: array_of(tensor) for name, tensor in self.model_.state_dict().items()}
        return config, arrays, self.vocabularies_.saved()

    @classmethod
    def from_state(cls, config: dict[str, Any], arrays: dict[str, Any]) -> Self:
        """The model that was saved."""
        translator = cls(**config["settings"])
        translator.vocabularies_ = Vocabularies.restored(config)
        translator.left_out_ = config["left_out"]
        translator.history_ = restored_history(config)
        translator.longest_target_ = config["longest_target"]
        translator.counted_ = config.get("counted", "13a")  # as in folders of before it was kept
        model = translator.make_model(translator.vocabularies_)
        model.load_state_dict({name: torch.as_tensor(array) for name, array in arrays.items()})
        translator.model_ = model.eval().requires_grad_(False)
        return translator

    def make_model(self, known: Vocabularies) -> Seq2Seq:
        """A model of the settings for these vocabularies, with new weights."""
        return seq2seq(
            *known.sizes,
            shared=known.joint,
            model=self.model,
            size=self.size,
            hidden=self.hidden,
            blocks=self.blocks,
            heads=self.heads,
            cell=self.cell,
            layers=self.layers,
            attention=self.attention,
            window=self.window,
            radius=self.radius,
            input_feeding=self.input_feeding,
            longest=self.longest,
            dropout=self.dropout,
            attention_dropout=self.attention_dropout,
        )

    def asked(self, sentences: Sequence[str]) -> list[list[int]]:
        """The tokens of sentences to translate."""
        coded = self.vocabularies_.coded(sentences)
        long = [place for place, ids in enumerate(coded) if len(ids) > self.longest]
        if long:
            more = f", and so are {len(long) - 1} others" if len(long) > 1 else ""
            raise ValueError(
                f"sentence {long[0] + 1} has {len(coded[long[0]])} tokens, more than the model's longest,"
                f" {self.longest}{more}: cut them in two"
            )
        return coded

    def check_settings(self) -> None:
        """What must hold of the settings, before a sentence is read."""
        check_choice(self, tokens=("pieces", "characters"), optimizer=tuple(OPTIMIZERS), **CHOICES)
        check_whole(self, ("vocabulary", "longest", "size", "blocks", "heads", "layers", "radius"))
        check_whole(self, ("epochs", "batch_tokens", "accumulate", "average"))
        check_whole(self, [name for name in ("hidden", "patience") if getattr(self, name) is not None])
        check_between(self, clip=(0, math.inf), validation_fraction=(0, 1))
        if self.learning_rate is not None:
            check_between(self, learning_rate=(0, math.inf))
        check_from_zero(self, dropout=1, attention_dropout=1, piece_dropout=1)
        check_from_zero(self, smoothing=1, warm=math.inf, weight_decay=math.inf)
        if self.piece_dropout and self.tokens != "pieces":
            raise ValueError(
                f"piece_dropout needs tokens='pieces', got piece_dropout={self.piece_dropout} and characters"
            )
        check_choice(self, joint=(True, False), lower=(True, False), input_feeding=(True, False))
