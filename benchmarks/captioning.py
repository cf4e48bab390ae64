"""Captions of photos with soft and hard attention, and their speed compared with usual implementations.

    python -m benchmarks.captioning --data FOLDER         everything; about three and a half hours
    python -m benchmarks.captioning --only step           the rows with this text in their name
    python -m benchmarks.captioning --data FOLDER --epochs 1 --only soft      a short trial

FOLDER contains flickr8k: captions.train.tsv and captions.dev.tsv (photo TAB caption, five per photo) and images/,
photos of 224 × 224 pixels. Without it only speed is measured, on random grids.

Quality    EfficientNet-lite0, frozen, with a grid of 14 × 14. Training photos except 300 held-out ones, on which BLEU-4
           chooses the epoch; scored on dev with beam 5, lower case, without punctuation. Time is that of `fit` without
           the encoder, whose grids are cached in FEATURES; the time of encoding each training photo once is reported
           separately.
Step       Forward, backward and AdamW (fused on both sides), without dropout, compared with the usual loop: one word
           after the other, projecting the keys and computing the logits in each step. Both have the same weights and
           give the same loss. The captions of a batch have one length, as in our training.
Captions   1,000 grids, beam 5, in batches compared with one at a time.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

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
from regard.data.encoder_cache import cached_grids
from regard.data.images import read_captions
from regard.data.tokenizers import END, PADDING, START
from regard.decoding import beam, forbid
from regard.estimators import Captioner
from regard.estimators.captioning.training import make_encoder
from regard.models.captioner import CaptionConfig, CaptionDecoder

MODULE = "benchmarks.captioning"
CELLS, CHANNELS, WORDS, VOCABULARY = 196, 432, 12, 3000
LENGTH = 10
MINUTES = 90
PUBLISHED = {"soft": (67, 44.8, 29.9, 19.5), "hard": (67, 45.7, 31.4, 21.3)}
"""BLEU-1 to BLEU-4 of Xu et al. 2015 on the test photos, with VGG."""
TARGET = 19.5
SETTINGS: dict[str, Any] = {
    "encoder": "efficientnet-lite0", "least": 5, "size": 256, "hidden": 512, "score_size": 256, "dropout": 0.5,
    "batch_size": 64, "learning_rate": 1e-3, "warm": 400, "weight_decay": 0.01, "smoothing": 0.1, "clip": 5.0,
    "spread": 0.01, "average": 5, "random_state": SEED,
}  # fmt: skip
EPOCHS = {"soft": 10, "hard": 12}


class UsualLoop(nn.Module):
    """The same decoder as usually written: a loop over words that does all work in each step."""

    def __init__(self, decoder: CaptionDecoder) -> None:
        super().__init__()
        self.parts = decoder

    def forward(self, grid: Tensor, words: Tensor) -> tuple[Tensor, Tensor]:
        parts = self.parts
        grid = (grid - parts.centre) / parts.width
        mean = grid.mean(dim=1)
        hidden, cell = torch.tanh(parts.first_hidden(mean)), torch.tanh(parts.first_cell(mean))
        vectors = parts.embedding(words)
        logits, weights_by_word = [], []
        for t in range(words.shape[1]):
            keys = parts.score.key_projection(grid)
            query = parts.score.query_projection(hidden)
            scores = torch.tanh(keys + query.unsqueeze(1)) @ parts.score.weight
            weights = scores.softmax(dim=1)
            mean = (grid * weights.unsqueeze(2)).sum(dim=1)
            context = torch.sigmoid(parts.gate(hidden)) * mean
            hidden, cell = parts.cell(torch.cat([vectors[:, t], context], dim=1), (hidden, cell))
            logits.append(parts.logits(parts.output_rows(vectors[:, t], hidden, context)))
            weights_by_word.append(weights)
        return torch.stack(logits, dim=1), torch.stack(weights_by_word, dim=1)

    def loss(self, grid: Tensor, words: Tensor, spread: float) -> Tensor:
        logits, weights = self(grid, words[:, :-1])
        cost = functional.cross_entropy(logits.flatten(0, 1), words[:, 1:].flatten())
        return cost + spread * (1 - weights.sum(dim=1)).square().sum() / words[:, 1:].numel()


def training(sizes: tuple[int, int], batch: int, words: int, seed: int) -> dict[str, Any]:
    """Both decoders with the same initial weights, and a batch."""
    torch.manual_seed(seed)
    config = CaptionConfig(hidden=sizes[0], score_size=sizes[1])
    decoders = [CaptionDecoder(VOCABULARY, CHANNELS, config) for _ in range(2)]
    decoders[1].load_state_dict(decoders[0].state_dict())
    return {
        "ours": decoders[0],
        "peer": UsualLoop(decoders[1]),
        "optimizers": [torch.optim.AdamW(one.parameters(), lr=1e-4, fused=True) for one in decoders],
        "batch": (torch.randn(batch, CELLS, CHANNELS), torch.randint(4, VOCABULARY, (batch, words + 1))),
    }


def training_step(inputs: dict[str, Any], side: str, *, update: bool = True) -> list[Tensor]:
    """One step of the optimizer. Without the update: the loss, and two gradients that depend on everything."""
    optimizer = inputs["optimizers"][side == "peer"]
    optimizer.zero_grad()
    loss = inputs[side].loss(*inputs["batch"], spread=0.01)
    loss.backward()
    if update:
        optimizer.step()
        return [loss.detach()]
    decoder = inputs[side] if side == "ours" else inputs[side].parts
    return [loss.detach(), decoder.first_hidden.weight.grad.clone(), decoder.score.key_projection.weight.grad.clone()]


def step_case(hidden: int, attention: int) -> Case[Any]:
    return Case(
        f"training step, hidden {hidden}, attention {attention}, batch 64 / usual loop",
        lambda seed: training((hidden, attention), 64, WORDS, seed),
        lambda inputs: training_step(inputs, "ours"),
        lambda inputs: training_step(inputs, "peer"),
        1 / 1.5,
        warm_up=lambda seed: training((hidden, attention), 2, 2, seed),
        checked=(
            lambda inputs: training_step(inputs, "ours", update=False),
            lambda inputs: training_step(inputs, "peer", update=False),
        ),
        tolerance=1e-3,
    )


def captioning_inputs(count: int, seed: int) -> tuple[CaptionDecoder, Tensor]:
    """A decoder whose word probabilities differ clearly, and grids."""
    torch.manual_seed(seed)
    decoder = CaptionDecoder(VOCABULARY, CHANNELS, CaptionConfig(score_size=256)).eval()
    with torch.no_grad():
        decoder.read.weight.mul_(20)
    return decoder, torch.randn(count, CELLS, CHANNELS)


@torch.inference_mode()
def caption_all(inputs: tuple[CaptionDecoder, Tensor], batch_size: int) -> list[Tensor]:
    """Log probability of the best caption of each grid, of `LENGTH` words, a typical length."""
    decoder, grids = inputs
    step = forbid(decoder.step, [PADDING, START, END])
    hypotheses = []
    for grid in grids.split(batch_size):
        start = torch.full((len(grid),), START)
        hypotheses += beam(step, decoder.begin(grid), start, end=END, length=LENGTH, size=5)
    return [torch.tensor([best[0].log_probability for best in hypotheses])]


CASES = [
    step_case(512, 512),
    step_case(512, 256),
    Case(
        "captions of 1,000 images, beam 5, in batches / one image at a time",
        lambda seed: captioning_inputs(1000, seed),
        lambda inputs: caption_all(inputs, 64),
        lambda inputs: caption_all(inputs, 1),
        1 / 3,
    ),
]


def quality(data: Path, attention: str, epochs: int, features: Path, models: Path | None) -> list[Finding]:
    """Train on the training photos, and score on dev."""
    folder = data / "flickr8k"
    train = read_captions(folder / "captions.train.tsv", folder / "images")
    dev = read_captions(folder / "captions.dev.tsv", folder / "images")
    captioner = Captioner(attention, epochs=epochs, cache=features, **SETTINGS)
    begin = time.perf_counter()
    encoder, cached = make_encoder(captioner.encoder, None), any(features.glob("*/*/*"))
    cached_grids(train.images, encoder.eval(), features / type(encoder.encoder).__name__)
    encoding = time.perf_counter() - begin
    begin = time.perf_counter()
    captioner.fit(train.images, train.captions)
    seconds = time.perf_counter() - begin
    if models is not None:
        captioner.save(models / attention)
    scores = captioner.scores(dev.images, dev.captions)
    history = captioner.history_
    chosen = "mean of the last epochs" if history.averaged else f"epoch {history.best_epoch + 1}"
    note(f"{attention}: validation BLEU-4 {[round(-one, 1) for one in history.validation]}, chosen: {chosen}")
    for path, caption in zip(dev.images[:5], captioner.caption(dev.images[:5]), strict=True):
        note(f"  {path.name}: {caption}")
    captions = epochs * (1 - captioner.validation_fraction) * sum(map(len, train.captions))
    bleu = " / ".join(f"{one:.1f}" for one in list(scores.values())[:4])
    published = " / ".join(f"{one:g}" for one in PUBLISHED[attention])
    met = yes_no(scores["BLEU-4"] >= TARGET and seconds + encoding <= 60 * MINUTES)
    return [
        Finding(
            f"{attention} attention on dev, beam 5: BLEU-1 / 2 / 3 / 4",
            f"BLEU-4 ≥ {TARGET} in {MINUTES} minutes; published {published} on test",
            f"{bleu}, CIDEr-D {scores['CIDEr-D']:.3f}, in {(seconds + encoding) / 60:.0f} minutes",
            met,
            numbers=scores | {"seconds": seconds, "encoder_seconds": encoding, "epochs": epochs},
        ),
        Finding(
            f"{attention} attention: seconds per 1,000 captions trained",
            "",
            f"{seconds / captions * 1e3:.2f}; fraction of time in the encoder {encoding / (encoding + seconds):.1%}"
            + (" (cached features)" if cached else ""),
            "",
        ),
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = options_parser(MODULE, repeats=10, data="contains flickr8k/")
    parser.add_argument("--features", metavar="FOLDER", type=Path, default=Path("features"), help="cache of the grids")
    parser.add_argument("--models", metavar="FOLDER", type=Path, help="save the trained models here")
    parser.add_argument("--epochs", metavar="N", type=int, help="fewer epochs, for a trial")
    options = parser.parse_args(arguments)
    torch.set_num_threads(THREADS)
    if options.memory:
        print_memory(CASES, options.memory)
        return
    if rows := compare_selected(CASES, MODULE, options):
        print_table(rows_table(rows))
    findings: list[Finding] = []
    files = ["flickr8k/captions.train.tsv", "flickr8k/captions.dev.tsv", "flickr8k/images"]
    missing = missing_data(options.data, files, MODULE)
    for attention in ("soft", "hard"):
        name = f"{attention} attention on dev"
        if options.only in name:
            note(name)
            epochs = options.epochs or EPOCHS[attention]
            findings += (
                [Finding(name, f"BLEU-4 ≥ {TARGET}", missing, "not run")]
                if missing
                else quality(options.data, attention, epochs, options.features, options.models)
            )
    if findings:
        report(findings, machine(), options.json)


if __name__ == "__main__":
    main()
