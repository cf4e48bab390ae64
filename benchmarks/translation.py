"""Translators compared with usual implementations, on Multi30k: speed in one process, and the scores of recorded runs.

    python -m benchmarks.translation --data FOLDER                  everything; a quarter of an hour
    python -m benchmarks.translation --data FOLDER --only beam      the cases with this text in their name
    python -m benchmarks.translation --figure docs/translation_length.png

FOLDER contains multi30k/train.en, train.de, val.en, val.de, test_2016_flickr.en and test_2016_flickr.de. The recorded
runs are in benchmarks/results; `benchmarks.translation_quality` trains them.

A training step is forward, backward, clipping and AdamW (fused), over eight batches of the corpus, the same for both
sides, grouped by length or in file order. Both sides have the same weights; their losses without dropout are compared.
torch's side is `nn.Transformer` as in its tutorials: padded batches, masks, the loss over all positions. The
tutorial-style loop for Bahdanau's model projects the keys and computes the logits in every step.
"""

import copy
import json
import os
import time
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.harness import (
    SEED,
    THREADS,
    Case,
    Finding,
    compare_selected,
    machine,
    missing_data,
    note,
    options_parser,
    print_memory,
    print_table,
    report,
    yes_no,
)
from benchmarks.harness import table as rows_table
from benchmarks.translation_quality import PARTS, corpora
from regard import Translator, load, look
from regard.data.text import PairBatch, pair_batch, token_batches
from regard.data.tokenizers import PADDING, train_vocabularies
from regard.estimators.common import adamw
from regard.estimators.translation.training import length_limit, translate_tokens
from regard.layers import Block, Decoder, Encoder, FeedForward, MultiHeadAttention, Sinusoidal
from regard.masks import padding
from regard.models.recurrent import Bahdanau, RecurrentConfig
from regard.models.transformer import Embedding, Transformer
from regard.ops.cross_entropy import cross_entropy

MODULE = "benchmarks.translation"
RESULTS = Path(__file__).parent / "results"
FILES = [f"multi30k/{part}.{language}" for part in PARTS for language in ("en", "de")]
SMOOTHING = 0.1
BOUNDS = {"rnn-en-de": None, "bahdanau-en-de": 35.0, "luong-en-de": 35.0, "transformer-en-de": 39.0}
"""Target BLEU of the runs."""
DATA = "REGARD_BENCHMARK_DATA"
data_folder: Path | None = None
RATES = {"lr": 1e-4, "weight_decay": 0.01}


@cache
def encoded_pairs() -> tuple[list[list[int]], list[list[int]], int]:
    """Token ids of the training set, and the size of the vocabulary."""
    assert data_folder is not None
    pairs = corpora(data_folder, "en", "de")["train"]
    known = train_vocabularies(*pairs, tokens="pieces", count=8000, joint=True, lower=False)
    return known.encode(pairs.source), known.encode(pairs.target, target=True), known.sizes[0]


def batches(count: int, *, by_length: bool) -> list[PairBatch]:
    """Batches of about 2,048 target tokens: grouped by length, or in file order."""
    sources, targets, _ = encoded_pairs()
    made = token_batches(sources, targets, 2048, (SEED, 0))
    if by_length:
        return [batch for batch, _ in zip(made, range(count), strict=False)]
    size = 128
    return [pair_batch(sources[at : at + size], targets[at : at + size]) for at in range(0, count * size, size)]


class Training(NamedTuple):
    """Two models with the same weights, batches and optimizers."""

    ours: Any
    peer: Any
    batches: list[PairBatch]
    optimizers: tuple[Any, Any]


def train_steps(
    model: nn.Module, optimizer: Any, losses: Callable[[PairBatch], Tensor], some: list[PairBatch]
) -> list[Tensor]:
    """One step per batch; returns the last loss."""
    model.train()
    for batch in some:
        optimizer.zero_grad()
        loss = losses(batch)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return [loss.detach()]


