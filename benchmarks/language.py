"""The language model compared with Hugging Face's GPT-2 and torch's own Transformer, on the CPU.

    python -m benchmarks.language --data FOLDER           everything; about half an hour
    python -m benchmarks.language --only generation       the cases with this text in their name

FOLDER contains tinyshakespeare/input.txt, whose last tenth is held out; without it that training is not run. A training
step is forward, backward, clipping and AdamW (fused on both sides); both sides have the same weights and batch. With
dropout, the losses are compared without it. Generation is greedy, 512 tokens from one token, with both caches.
`benchmarks/harness.py` describes how time and memory are measured.
"""

import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
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
from regard import watch
from regard.attend import Look
from regard.data.tokenizers import encode_text
from regard.decoding import Sampling, sample
from regard.estimators import Writer
from regard.estimators.writing.estimator import mean_loss
from regard.models.language import LanguageModel
from regard.models.pretrained import load

os.environ["HF_HUB_OFFLINE"] = "1"
MODULE = "benchmarks.language"
VOCABULARY = 65
RECIPE = 1.88
"""Held-out loss of nanoGPT's recipe for the CPU."""


@dataclass(frozen=True)
class Sizes:
    blocks: int
    heads: int
    size: int
    context: int
    dropout: float = 0.0

    def peer(self, **more: Any) -> Any:
        """Hugging Face's GPT-2 of these sizes, with random weights."""
        from transformers import GPT2Config, GPT2LMHeadModel
        from transformers.utils import logging

        logging.disable_progress_bar()
        settings = {"attn_pdrop": self.dropout, "resid_pdrop": self.dropout, "embd_pdrop": self.dropout}
        config = GPT2Config(
            vocab_size=VOCABULARY, n_positions=self.context, n_embd=self.size, n_layer=self.blocks, n_head=self.heads,
            bos_token_id=0, eos_token_id=None, pad_token_id=0, **settings, **more,
        )  # fmt: skip
        return GPT2LMHeadModel(config)


def same_weights(peer: Any) -> LanguageModel:
    """Our model with the weights of theirs, loaded from a saved folder."""
    with tempfile.TemporaryDirectory() as folder:
        peer.save_pretrained(folder)
        model = load(folder)
    assert isinstance(model, LanguageModel)
    return model.requires_grad_(True)


class Stack(nn.Module):
    """torch's `nn.TransformerEncoder` with a causal mask, between an embedding and a linear layer."""

    def __init__(self, sizes: Sizes, model: LanguageModel) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(VOCABULARY, sizes.size), nn.Embedding(sizes.context, sizes.size)
        layer = nn.TransformerEncoderLayer(
            sizes.size, sizes.heads, 4 * sizes.size, sizes.dropout,
            lambda x: functional.gelu(x, approximate="tanh"), batch_first=True, norm_first=True,
        )  # fmt: skip
        norm = nn.LayerNorm(sizes.size)
        self.encoder = nn.TransformerEncoder(layer, sizes.blocks, norm, enable_nested_tensor=False)
        self.dropout = nn.Dropout(sizes.dropout)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(sizes.context), persistent=False)
        self.copy_weights(model)

    @torch.no_grad()
    def copy_weights(self, model: LanguageModel) -> None:
        """Copy the weights of our model."""
        ours = model.state_dict()
        self.token.weight.copy_(ours["embedding.token.weight"])
        self.position.weight.copy_(ours["embedding.positions.weight"])
        names = {
            "self_attn.in_proj_": "attention.input.",
            "self_attn.out_proj.": "attention.output.",
            "linear1.": "feed_forward.input.",
            "linear2.": "feed_forward.output.",
            "norm1.": "attention_norm.",
            "norm2.": "feed_forward_norm.",
        }
        for number, layer in enumerate(self.encoder.layers):
            for their, our in names.items():
                for kind in ("weight", "bias"):
                    layer.get_parameter(f"{their}{kind}").copy_(ours[f"decoder.blocks.{number}.{our}{kind}"])
        self.encoder.norm.weight.copy_(ours["decoder.norm.weight"])
        self.encoder.norm.bias.copy_(ours["decoder.norm.bias"])

    def forward(self, tokens: Tensor) -> Tensor:
        rows = self.dropout(self.token(tokens) + self.position.weight[: tokens.shape[1]])
        mask = self.mask[: tokens.shape[1], : tokens.shape[1]]
        return functional.linear(self.encoder(rows, mask, is_causal=True), self.token.weight)


