"""A translator, trained on a user's own sentences: recurrent networks without and with attention, and the Transformer.

The networks are those of `regard.models.recurrent` and `regard.models.transformer`, the loop `regard.training`, the
search `regard.decoding`. An epoch is validated by what users get: the BLEU of translations by the model itself.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, Self

import torch
from sklearn.utils.validation import check_is_fitted
from torch import nn

from regard.data.text import as_pairs, as_sentences, token_batches
from regard.data.tokenizers import START, Vocabularies, train_vocabularies
from regard.estimators.common import (
    OPTIMIZERS,
    State,
    TrainedEstimator,
    check_search,
    module_arrays,
    predicted_tokens,
    restored_module,
)
from regard.estimators.settings import Training, setting, with_settings
from regard.estimators.translation.evidence import Alignment, TranslationScore, translation_score
from regard.estimators.translation.training import (
    Corpus,
    Seq2Seq,
    length_limit,
    mean_loss,
    prepare_corpus,
    tokens_by_epoch,
    translate_tokens,
    validation_bleu,
)
from regard.models.recurrent import Bahdanau, Location, Luong, RecurrentConfig, Vanilla, concat
from regard.models.transformer import TransformerConfig, transformer
from regard.progress import ProgressBar
from regard.scores import Bilinear
from regard.training import History, Monitor


@with_settings
class Translator(Training, TrainedEstimator):
    """Learns to translate from pairs of sentences.

    `model`: "transformer"; "bahdanau" or "luong", recurrent with attention; "rnn", recurrent without attention.
    `piece_dropout` shows words in different pieces in each epoch: 0.05 helps a little with few sentences and many
    epochs. Pairs longer than `longest` are left out with a warning. `window`: "local-m" attends near the diagonal,
    "local-p" near an index that the network predicts. The learning rate rises for `warm` steps, then falls along a
    cosine. The mean of the weights of the last `average` epochs is used if it validates better than the best epoch.

    After `fit`: `model_`, `vocabularies_`, `history_` (validations are -BLEU), `counted_` (the unit of that BLEU:
    "13a", words, or "char", characters, if most targets have fewer than four words), `left_out_` (indices of pairs).

    >>> from regard.data.samples import dates
    >>> sources, targets = dates(300, seed=0)
    >>> translator = Translator("bahdanau", tokens="characters", size=16, epochs=1, verbose=False)
    >>> len(translator.fit(sources, targets).translate(["4 July 1976"]))
    1
    """

    model: Literal["transformer", "bahdanau", "luong", "rnn"] = setting("network", default="transformer", kw_only=False)
    tokens: Literal["pieces", "characters"] = setting("kind of token", default="pieces")
    vocabulary: int = setting("number of BPE pieces", default=8000)
    piece_dropout: float = setting("fraction of BPE merges skipped", default=0.0, at_least=0, below=1)
    joint: bool = setting("one vocabulary for both languages", default=True)
    lower: bool = setting("read and write lower case only", default=False)
    longest: int = setting("maximum number of tokens of a sentence", default=200)
    size: int = setting("size of the token vectors", default=256)
    hidden: int | None = setting("feed-forward or RNN size; 4 or 2 · size", default=None)
    blocks: int = setting("transformer: number of blocks", default=3)
    heads: int = setting("transformer: attention heads per block", default=4)
    cell: Literal["gru", "lstm"] = setting("recurrent models: cell", default="gru")
    layers: int = setting("recurrent models: number of layers", default=1)
    attention: Literal["dot", "general", "concat", "location"] = setting("luong", default="general")
    window: Literal["local-m", "local-p"] | None = setting("luong: local attention", default=None)
    radius: int = setting("luong: radius of the window in tokens", default=10)
    input_feeding: bool = setting("luong: feed the attention back", default=True)
    dropout: float = setting("fraction of activations dropped", default=0.3, at_least=0, below=1)
    attention_dropout: float = setting("fraction of attention weights dropped", default=0.0, at_least=0, below=1)
    epochs: int = setting("passes over the training pairs", default=30)
    batch_tokens: int = setting("tokens per batch, on each side", default=2048)
    learning_rate: float | None = setting("peak rate; 3e-3 for transformer, else 1e-3", default=None, above=0)
    smoothing: float = setting("label smoothing", default=0.1, at_least=0, below=1)
    average: int = setting("number of last epochs to average", default=5)

    def fit(
        self,
        sources: Sequence[str],
        targets: Sequence[str],
        *,
        validation: tuple[Sequence[str], Sequence[str]] | None = None,
        checkpoint: str | Path | None = None,
        resume: bool = False,
        tensorboard: str | Path | None = None,
    ) -> Self:
        """Train on sentences and their translations.

        validation   sources and targets to choose the best epoch by; by default `validation_fraction` of the pairs
        checkpoint   a folder for the run, written after each epoch; with `resume`, a run there is resumed
        tensorboard  a folder for TensorBoard
        """
        seed = self._checked_seed()
        if self.piece_dropout and self.tokens != "pieces":
            raise ValueError(
                f"piece_dropout needs tokens='pieces', got piece_dropout={self.piece_dropout} and tokens='characters'"
            )
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
            monitor = Monitor("learning to translate", self.verbose, unit="tokens", tensorboard=tensorboard)
            texts = map("\n".join, (*corpus.given, *corpus.validation))
            run = self._start_run(monitor, checkpoint, resume, seed=seed, data=texts)
            history = self._train(model, corpus, seed, run)
        self.vocabularies_, self.history_, self.left_out_ = corpus.vocabularies, history, corpus.left_out
        self.longest_target_, self.counted_ = corpus.longest_target, corpus.bleu_tokenizer
        self.model_ = model.eval().requires_grad_(False)
        return self

    def _train(self, model: Seq2Seq, corpus: Corpus, seed: int, run: Callable[..., History]) -> History:
        """Train a network on a corpus; it ends with the weights of the best validation."""
        rate = float(self.learning_rate or (3e-3 if self.model == "transformer" else 1e-3))
        optimizer = OPTIMIZERS[self.optimizer](model, lr=rate, weight_decay=self.weight_decay, betas=(0.9, 0.98))
        tokens = tokens_by_epoch(corpus, self.piece_dropout, seed)
        batches = len(token_batches(*tokens(0), self.batch_tokens))
        steps = self.epochs * math.ceil(batches / self.accumulate)
        return run(
            model,
            lambda epoch: token_batches(*tokens(epoch), self.batch_tokens, (seed, epoch)),
            lambda batch: mean_loss(model, batch, self.smoothing),
            self._recipe(
                optimizer, self.epochs, steps, lambda batch: predicted_tokens(batch.target), average=self.average
            ),
            validate=lambda: -float(validation_bleu(model, corpus, lowercase=self.lower)),
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

    def _learned(self) -> State:
        config = {"left_out": self.left_out_, "longest_target": self.longest_target_, "counted": self.counted_}
        return State(config, module_arrays(self.model_), self.vocabularies_.to_json())

    def _restore(self, config: dict[str, Any], arrays: dict[str, Any]) -> None:
        self.vocabularies_ = Vocabularies.from_json(config)
        self.left_out_ = config["left_out"]
        self.longest_target_ = config["longest_target"]
        self.counted_ = config.get("counted", "13a")  # missing in folders of earlier versions
        self.model_ = restored_module(self._build_network(self.vocabularies_), arrays)

    def _build_network(self, known: Vocabularies) -> Seq2Seq:
        """A network of the settings for these vocabularies, with random weights."""
        size, dropout = int(self.size), float(self.dropout)  # NumPy's numbers too
        hidden = None if self.hidden is None else int(self.hidden)
        if self.model == "transformer":
            config = TransformerConfig(
                blocks=int(self.blocks),
                heads=int(self.heads),
                size=size,
                hidden=hidden,
                activation=torch.relu,
                dropout=dropout,
                attention_dropout=float(self.attention_dropout),
            )
            return transformer(*known.sizes, config, shared=known.joint)
        recurrent = RecurrentConfig(
            size=size,
            hidden=2 * size if hidden is None else hidden,
            cell=nn.LSTM if self.cell == "lstm" else nn.GRU,
            layers=int(self.layers),
            bidirectional=self.attention != "dot" if self.model == "luong" else None,
            dropout=dropout,
            shared=known.joint,
            tied=True,
        )
        if self.model == "rnn":
            return Vanilla(*known.sizes, recurrent)
        if self.model == "bahdanau":
            return Bahdanau(*known.sizes, recurrent)
        scores: dict[str, Callable[[int, int], nn.Module] | None] = {
            "dot": None,
            "general": Bilinear,
            "concat": concat,
            "location": lambda state, _: Location(state, max_length=self.longest),
        }
        return Luong(
            *known.sizes,
            recurrent,
            score=scores[self.attention],
            radius=None if self.window is None else self.radius,
            predicted=self.window == "local-p",
            feeding=self.input_feeding,
        )

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
