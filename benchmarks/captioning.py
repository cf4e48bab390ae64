"""Captions of photos by soft and hard attention, and how long it takes beside the usual ways.

    python -m benchmarks.captioning --data FOLDER         all; about three hours and a half
    python -m benchmarks.captioning --only step           the rows with a word in their name
    python -m benchmarks.captioning --data FOLDER --epochs 1 --only soft      a look at how it begins

FOLDER holds flickr8k: captions.train.tsv and captions.dev.tsv (photo TAB caption, five a photo) and images/, photos of
224 × 224 pixels. Without it, only speed is measured, with numbers drawn at random in the place of grids.

Quality    EfficientNet-lite0, frozen, its grid of 14 × 14; learned from the training photos, the best epoch chosen by
           BLEU-4 on 300 of them that were held out; scored on dev with beam 5. Words as the field has them: lower case,
           no punctuation. Time is all of `fit` but the grids, which are kept in FEATURES for the next run; the share
           of the encoder is that of seeing each training photo once, beside it.
Step       forward, backward and AdamW (fused for both), without dropout, beside the usual loop: one word after the
           other, the keys projected anew and the logits read out at each. Both have the same weights and give the same
           loss. A batch has captions of one length, as ours are drawn.
Captions   of 1,000 grids by a beam of 5, in batches beside one at a time.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.harness import SEED, THREADS, Case, Finding, compare, lacking, machine, note, peak_extra, report, said
from benchmarks.harness import table as rows_table
from regard.data.images import read_captions
from regard.data.sentence_pairs import END, PADDING, START
from regard.decoding import beam, forbid
from regard.estimators import Captioner
from regard.estimators.captioning.encoder import Kept, sight
from regard.models.captioner import CaptionDecoder

MODULE = "benchmarks.captioning"
CELLS, CHANNELS, WORDS, VOCABULARY = 196, 432, 12, 3000
LONG = 10
MINUTES = 90
PUBLISHED = {"soft": (67, 44.8, 29.9, 19.5), "hard": (67, 45.7, 31.4, 21.3)}
"""BLEU-1 to BLEU-4 of Xu et al. 2015 on the test photos, with VGG."""
MUST = 19.5
SETTINGS: dict[str, Any] = {
    "encoder": "efficientnet-lite0", "least": 5, "size": 256, "hidden": 512, "score_size": 256, "dropout": 0.5,
    "batch_size": 64, "learning_rate": 1e-3, "warm": 400, "weight_decay": 0.01, "smoothing": 0.1, "clip": 5.0,
    "spread": 0.01, "average": 5, "random_state": SEED,
}  # fmt: skip
EPOCHS = {"soft": 10, "hard": 12}


class Usual(nn.Module):
    """The same decoder as it is usually written: a loop over words, all of it in each round."""

    def __init__(self, decoder: CaptionDecoder) -> None:
        super().__init__()
        self.parts = decoder

    def forward(self, grid: Tensor, words: Tensor) -> tuple[Tensor, Tensor]:
        parts = self.parts
        grid = (grid - parts.centre) / parts.width
        mean = grid.mean(dim=1)
        hidden, cell = torch.tanh(parts.first_hidden(mean)), torch.tanh(parts.first_cell(mean))
        vectors = parts.embedding(words)
        logits, looked = [], []
        for t in range(words.shape[1]):
            keys = parts.score.key_projection(grid)
            asked = parts.score.query_projection(hidden)
            scores = torch.tanh(keys + asked.unsqueeze(1)) @ parts.score.weight
            weights = scores.softmax(dim=1)
            mean = (grid * weights.unsqueeze(2)).sum(dim=1)
            context = torch.sigmoid(parts.gate(hidden)) * mean
            hidden, cell = parts.cell(torch.cat([vectors[:, t], context], dim=1), (hidden, cell))
            logits.append(parts.logits(parts.deep(vectors[:, t], hidden, context)))
            looked.append(weights)
        return torch.stack(logits, dim=1), torch.stack(looked, dim=1)

    def loss(self, grid: Tensor, words: Tensor, spread: float) -> Tensor:
        logits, weights = self(grid, words[:, :-1])
        cost = functional.cross_entropy(logits.flatten(0, 1), words[:, 1:].flatten())
        return cost + spread * (1 - weights.sum(dim=1)).square().sum() / words[:, 1:].numel()


def training(sizes: tuple[int, int], batch: int, words: int, seed: int) -> dict[str, Any]:
    """Both decoders with one start, and a batch."""
    torch.manual_seed(seed)
    made = [CaptionDecoder(VOCABULARY, CHANNELS, size=256, hidden=sizes[0], attention=sizes[1]) for _ in range(2)]
    made[1].load_state_dict(made[0].state_dict())
    return {
        "ours": made[0],
        "peer": Usual(made[1]),
        "steps": [torch.optim.AdamW(one.parameters(), lr=1e-4, fused=True) for one in made],
        "batch": (torch.randn(batch, CELLS, CHANNELS), torch.randint(4, VOCABULARY, (batch, words + 1))),
    }


def stepped(inputs: dict[str, Any], side: str, *, moves: bool = True) -> list[Tensor]:
    """A step of the optimizer; without moving, the loss and a gradient that goes through all of it."""
    optimizer = inputs["steps"][side == "peer"]
    optimizer.zero_grad()
    loss = inputs[side].loss(*inputs["batch"], spread=0.01)
    loss.backward()
    if moves:
        optimizer.step()
        return [loss.detach()]
    decoder = inputs[side] if side == "ours" else inputs[side].parts
    return [loss.detach(), decoder.first_hidden.weight.grad.clone(), decoder.score.key_projection.weight.grad.clone()]


def step_case(hidden: int, attention: int) -> Case[Any]:
    return Case(
        f"training step, hidden {hidden}, attention {attention}, batch 64 / the usual loop",
        lambda seed: training((hidden, attention), 64, WORDS, seed),
        lambda inputs: stepped(inputs, "ours"),
        lambda inputs: stepped(inputs, "peer"),
        1 / 1.5,
        short=lambda seed: training((hidden, attention), 2, 2, seed),
        alike=(
            lambda inputs: stepped(inputs, "ours", moves=False),
            lambda inputs: stepped(inputs, "peer", moves=False),
        ),
        tolerance=1e-3,
    )


def writing(count: int, seed: int) -> tuple[CaptionDecoder, Tensor]:
    """A decoder that is far from finding all words alike, and grids."""
    torch.manual_seed(seed)
    decoder = CaptionDecoder(VOCABULARY, CHANNELS, size=256, hidden=512, attention=256).eval()
    with torch.no_grad():
        decoder.read.weight.mul_(20)
    return decoder, torch.randn(count, CELLS, CHANNELS)


@torch.inference_mode()
def written(inputs: tuple[CaptionDecoder, Tensor], at_once: int) -> list[Tensor]:
    """The log probability of each grid's best caption of `LONG` words: about as many as people write."""
    decoder, grids = inputs
    step = forbid(decoder.step, [PADDING, START, END])
    found = []
    for grid in grids.split(at_once):
        start = torch.full((len(grid),), START)
        found += beam(step, decoder.begin(grid), start, end=END, length=LONG, size=5)
    return [torch.tensor([best[0].log_probability for best in found])]


