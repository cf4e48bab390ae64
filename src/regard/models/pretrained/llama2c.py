"""llama2.c's binary, version 0: a Llama whose rotary pairs are neighbours (github.com/karpathy/llama2.c).

    7 int32, little-endian     dim, hidden_dim, n_layers, n_heads, n_kv_heads, vocab_size, seq_len
    float32                    tokens, norms, queries, keys, values, outputs, norms, gates, downs, ups, last norm,
                               cosines and sines (of no use here), and, where vocab_size is negative, the
                               matrix to the logits; where it is positive, that is the tokens' own vectors

Each kind is stored for all blocks, one after the other.
"""

import struct
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from torch import Tensor

from regard.layers import Rotary
from regard.models.language import LanguageModel
from regard.models.pretrained.llama import Sizes, llama
from regard.models.pretrained.weights import filled

NAMES = ("dim", "hidden_dim", "n_layers", "n_heads", "n_kv_heads", "vocab_size", "seq_len")
HEADER = struct.Struct("<7i")
NEWER = b"24ka"  # what versions 1 and 2 start with


def read(path: Path) -> LanguageModel:
    """The language model of a llama2.c file."""
    with path.open("rb") as file:
        head = file.read(HEADER.size)
        check_kind(path, head)
        sizes, tied = sizes_of(path, HEADER.unpack(head))
        expected, found = HEADER.size + 4 * floats(sizes, tied), path.stat().st_size
        if found != expected:
            raise ValueError(f"{path} must have {expected} bytes by its header, found {found}")
        model = llama(sizes, Rotary(sizes.head_size, interleaved=True), tied=tied)
        return filled(model, state_of(file, sizes, tied))


def check_kind(path: Path, head: bytes) -> None:
    """What is no file of version 0 is refused."""
    if head[:2] in (b"PK", b"\x80\x02"):
        raise ValueError(
            f"{path} is a pickle, which may run any code when it is read: it is not read here. "
            "A .bin is read if it is llama2.c's; for a model in Hugging Face's layout, give its folder"
        )
    if len(head) < HEADER.size:
        raise ValueError(f"{path} must start with a header of {HEADER.size} bytes, found {len(head)}")
    if head.startswith(NEWER):
        version = int.from_bytes(head[4:8], "little", signed=True)
        raise ValueError(f"{path} is llama2.c's version {version}; version 0 is read here (export.py --version 0)")


def sizes_of(path: Path, header: tuple[int, ...]) -> tuple[Sizes, bool]:
    """The sizes, and whether the logits are read with the tokens' own vectors."""
    given = dict(zip(NAMES, header, strict=True))
    tied = given["vocab_size"] > 0
    given["vocab_size"] = abs(given["vocab_size"])
    dim, heads, kv_heads = given["dim"], given["n_heads"], given["n_kv_heads"]
    if min(given.values()) < 1 or dim % heads or heads % kv_heads or dim // heads % 2:
        said = ", ".join(f"{name}={value}" for name, value in zip(NAMES, header, strict=True))
        raise ValueError(
            f"{path} is no llama2.c file: numbers must be positive, n_heads divide dim into even sizes and "
            f"n_kv_heads divide n_heads; its header says {said}"
        )
    sizes = Sizes(
        vocabulary=given["vocab_size"],
        context=given["seq_len"],
        size=dim,
        hidden=given["hidden_dim"],
        blocks=given["n_layers"],
        heads=heads,
        kv_heads=kv_heads,
        head_size=dim // heads,
    )
    return sizes, tied


def floats(sizes: Sizes, tied: bool) -> int:
    """How many numbers follow the header."""
    block = 2 * sizes.size + sizes.size * (sum(sizes.rows) + sizes.rows[0]) + 3 * sizes.size * sizes.hidden
    ends = sizes.vocabulary * sizes.size * (1 if tied else 2) + sizes.size + sizes.context * sizes.head_size
    return sizes.blocks * block + ends


def state_of(file: BinaryIO, sizes: Sizes, tied: bool) -> dict[str, Tensor]:
    """The weights, by their names in our modules, in the order of the file."""
    size, hidden, (queries, keys, values) = sizes.size, sizes.hidden, sizes.rows

    def take(*shape: int) -> Tensor:
        array = np.fromfile(file, "<f4", int(np.prod(shape))).astype(np.float32, copy=False)
        return torch.from_numpy(array.reshape(shape))

    def each(*shape: int) -> list[Tensor]:
        return [take(*shape) for _ in range(sizes.blocks)]

    state = {"embedding.token.weight": take(sizes.vocabulary, size)}
    attention_norm = each(size)
    inside = [each(rows, size) for rows in (queries, keys, values)]
    output, feed_forward_norm = each(size, queries), each(size)
    gate, down, up = each(hidden, size), each(size, hidden), each(hidden, size)
    for number in range(sizes.blocks):
        block = {
            "attention_norm.weight": attention_norm[number],
            "attention.input.weight": torch.cat([part[number] for part in inside]),
            "attention.output.weight": output[number],
            "feed_forward_norm.weight": feed_forward_norm[number],
            "feed_forward.input.weight": torch.cat([gate[number], up[number]]),
            "feed_forward.output.weight": down[number],
        }
        state |= {f"decoder.blocks.{number}.{name}": weight for name, weight in block.items()}
    state["decoder.norm.weight"] = take(size)
    take(sizes.context, sizes.head_size)  # cosines and sines, half and half
    if not tied:
        state["read.weight"] = take(sizes.vocabulary, size)
    return state