@torch.no_grad()
def loss_without_dropout(model: nn.Module, loss: Callable[[PairBatch], Tensor], batch: PairBatch) -> list[Tensor]:
    """The loss of one batch, without dropout."""
    model.eval()
    return [loss(batch)]


def our_loss(model: Any) -> Callable[[PairBatch], Tensor]:
    """The loss of `Translator`, computed only where there is a target token."""

    def loss(batch: PairBatch) -> Tensor:
        inputs, targets = batch.target[:, :-1], batch.target[:, 1:]
        rows, real = model.rows(batch.source, batch.lengths, inputs), targets != PADDING
        weight, bias = model.reader
        return cross_entropy(rows[real], weight, targets[real], bias, smoothing=SMOOTHING)

    return loss


def plain_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """The loss over all positions, ignoring padding."""
    return functional.cross_entropy(
        logits.flatten(0, 1), targets.flatten(), ignore_index=PADDING, label_smoothing=SMOOTHING
    )


class TorchTransformer(nn.Module):
    """torch's Transformer between an embedding and a tied output layer, as in its tutorials."""

    def __init__(self, vocabulary: int, size: int = 128, heads: int = 4, blocks: int = 4, hidden: int = 256) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, size)
        nn.init.normal_(self.embedding.weight, std=size**-0.5)
        self.body = nn.Transformer(size, heads, blocks, blocks, hidden, 0.3, batch_first=True, norm_first=True)
        self.position, self.dropout, self.size = Sinusoidal(size), nn.Dropout(0.3), size

    def embed(self, tokens: Tensor) -> Tensor:
        return self.dropout(self.position(self.embedding(tokens) * self.size**0.5))  # type: ignore[no-any-return]

    def loss(self, batch: PairBatch) -> Tensor:
        inputs, targets = batch.target[:, :-1], batch.target[:, 1:]
        hidden = batch.source == PADDING
        future = nn.Transformer.generate_square_subsequent_mask(inputs.shape[1], dtype=torch.bool)
        rows = self.body(
            self.embed(batch.source),
            self.embed(inputs),
            tgt_mask=future,
            tgt_is_causal=True,
            src_key_padding_mask=hidden,
            memory_key_padding_mask=hidden,
            tgt_key_padding_mask=inputs == PADDING,
        )
        return plain_loss(functional.linear(rows, self.embedding.weight), targets)


def as_ours(theirs: TorchTransformer) -> Transformer:
    """The same model with our layers and the same weights."""
    body, size = theirs.body, theirs.size
    shared = Embedding(theirs.embedding.num_embeddings, size, positions=Sinusoidal(size), scale=size**0.5, dropout=0.3)
    shared.token.load_state_dict(theirs.embedding.state_dict())

    def block(layer: Any) -> Block:
        feed_forward = FeedForward(size, layer.linear1.out_features, activation=torch.relu)
        feed_forward.input.load_state_dict(layer.linear1.state_dict())
        feed_forward.output.load_state_dict(layer.linear2.state_dict())
        attention = MultiHeadAttention.from_torch(layer.self_attn)
        cross = MultiHeadAttention.from_torch(layer.multihead_attn) if hasattr(layer, "multihead_attn") else None
        made = Block(attention, feed_forward, cross=cross, dropout=0.3)
        norms = [made.attention_norm, *([made.cross_norm] if cross else []), made.feed_forward_norm]
        for number, norm in enumerate(norms, 1):
            norm.load_state_dict(getattr(layer, f"norm{number}").state_dict())
        return made

    encoder_blocks, decoder_blocks = iter(body.encoder.layers), iter(body.decoder.layers)
    return Transformer(
        shared,
        shared,
        Encoder(len(body.encoder.layers), lambda: block(next(encoder_blocks)), norm=copy.deepcopy(body.encoder.norm)),
        Decoder(len(body.decoder.layers), lambda: block(next(decoder_blocks)), norm=copy.deepcopy(body.decoder.norm)),
    )


