"""llama2.c's files: models, version 0, and tokenizers (github.com/karpathy/llama2.c).

A model is a Llama whose rotary pairs are neighbours. Each kind of weight is stored for all blocks, one after the other:

    7 int32, little-endian     dim, hidden_dim, n_layers, n_heads, n_kv_heads, vocab_size, seq_len
    float32                    tokens, norms, queries, keys, values, outputs, norms, gates, downs, ups, last norm,
                               cosines and sines (not used here), and, if vocab_size is negative, the matrix to the
                               logits; if it is positive, that is tied to the token embedding

A tokenizer is a list of pieces with scores, for byte-pair encoding as in sentencepiece (Kudo and Richardson 2018):

    int32                      length of the longest piece
    float32, int32, bytes      for each token: score, length and UTF-8
"""

import functools
import math
import re
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from regard.checks import optional_import
from regard.models.language import LanguageModel
from regard.models.pretrained.architectures import ARCHITECTURES
from regard.models.pretrained.folder import Settings, Weights
from regard.models.transformer import TextEncoder

_NAMES = ("dim", "hidden_dim", "n_layers", "n_heads", "n_kv_heads", "vocab_size", "seq_len")
_HEADER = struct.Struct("<7i")
_VERSIONED = b"24ka"  # the first bytes of versions 1 and 2
_UNUSED = "rotary_emb"  # cosines and sines, which we compute


def read_model(path: Path) -> LanguageModel | TextEncoder:
    """The language model of a llama2.c file."""
    sizes = _read_sizes(path)
    offset, tensors = _HEADER.size, {}
    for name, shape in _stored_shapes(sizes).items():
        tensors[f"{name}.weight"] = functools.partial(_read_floats, path, offset, shape)
        offset += 4 * math.prod(shape)
    if path.stat().st_size != offset:
        raise ValueError(f"{path} must have {offset} bytes by its header, got {path.stat().st_size}")
    settings = {
        "vocab_size": abs(sizes["vocab_size"]),
        "max_position_embeddings": sizes["seq_len"],
        "hidden_size": sizes["dim"],
        "intermediate_size": sizes["hidden_dim"],
        "num_hidden_layers": sizes["n_layers"],
        "num_attention_heads": sizes["n_heads"],
        "num_key_value_heads": sizes["n_kv_heads"],
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": sizes["vocab_size"] > 0,
        "rope_interleaved": True,
    }
    weights = Weights(path, "", {name: read for name, read in tensors.items() if not name.startswith(_UNUSED)})
    return ARCHITECTURES["llama"].load(Settings(path, settings), weights)


