"""Models of Hugging Face's transformers with `attn_implementation="regard"`, compared with "sdpa" and "eager".

    python -m benchmarks.hugging_face                 all cases; about ten minutes
    python -m benchmarks.hugging_face --only GPT-2    the cases with this text in their name

Random weights, 4 layers of size 256 with 8 heads, CPU, float32. A training step is forward, loss and backward for
4 texts of 512 tokens, two of them padded; its results are the loss and the gradient of the embedding. `generate`
writes 64 tokens after 64, greedily. Cases with dropout are checked without it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.harness import Case
from benchmarks.harness import main as run_cases

VOCABULARY, LENGTH, PROMPT = 1000, 512, 64
_LLAMA = {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 8, "intermediate_size": 512}
FAMILIES = {
    "GPT-2": ("GPT2LMHeadModel", "GPT2Config", {"n_embd": 256, "n_layer": 4, "n_head": 8}, "attn_pdrop"),
    "Llama": ("LlamaForCausalLM", "LlamaConfig", {**_LLAMA, "num_key_value_heads": 2}, "attention_dropout"),
    "BERT": ("BertForMaskedLM", "BertConfig", _LLAMA, "attention_probs_dropout_prob"),
}
OTHER_DROPOUT = {"GPT-2": ("resid_pdrop", "embd_pdrop"), "Llama": (), "BERT": ("hidden_dropout_prob",)}


@dataclass(frozen=True)
class Inputs:
    ours: Any
    peer: Any
    tokens: Tensor  # [batch, length]
    visible: Tensor  # [batch, length]  0 for padding


def build(seed: int, family: str, peer: str, dropout: float, batch: int, length: int) -> Inputs:
    """The same model twice, and texts; every second one is padded on the left."""
    import transformers

    import regard.integrations.transformers  # noqa: F401  # registers "regard"

    transformers.utils.logging.set_verbosity_error()
    kind, config, sizes, dropout_name = FAMILIES[family]
    settings = {**sizes, **dict.fromkeys(OTHER_DROPOUT[family], 0.0), dropout_name: dropout, "vocab_size": VOCABULARY}
    settings |= {"bos_token_id": 1, "eos_token_id": None, "pad_token_id": 0}
    models = []
    for attention in ("regard", peer):
        torch.manual_seed(seed)
        made = getattr(transformers, config)(**settings)
        models.append(getattr(transformers, kind)._from_config(made, attn_implementation=attention))
    tokens = torch.randint(3, VOCABULARY, (batch, length))
    visible = torch.ones_like(tokens)
    visible[1::2, : length // 3] = 0
    return Inputs(*models, tokens, visible)


def training_step(model: Any, inputs: Inputs) -> Sequence[Tensor]:
    model.zero_grad()
    labels = inputs.tokens.masked_fill(inputs.visible == 0, -100)
    loss = model(inputs.tokens, attention_mask=inputs.visible, labels=labels).loss
    loss.backward()
    return [loss.detach(), model.get_input_embeddings().weight.grad]


@torch.inference_mode()
def generate(model: Any, inputs: Inputs) -> Sequence[Tensor]:
    written = model.generate(inputs.tokens, attention_mask=inputs.visible, max_new_tokens=64, do_sample=False)
    return [written.float()]


def both_sides(run: Callable[[Any, Inputs], Sequence[Tensor]], *, train: bool) -> list[Any]:
    """The run with our attention, and with the peer's."""
    return [lambda inputs, side=side: run(getattr(inputs, side).train(train), inputs) for side in ("ours", "peer")]


def training_case(family: str, peer: str, dropout: float) -> Case[Inputs]:
    make = partial(build, family=family, peer=peer, dropout=dropout)
    named = f"{family} training step, {f'dropout {dropout}' if dropout else 'no dropout'} / {peer}"
    return Case(
        named,
        partial(make, batch=4, length=LENGTH),
        *both_sides(training_step, train=True),
        1.0,
        warm_up=partial(make, batch=4, length=LENGTH // 2),
        checked=tuple(both_sides(training_step, train=False)),
    )


def generate_case(family: str, peer: str, batch: int) -> Case[Inputs]:
    make = partial(build, family=family, peer=peer, dropout=0.0)
    return Case(
        f"{family} generate, batch {batch} / {peer}",
        partial(make, batch=batch, length=PROMPT),
        *both_sides(generate, train=False),
        1.0,
    )


CASES: list[Case[Inputs]] = [
    *(
        training_case(family, peer, dropout)
        for family in FAMILIES
        for dropout in (0.0, 0.1)
        for peer in ("sdpa", "eager")
    ),
    *(
        generate_case(family, peer, batch)
        for family in ("GPT-2", "Llama")
        for batch in (1, 4)
        for peer in ("sdpa", "eager")
    ),
]


def main() -> None:
    """Run the cases that the command line asks for."""
    run_cases(CASES, "benchmarks.hugging_face")


if __name__ == "__main__":
    main()
