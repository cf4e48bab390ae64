"""A translator on a user's own sentences: from one context vector to attention to the Transformer.

The models are those of `regard.models.recurrent` and `regard.models.transformer`, the loop `regard.training`, the
search `regard.decoding`. What is validated is what is asked for later: sentences that the model wrote itself, by BLEU.
"""

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, Self

import torch
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from regard.data.sentence_pairs import TokenBatches, as_pairs, as_sentences
from regard.data.tokenizers import START, Vocabularies, train_vocabularies
from regard.estimators.common import (
    OPTIMIZERS,
    check_between,
    check_choice,
    check_from_zero,
    check_search,
    check_whole,
    restored_history,
    run_checkpoint,
    saved_history,
)
from regard.estimators.settings import saved_settings, seed_of
from regard.estimators.translation.corpus import Corpus, prepare_corpus, tokens_by_epoch
from regard.estimators.translation.evidence import Alignment, TranslationScore, translation_score
from regard.estimators.translation.training import (
    Architecture,
    Seq2Seq,
    build_network,
    length_limit,
    mean_loss,
    target_tokens,
    translate_tokens,
    validation_bleu,
)
from regard.progress import ProgressBar
from regard.saving import to_array, write_folder
from regard.training import Checkpoint, History, Monitor, ProcessGroup, Recipe, train, warm_cosine