def _stored_shapes(sizes: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    """The shapes of all weights in the order of the file, by the names of Hugging Face's Llama."""
    dim, hidden, vocabulary = sizes["dim"], sizes["hidden_dim"], abs(sizes["vocab_size"])
    head_size = dim // sizes["n_heads"]
    keys = sizes["n_kv_heads"] * head_size
    blocks = {
        "input_layernorm": (dim,),
        "self_attn.q_proj": (dim, dim),
        "self_attn.k_proj": (keys, dim),
        "self_attn.v_proj": (keys, dim),
        "self_attn.o_proj": (dim, dim),
        "post_attention_layernorm": (dim,),
        "mlp.gate_proj": (hidden, dim),
        "mlp.down_proj": (dim, hidden),
        "mlp.up_proj": (hidden, dim),
    }
    shapes: dict[str, tuple[int, ...]] = {"embed_tokens": (vocabulary, dim)}
    for name, shape in blocks.items():
        shapes |= {f"layers.{number}.{name}": shape for number in range(sizes["n_layers"])}
    shapes |= {"norm": (dim,), _UNUSED: (sizes["seq_len"], head_size)}
    return shapes if sizes["vocab_size"] > 0 else shapes | {"lm_head": (vocabulary, dim)}


def _read_floats(path: Path, offset: int, shape: tuple[int, ...]) -> Tensor:
    """A tensor of a file, from little-endian float32."""
    array = np.fromfile(path, "<f4", math.prod(shape), offset=offset).astype(np.float32, copy=False)
    return torch.from_numpy(array.reshape(shape))


def _read_sizes(path: Path) -> dict[str, int]:
    """The sizes in the header of a file of version 0; they must fit each other."""
    with path.open("rb") as file:
        header = file.read(_HEADER.size)
    if header[:2] in (b"PK", b"\x80\x02"):
        raise ValueError(
            f"{path} is a pickle, which may run any code when it is read, and is not supported. "
            "A .bin must be llama2.c's; for a model in Hugging Face's layout, give its folder"
        )
    if len(header) < _HEADER.size:
        raise ValueError(f"{path} must start with a header of {_HEADER.size} bytes, got {len(header)}")
    if header.startswith(_VERSIONED):
        version = int.from_bytes(header[4:8], "little", signed=True)
        raise ValueError(
            f"{path} has llama2.c's version {version}; only version 0 is supported (export.py --version 0)"
        )
    sizes = dict(zip(_NAMES, _HEADER.unpack(header), strict=True))
    dim, heads, kv_heads = sizes["dim"], sizes["n_heads"], sizes["n_kv_heads"]
    smallest = min(abs(size) if name == "vocab_size" else size for name, size in sizes.items())
    if smallest < 1 or dim % heads or heads % kv_heads or dim // heads % 2:
        got = ", ".join(f"{name}={value}" for name, value in sizes.items())
        raise ValueError(
            f"{path} is not a llama2.c file: numbers must be positive, n_heads divide dim into even sizes and "
            f"n_kv_heads divide n_heads; its header says {got}"
        )
    return sizes


class BinTokenizer:
    """llama2.c's `tokenizer.bin`, encoded by the package `tokenizers`.

    The first three tokens are the unknown one, begin and end of a text; 256 pieces `<0x00>` … `<0xFF>` are bytes, for
    characters without a piece. `encode` starts with `begin`, and with a space before the first word, as in
    sentencepiece; `decode` removes both.
    """

    begin, end = 1, 2

    def __init__(self, path: str | Path) -> None:
        pieces = _read_pieces(Path(path))
        self.pieces = [piece for piece, _ in pieces]
        vocabulary: dict[str, int] = {}  # the first id of each piece
        scores: dict[str, float] = {}  # of the pieces that are merged from others
        for number, (piece, score) in enumerate(pieces[self.end + 1 :], self.end + 1):
            text = piece.decode("utf-8", errors="replace")
            vocabulary.setdefault(text, number)
            raw = re.fullmatch("<0x([0-9A-F]{2})>", text)
            if raw:
                self.pieces[number] = bytes.fromhex(raw[1])
            else:
                scores.setdefault(text, score)
        count = len(vocabulary) - len(scores)
        if count < 256:
            raise ValueError(f"{path} must have a piece <0x00> … <0xFF> for each of 256 bytes, got {count}")
        merges = [  # the best score first
            (text[:middle], text[middle:])
            for text in sorted(scores, key=scores.__getitem__, reverse=True)
            for middle in range(1, len(text))
            if text[:middle] in scores and text[middle:] in scores
        ]
        with optional_import(f"{path} needs the package tokenizers"):
            from tokenizers import Tokenizer, models
        self.inner = Tokenizer(models.BPE(vocabulary, merges, byte_fallback=True, unk_token="<0x00>"))

    def encode(self, text: str) -> list[int]:
        text = text.encode("utf-8", errors="replace").decode()
        return [self.begin, *self.inner.encode(" " + text).ids] if text else [self.begin]

    def decode(self, ids: Iterable[int]) -> str:
        text, first = b"", False
        for number in ids:
            if not 0 <= number < len(self.pieces):
                raise ValueError(f"ids must be at least 0 and below {len(self.pieces)}, got {number}")
            if number > self.end:
                piece = self.pieces[number]
                text += piece[1:] if first and piece.startswith(b" ") else piece
            first = number == self.begin
        return text.decode("utf-8", errors="replace")


def _read_pieces(path: Path) -> list[tuple[bytes, float]]:
    """The pieces and scores of a `tokenizer.bin`."""
    raw, offset, pieces = path.read_bytes(), 4, list[tuple[bytes, float]]()
    while offset < len(raw):
        score, length = struct.unpack_from("<fi", raw, offset) if offset + 8 <= len(raw) else (0.0, 0)
        start, offset = offset + 8, offset + 8 + length
        if length < 0 or offset > len(raw):
            where = f"token {len(pieces)} ends at byte {offset} of {len(raw)}"
            raise ValueError(f"{path} is truncated, or not a tokenizer of llama2.c: {where}")
        pieces.append((raw[start:offset], score))
    return pieces