def transformers(by_length: bool) -> Callable[[int], Training]:
    def build(seed: int) -> Training:
        torch.manual_seed(seed)
        theirs = TorchTransformer(encoded_pairs()[2])
        ours = as_ours(theirs)
        some = batches(8, by_length=by_length)
        return Training(ours, theirs, some, (adamw(ours, **RATES), adamw(theirs, **RATES)))

    return build


def step_by_step(model: Bahdanau) -> Callable[[PairBatch], Tensor]:
    """The tutorial-style loop, with the model's own weights."""

    def loss(batch: PairBatch) -> Tensor:
        inputs, targets = batch.target[:, :-1], batch.target[:, 1:]
        memory = model.encode(batch.source, batch.lengths)
        [[state]] = model.initial_states(memory, batch.lengths)
        logits = []
        for step in range(inputs.shape[1]):
            word = model.target(inputs[:, step : step + 1])
            weight = look(state.unsqueeze(1), memory, score=model.score, mask=padding(batch.lengths))
            context = weight @ memory
            _, states = model.decoder(torch.cat([word, context], dim=-1), state.unsqueeze(0))
            state = states[0]
            row = model.dropout(model.output(state, context.squeeze(1), word.squeeze(1)))
            logits.append(model.logits(row))
        return plain_loss(torch.stack(logits, dim=1), targets)

    return loss


def recurrences(seed: int) -> Training:
    torch.manual_seed(seed)
    vocabulary = encoded_pairs()[2]
    config = RecurrentConfig(size=256, hidden=256, dropout=0.3, shared=True, tied=True)
    ours = Bahdanau(vocabulary, vocabulary, config)
    peer = copy.deepcopy(ours)
    return Training(ours, peer, batches(8, by_length=True), (adamw(ours, **RATES), adamw(peer, **RATES)))


def training_case(name: str, build: Callable[[int], Training], peer_loss: Callable[[Any], Any]) -> Case[Training]:
    def side(number: int, loss_of: Callable[[Any], Any]) -> Callable[[Training], Sequence[Tensor]]:
        def run(given: Training) -> Sequence[Tensor]:
            model = given[number]
            return train_steps(model, given.optimizers[number], loss_of(model), given.batches)

        return run

    def check(number: int, loss_of: Callable[[Any], Any]) -> Callable[[Training], Sequence[Tensor]]:
        return lambda given: loss_without_dropout(given[number], loss_of(given[number]), given.batches[0])

    return Case(
        name,
        build,
        side(0, our_loss),
        side(1, peer_loss),
        time_bound=1 / 1.5,
        memory_bound=1.0,
        warm_up=lambda seed: build(seed)._replace(batches=batches(1, by_length=True)),
        checked=(check(0, our_loss), check(1, peer_loss)),
    )


CASES = [
    training_case("Transformer, batches of one length / nn.Transformer", transformers(True), lambda model: model.loss),
    training_case("Transformer, batches in file order / nn.Transformer", transformers(False), lambda model: model.loss),
    training_case("Bahdanau, training / tutorial-style loop", recurrences, step_by_step),
]


def beam_search(data: Path, model: Path | None) -> Finding:
    """Beam 5 over test_2016: batched, and one sentence at a time, with the same model."""
    parts = corpora(data, "en", "de")
    if model is None:
        settings = {"size": 128, "hidden": 256, "blocks": 4, "epochs": 3, "random_state": SEED}
        translator = Translator("transformer", **settings).fit(*parts["train"], validation=parts["val"])
    else:
        translator = load(model)
    sources = translator.vocabularies_.encode(parts[PARTS[-1]].source)
    limit = length_limit(translator.longest_target_, translator.longest)
    search = partial(translate_tokens, translator.model_, limit=limit, size=5, penalty=1.0)
    search(sources[:50])
    began = time.perf_counter()
    together = search(sources)
    middle = time.perf_counter()
    one_by_one = [search([source])[0] for source in sources]
    ours, peer = middle - began, time.perf_counter() - middle
    same = sum(one == other for one, other in zip(together, one_by_one, strict=True)) / len(sources)
    measured = f"{peer / ours:.1f} × ({ours:.1f} s and {peer:.1f} s), {same:.1%} of translations identical"
    return Finding(
        "beam 5 over test_2016, batched / one sentence at a time", "≥ 3 ×", measured, yes_no(peer >= 3 * ours)
    )