CASES = [
    step_case(512, 512),
    step_case(512, 256),
    Case(
        "captions of 1,000 images, beam 5, in batches / one image at a time",
        lambda seed: writing(1000, seed),
        lambda inputs: written(inputs, 64),
        lambda inputs: written(inputs, 1),
        1 / 3,
    ),
]


def quality(data: Path, attention: str, epochs: int, features: Path, models: Path | None) -> list[Finding]:
    """Learn from the training photos, and score on dev."""
    folder = data / "flickr8k"
    learned = read_captions(folder / "captions.train.tsv", folder / "images")
    asked = read_captions(folder / "captions.dev.tsv", folder / "images")
    captioner = Captioner(attention, epochs=epochs, cache=features, **SETTINGS)
    begin = time.perf_counter()
    seen, there = sight(captioner.encoder, None), any(features.glob("*/*/*"))
    Kept(seen, learned.images, features, progress=True)
    saw = time.perf_counter() - begin
    begin = time.perf_counter()
    captioner.fit(learned.images, learned.captions)
    seconds = time.perf_counter() - begin
    if models is not None:
        captioner.save(models / attention)
    scores = captioner.scores(asked.images, asked.captions)
    found = captioner.history_
    kept = "the mean of the last ones" if found.averaged else f"epoch {found.best_epoch + 1}"
    note(f"{attention}: validations {[round(-one, 1) for one in found.validation]}, kept: {kept}")
    for path, caption in zip(asked.images[:5], captioner.caption(asked.images[:5]), strict=True):
        note(f"  {path.name}: {caption}")
    captions = epochs * (1 - captioner.validation_fraction) * sum(map(len, learned.captions))
    figures = " / ".join(f"{one:.1f}" for one in list(scores.values())[:4])
    published = " / ".join(f"{one:g}" for one in PUBLISHED[attention])
    reached = said(scores["BLEU-4"] >= MUST and seconds + saw <= 60 * MINUTES)
    return [
        Finding(
            f"{attention} attention on dev, beam 5: BLEU-1 / 2 / 3 / 4",
            f"BLEU-4 ≥ {MUST} in {MINUTES} minutes; published {published} on test",
            f"{figures}, CIDEr-D {scores['CIDEr-D']:.3f}, in {(seconds + saw) / 60:.0f} minutes",
            reached,
            numbers=scores | {"seconds": seconds, "encoder_seconds": saw, "epochs": epochs},
        ),
        Finding(
            f"{attention} attention: seconds per 1,000 captions trained",
            "",
            f"{seconds / captions * 1e3:.2f}; share of the encoder {saw / (saw + seconds):.1%}"
            + (" (its grids were there already)" if there else ""),
            "",
        ),
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog=f"python -m {MODULE}")
    parser.add_argument("--data", metavar="FOLDER", type=Path)
    parser.add_argument("--features", metavar="FOLDER", type=Path, default=Path("features"), help="for the grids")
    parser.add_argument("--models", metavar="FOLDER", type=Path, help="where the models are kept; else they are not")
    parser.add_argument("--only", metavar="NAME", default="", help="what has this in its name")
    parser.add_argument("--epochs", metavar="N", type=int, help="fewer, for a look")
    parser.add_argument("--repeats", metavar="N", type=int, default=10)
    parser.add_argument("--json", metavar="FILE", type=Path, help="also write what was found to a file")
    parser.add_argument("--memory", nargs=2, metavar=("CASE", "SIDE"), help="peak extra bytes of one side, alone")
    options = parser.parse_args(arguments)
    torch.set_num_threads(THREADS)
    if options.memory:
        name, side = options.memory
        print(peak_extra(next(case for case in CASES if case.name == name), side))
        return
    rows = []
    for case in CASES:
        if options.only in case.name:
            note(case.name)
            rows.append(compare(case, MODULE, options.repeats))
    if rows:
        Console(width=None if sys.stdout.isatty() else 200).print(rows_table(rows))
    findings: list[Finding] = []
    files = ["flickr8k/captions.train.tsv", "flickr8k/captions.dev.tsv", "flickr8k/images"]
    missing = lacking(options.data, files, MODULE)
    for attention in ("soft", "hard"):
        name = f"{attention} attention on dev"
        if options.only in name:
            note(name)
            epochs = options.epochs or EPOCHS[attention]
            findings += (
                [Finding(name, f"BLEU-4 ≥ {MUST}", missing, "not run")]
                if missing
                else quality(options.data, attention, epochs, options.features, options.models)
            )
    if findings:
        report(findings, machine(), options.json)


if __name__ == "__main__":
    main()