CHOICES: dict[str, tuple[str | None, ...]] = {
    "model": ("transformer", "bahdanau", "luong", "rnn"),
    "cell": ("gru", "lstm"),
    "attention": ("dot", "general", "concat", "location"),
    "window": (None, "local-m", "local-p"),
}
"""Settings that are one of some words."""


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
        """Train on sentences and their translations.

        validation   sources and targets to choose the best epoch by; by default `validation_fraction` of the pairs
        checkpoint   a folder for the run, written after each epoch; with `resume`, a run there is resumed
        board        a folder for TensorBoard
        """
        self.check_settings()
        seed = seed_of(self.random_state)
        corpus = prepare_corpus(
            as_pairs(sources, targets),
            validation,
            partial(train_vocabularies, tokens=self.tokens, count=self.vocabulary, joint=self.joint, lower=self.lower),
            longest=self.longest,
            validation_fraction=self.validation_fraction,
            seed=seed,
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = self._build_network(corpus.vocabularies)
            texts = map("\n".join, (*corpus.given, *corpus.validation))
            run = run_checkpoint(self, checkpoint, resume, every=1 << 30, seed=seed, data=texts)
            monitor = Monitor("learning to translate", self.verbose, unit="tokens", tensorboard=board)
            history = self._train(model, corpus, seed, run, monitor)
        self.vocabularies_, self.history_, self.left_out_ = corpus.vocabularies, history, corpus.left_out
        self.longest_target_, self.counted_ = corpus.longest_target, corpus.bleu_tokenizer
        self.model_ = model.eval().requires_grad_(False)
        return self

    def _train(
        self, model: Seq2Seq, corpus: Corpus, seed: int, checkpoint: Checkpoint | None, monitor: Monitor
    ) -> History:
        """Train a network on a corpus; it ends with the weights of the best validation."""
        rate = float(self.learning_rate or (3e-3 if self.model == "transformer" else 1e-3))
        optimizer = OPTIMIZERS[self.optimizer](model, rate, self.weight_decay, betas=(0.9, 0.98))
        tokens = tokens_by_epoch(corpus, self.piece_dropout, seed)
        batches = len(TokenBatches(*tokens(0), self.batch_tokens))
        steps = self.epochs * math.ceil(batches / self.accumulate)
        recipe = Recipe(
            optimizer,
            self.epochs,
            schedule=warm_cosine(optimizer, steps, warm=min(self.warm, steps), least=0.02),
            clip=self.clip,
            accumulate=self.accumulate,
            count=target_tokens,
            average=self.average,
            patience=self.patience,
        )
        return train(
            model,
            lambda epoch: TokenBatches(*tokens(epoch), self.batch_tokens, (seed, epoch)),
            lambda batch: mean_loss(model, batch, self.smoothing),
            recipe,
            validate=lambda: -float(validation_bleu(model, corpus, lowercase=self.lower)),
            monitor=monitor,
            checkpoint=checkpoint,
            group=ProcessGroup.from_environment(),
        )

    def translate(self, sentences: Sequence[str], beam: int = 5, penalty: float = 1.0) -> list[str]:
        """The translation of each sentence, in the same order; that of an empty one is empty.

        beam      the number of open hypotheses of a sentence; 1 takes the likeliest token at each step
        penalty   α of the length penalty in `regard.decoding.beam`: larger values favour longer translations
        """
        check_is_fitted(self)
        check_search(beam, penalty)
        sources = self.encode(as_sentences(sentences))
        with ProgressBar("translating", len(sources), shown=self.verbose) as bar:
            limit = length_limit(self.longest_target_, self.longest)
            tokens = translate_tokens(self.model_, sources, limit, size=beam, penalty=penalty, progress=bar.update)
        return self.vocabularies_.decode(tokens)

    def predict(self, sentences: Sequence[str]) -> list[str]:
        """`translate`, under scikit-learn's name."""
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
        """BLEU of the translations, from 0 to 100, with its signature and chrF.

        tokenize    sacreBLEU's name of a tokenizer; "none" for texts that are tokenized already
        lowercase   ignore case; by default as the model's setting `lower`
        """
        pairs = as_pairs(sources, targets)
        lowercase = self.lower if lowercase is None else lowercase
        translation_score(pairs.targets[:1], pairs.targets[:1], tokenize=tokenize)  # raises before the long work
        translations = self.translate(pairs.sources, beam)
        return translation_score(translations, pairs.targets, tokenize=tokenize, lowercase=lowercase)

    def evidence(self, sentence: str, translation: str | None = None, *, beam: int = 5) -> Alignment:
        """The attention weights of each token of a translation; of the model's own translation by default."""
        check_is_fitted(self)
        known = self.vocabularies_
        check_search(beam, 1.0)
        [source] = self.encode(as_sentences([sentence]))
        if not source:
            raise ValueError("sentence must not be empty: it has no tokens to look at")
        if translation is None:
            limit = length_limit(self.longest_target_, self.longest)
            [target] = translate_tokens(self.model_, [source], limit, size=beam, penalty=1.0)
        else:
            [target] = known.encode(as_sentences([translation]), target=True)
        with torch.inference_mode():
            given = torch.tensor([[START, *target]])
            weight = self.model_.look(torch.tensor([source]), torch.tensor([len(source)]), given)
        tokens = [*known.labels(target, target=True), "■"]
        return Alignment(known.labels(source), tokens, weight[0].double().numpy(), known.decode([target])[0])

    def save(self, folder: str | Path) -> Path:
        """Write the model to a folder, from which `regard.load` reads it."""
        check_is_fitted(self)
        return write_folder(folder, *self.state())

    def state(self) -> tuple[dict[str, Any], dict[str, Any], dict[str, str]]:
        """A fitted model as JSON, arrays, and tokenizers."""
        config = {
            "estimator": "Translator",
            "settings": saved_settings(self),
            **saved_history(self.history_),
            "left_out": self.left_out_,
            "longest_target": self.longest_target_,
            "counted": self.counted_,
        }
        arrays = {name: to_array(tensor) for name, tensor in self.model_.state_dict().items()}
        return config, arrays, self.vocabularies_.to_json()

    @classmethod
    def from_state(cls, config: dict[str, Any], arrays: dict[str, Any]) -> Self:
        """The model that `state` was called on."""
        translator = cls(**config["settings"])
        translator.vocabularies_ = Vocabularies.from_json(config)
        translator.left_out_ = config["left_out"]
        translator.history_ = restored_history(config)
        translator.longest_target_ = config["longest_target"]
        translator.counted_ = config.get("counted", "13a")  # missing in folders of earlier versions
        model = translator._build_network(translator.vocabularies_)
        model.load_state_dict({name: torch.as_tensor(array) for name, array in arrays.items()})
        translator.model_ = model.eval().requires_grad_(False)
        return translator

    def _build_network(self, known: Vocabularies) -> Seq2Seq:
        """A network of the settings for these vocabularies, with random weights."""
        settings = {name: getattr(self, name) for name in Architecture._fields}
        return build_network(Architecture(**settings), known)

    def encode(self, sentences: Sequence[str]) -> list[list[int]]:
        """The tokens of sentences to translate; raises ValueError if one is too long."""
        tokens = self.vocabularies_.encode(sentences)
        long = [index for index, ids in enumerate(tokens) if len(ids) > self.longest]
        if long:
            more = f", and so have {len(long) - 1} others" if len(long) > 1 else ""
            raise ValueError(
                f"sentence {long[0] + 1} has {len(tokens[long[0]])} tokens, more than the model's longest,"
                f" {self.longest}{more}: split long sentences"
            )
        return tokens

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