@dataclass
class Step:
    """A training step: model, loss, optimizer and batch."""

    loss: Callable[[Tensor], Tensor]
    model: nn.Module
    optimizer: torch.optim.Optimizer
    batch: Tensor  # [batch, context + 1]

    def run(self) -> list[Tensor]:
        self.model.train()
        self.optimizer.zero_grad()
        loss = self.loss(self.batch)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return [loss.detach()]

    def check(self) -> list[Tensor]:
        """The loss without dropout, and its gradient for the first parameter."""
        self.model.eval()
        self.optimizer.zero_grad()
        loss = self.loss(self.batch)
        loss.backward()
        first = next(self.model.parameters()).grad
        assert first is not None
        return [loss.detach(), first.clone()]


def step_of(model: nn.Module, loss: Callable[[Tensor], Tensor], batch: Tensor) -> Step:
    """A step with the optimizer of all sides."""
    return Step(loss, model, torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True), batch)


def next_token(logits: Tensor, batch: Tensor) -> Tensor:
    return functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())


def training(sizes: Sizes, batch_size: int, peer: str, seed: int) -> dict[str, Step]:
    """Our step and a peer's, with the same weights. A memory run uses one; the other only adds its weights."""
    torch.manual_seed(seed)
    batch = torch.randint(VOCABULARY, (batch_size, sizes.context + 1))
    theirs = sizes.peer()
    ours = same_weights(theirs)
    if peer == "GPT-2":
        other = step_of(theirs, lambda batch: next_token(theirs(batch[:, :-1]).logits, batch), batch)
    else:
        stack = Stack(sizes, ours)
        other = step_of(stack, lambda batch: next_token(stack(batch[:, :-1]), batch), batch)
    return {"ours": step_of(ours, ours.loss, batch), "peer": other}


def training_case(name: str, sizes: Sizes, batch: int, peer: str, time: float, memory: float | None) -> Case[Any]:
    small = Sizes(1, sizes.heads, sizes.size, 16, sizes.dropout)
    return Case(
        name,
        lambda seed: training(sizes, batch, peer, seed),
        lambda steps: steps["ours"].run(),
        lambda steps: steps["peer"].run(),
        time,
        memory,
        warm_up=lambda seed: training(small, 2, peer, seed),
        checked=(lambda steps: steps["ours"].check(), lambda steps: steps["peer"].check()),
    )


def generation(sizes: Sizes, rows: int, seed: int) -> dict[str, Any]:
    """Both models with the same weights, and a first token for each row."""
    torch.manual_seed(seed)
    theirs = sizes.peer(initializer_range=0.3).eval()  # makes the most likely token clear
    return {"ours": same_weights(theirs).eval(), "peer": theirs, "start": torch.randint(VOCABULARY, (rows, 1))}


@torch.inference_mode()
def generate(inputs: dict[str, Any], count: int) -> list[Tensor]:
    model, start = inputs["ours"], inputs["start"]
    cache = model.begin(start[:, :0], max_length=count + 1)
    tokens = sample(model.step, cache, start[:, 0], length=count, sampling=Sampling(temperature=0))
    return [torch.stack(list(tokens), dim=1)]


@torch.inference_mode()
def generate_by_peer(inputs: dict[str, Any], count: int) -> list[Tensor]:
    model, start = inputs["peer"], inputs["start"]
    mask = torch.ones_like(start)
    tokens = model.generate(
        start, attention_mask=mask, max_new_tokens=count, min_new_tokens=count, do_sample=False, use_cache=True
    )
    return [tokens[:, 1:]]


def generation_case(rows: int) -> Case[Any]:
    sizes = Sizes(6, 8, 256, 1024)
    return Case(
        f"generation of 512 tokens, batch {rows} / Hugging Face's generate",
        lambda seed: generation(sizes, rows, seed),
        lambda inputs: generate(inputs, 512),
        lambda inputs: generate_by_peer(inputs, 512),
        0.5,
        warm_up=lambda seed: generation(Sizes(1, 8, 256, 1024), rows, seed),
    )