def recorded_runs() -> list[Finding]:
    """The scores of the runs in `benchmarks/results`."""
    findings = []
    for file in sorted(RESULTS.glob("translation/*.json")):
        run = json.loads(file.read_text())
        bound = BOUNDS.get(file.stem)
        measured = f"BLEU {run['bleu']:.2f} ({run['signature']}), chrF {run['chrf']:.2f}, {run['minutes']:.0f} minutes"
        measured += f" ({run['note']})" if "note" in run else ""
        met = "" if bound is None else yes_no(run["bleu"] >= bound and run["minutes"] <= 90)
        findings.append(Finding(f"run {file.stem}", "" if bound is None else f"≥ {bound:g} in 90 min", measured, met))
    return findings


def length_figure(path: Path) -> None:
    """Plot BLEU by the number of source words, for the runs from English to German."""
    from regard.plots import BLUE, CYCLE, MARKERS, hide_frame, new_axes

    axes = new_axes(7, 4.2)
    names = {"rnn": "one context vector (rnn)", "bahdanau": "attention (bahdanau)", "transformer": "Transformer"}
    for colour, mark, (run, name) in zip((*CYCLE[:2], BLUE), MARKERS, names.items(), strict=False):
        file = RESULTS / "translation" / f"{run}-en-de.json"
        if file.exists():
            bins = json.loads(file.read_text())["bleu_by_length"]
            axes.plot([b["words"] for b in bins], [b["bleu"] for b in bins], f"{mark}-", color=colour, label=name, lw=2)
            axes.set_xticks(
                range(len(bins)), [f"{b['words'].replace(' and more', '+')}\n({b['sentences']})" for b in bins]
            )
    axes.set(xlabel="source words  (sentences)", ylabel="BLEU on test_2016", ylim=(0, None))
    axes.set_title("Without attention, quality falls with sentence length", loc="left")
    axes.legend(frameon=False)
    hide_frame(axes).figure.savefig(path)
    note(f"figure → {path}")


def main(arguments: Sequence[str] | None = None) -> None:
    global data_folder
    parser = options_parser(MODULE, repeats=6, data="contains multi30k/")
    parser.add_argument("--model", metavar="FOLDER", type=Path, help="a translator for beam search; default: train one")
    parser.add_argument("--figure", metavar="FILE", type=Path, help="plot BLEU by the number of source words, and stop")
    options = parser.parse_args(arguments)
    torch.set_num_threads(THREADS)
    if options.figure:
        length_figure(options.figure)
        return
    options.data = options.data or (Path(os.environ[DATA]) if DATA in os.environ else None)
    missing = missing_data(options.data, FILES, MODULE)
    if missing:
        not_run = Finding("training and beam search", "", missing, "not run")
        report([not_run, *recorded_runs()], machine(), options.json)
        return
    data_folder = options.data
    os.environ[DATA] = str(data_folder)  # for the processes in which memory is measured
    if options.memory:
        print_memory(CASES, options.memory)
        return
    if rows := compare_selected(CASES, MODULE, options):
        print_table(rows_table(rows))
    beams = [beam_search(options.data, options.model)] if options.only in "beam 5 over test_2016" else []
    report([*beams, *recorded_runs()], machine(), options.json)


if __name__ == "__main__":
    main()