def watch_inputs(sizes: Sizes, seed: int) -> dict[str, Any]:
    """Both models with the same weights, and one text."""
    torch.manual_seed(seed)
    theirs = sizes.peer(attn_implementation="eager", initializer_range=0.1).eval()
    return {
        "ours": same_weights(theirs).eval(),
        "peer": theirs,
        "tokens": torch.randint(VOCABULARY, (1, sizes.context)),
    }


@torch.inference_mode()
def watch_top(inputs: dict[str, Any]) -> list[Tensor]:
    with watch(inputs["ours"], top=8) as record:
        logits = inputs["ours"](inputs["tokens"])
    looks = [calls[0] for calls in record.values()]
    assert all(isinstance(look, Look) for look in looks)
    return [logits, *(look.weight for look in looks)]


@torch.inference_mode()
def output_attentions(inputs: dict[str, Any]) -> list[Tensor]:
    output = inputs["peer"](inputs["tokens"], output_attentions=True)
    return [output.logits, *(weights.topk(8, dim=-1).values for weights in output.attentions)]


CHARACTERS = Sizes(4, 4, 128, 64)
LARGER = Sizes(6, 8, 256, 256, dropout=0.1)
WATCHED = Sizes(6, 8, 256, 1024)
CASES = [
    training_case("training step, 4 × 128, context 64, batch 12 / GPT-2", CHARACTERS, 12, "GPT-2", 1.0, None),
    training_case("training step, 6 × 256, context 256, batch 16, dropout / GPT-2", LARGER, 16, "GPT-2", 1 / 1.3, 0.5),
    training_case(
        "training step, 6 × 256, context 256, batch 16, dropout / nn.TransformerEncoder",
        LARGER,
        16,
        "torch",
        1 / 1.3,
        0.5,
    ),
    generation_case(1),
    generation_case(16),
    Case(
        "watch, top 8, 1,024 tokens / output_attentions",
        lambda seed: watch_inputs(WATCHED, seed),
        watch_top,
        output_attentions,
        1.0,
        0.1,
        warm_up=lambda seed: watch_inputs(Sizes(1, 8, 256, 64), seed),
    ),
]


def train_characters(data: Path, optimizer: str) -> Finding:
    """nanoGPT's recipe for the CPU with `Writer`: 2,000 steps, and the loss on the last tenth of the text.

    The learning rate is twice the recipe's. With the recipe's own, 0.001, and AdamW the loss was 1.896.
    """
    text = (data / "tinyshakespeare" / "input.txt").read_text(encoding="utf-8")
    writer = Writer(
        context=64, blocks=4, heads=4, size=128, dropout=0.0, steps=2000, batch_size=12, learning_rate=2e-3, warm=100,
        weight_decay=0.1, clip=1.0, validate_every=250, random_state=SEED, optimizer=optimizer,
    )  # fmt: skip
    begin = time.perf_counter()
    writer.fit(text)
    seconds = time.perf_counter() - begin
    # Windows that do not overlap, as in the recipe: a token has 32 tokens of context on average.
    tokens = torch.tensor(encode_text(writer.tokenizer_, text))
    loss = mean_loss(writer.model_, tokens[-round(0.1 * len(tokens)) :])
    note(writer.write("ROMEO:\n", 300, temperature=0.8, seed=SEED))
    measured = f"{loss:.3f} ({seconds / 2000 * 1e3:.0f} ms per step with validation)"
    name = f"held-out loss, characters, 2,000 steps of {optimizer}"
    return Finding(name, f"≤ {RECIPE}", measured, yes_no(loss <= RECIPE))


def main(arguments: Sequence[str] | None = None) -> None:
    options = options_parser(MODULE, repeats=20, data="contains tinyshakespeare/").parse_args(arguments)
    torch.set_num_threads(THREADS)
    if options.memory:
        print_memory(CASES, options.memory)
        return
    facts = machine()
    if rows := compare_selected(CASES, MODULE, options):
        print_table(rows_table(rows))
    name = "held-out loss, characters"
    if options.only in name:
        missing = missing_data(options.data, ["tinyshakespeare/input.txt"], MODULE)
        not_run = Finding(name, f"≤ {RECIPE}", missing, "not run")
        findings = [not_run] if missing else [train_characters(options.data, name) for name in ("muon", "adamw")]
        report(findings, facts, options.json)


if __name__ == "__main__":
    main()
