"""llama2.c's files equal its forward pass and its tokenizer, write_model out here; and the example that uses them."""

import math
import re
import runpy
import struct
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import regard
from regard.models.language import LanguageModel
from regard.models.pretrained import load, tokenizer

ROOT = Path(__file__).parents[3]
DIM, HIDDEN, LAYERS, HEADS, KV_HEADS, WORDS, CONTEXT = 42, 29, 3, 7, 1, 31, 17
CONTROL = [(b"<unk>", 0.0), (b"\n<s>\n", 0.0), (b"\n</s>\n", 0.0)]
BYTES = [(f"<0x{byte:02X}>".encode(), 0.0) for byte in range(256)]
LETTERS = [*"abc é<unk>0"]
PAIRS = ["ab", " a", "bc", "abc", " ab", "cc", "aa", "aaa", "é ", " abc", "ba", "cab", "aaaa", "abab", "abcc", "ccab"]
PIECES = LETTERS + PAIRS + ["<u", "nk", "nk>"]  # <unk> is a token, but not a piece of a text


def shapes(kv_heads, words):
    """The shapes of the weights, by llama2.c's names, in the order of the file."""
    kv, half = DIM // HEADS * kv_heads, DIM // HEADS // 2
    return {
        "token_embedding_table": (abs(words), DIM),
        "rms_att_weight": (LAYERS, DIM),
        "wq": (LAYERS, DIM, DIM),
        "wk": (LAYERS, kv, DIM),
        "wv": (LAYERS, kv, DIM),
        "wo": (LAYERS, DIM, DIM),
        "rms_ffn_weight": (LAYERS, DIM),
        "w1": (LAYERS, HIDDEN, DIM),
        "w2": (LAYERS, DIM, HIDDEN),
        "w3": (LAYERS, HIDDEN, DIM),
        "rms_final_weight": (DIM,),
        "freq_cis_real": (CONTEXT, half),
        "freq_cis_imag": (CONTEXT, half),
    } | ({} if words > 0 else {"wcls": (abs(words), DIM)})


def write_model(path, kv_heads=KV_HEADS, words=WORDS):
    """A random model, as a file and as arrays."""
    random = np.random.default_rng(0)
    arrays = {
        name: random.normal("rms" in name, 0.3, shape).astype("<f4") for name, shape in shapes(kv_heads, words).items()
    }
    header = struct.pack("<7i", DIM, HIDDEN, LAYERS, HEADS, kv_heads, words, CONTEXT)
    path.write_bytes(header + b"".join(array.tobytes() for array in arrays.values()))
    return {name: array.astype(np.float64) for name, array in arrays.items()}


def norm(x, weight):
    return weight * x / math.sqrt(np.mean(x * x) + 1e-5)


def rotate(x, index):
    """Neighbours are a pair, in each head, rotated by the position."""
    size, out = DIM // HEADS, np.empty_like(x)
    for i in range(0, len(x), 2):
        angle = index * 10000.0 ** (-(i % size) / size)
        out[i] = x[i] * math.cos(angle) - x[i + 1] * math.sin(angle)
        out[i + 1] = x[i] * math.sin(angle) + x[i + 1] * math.cos(angle)
    return out


def forward(w, tokens, kv_heads):
    """llama2.c's forward pass, token by token and head by head: logits, and weights `[layer][head][q, k]`."""
    size, shared = DIM // HEADS, HEADS // kv_heads
    keys, values = ([[] for _ in range(LAYERS)] for _ in range(2))
    logits, looks = [], np.zeros((LAYERS, HEADS, len(tokens), len(tokens)))
    for index, token in enumerate(tokens):
        x = w["token_embedding_table"][token].copy()
        for layer in range(LAYERS):
            h = norm(x, w["rms_att_weight"][layer])
            query = rotate(w["wq"][layer] @ h, index)
            keys[layer].append(rotate(w["wk"][layer] @ h, index))
            values[layer].append(w["wv"][layer] @ h)
            mixed = []
            for head in range(HEADS):
                own, shared_rows = (
                    slice(head * size, (head + 1) * size),
                    slice(head // shared * size, (head // shared + 1) * size),
                )
                scores = np.array([query[own] @ key[shared_rows] / math.sqrt(size) for key in keys[layer]])
                weights = np.exp(scores - scores.max()) / np.exp(scores - scores.max()).sum()
                looks[layer, head, index, : index + 1] = weights
                mixed.append(sum(a * value[shared_rows] for a, value in zip(weights, values[layer], strict=True)))
            x = x + w["wo"][layer] @ np.concatenate(mixed)
            h = norm(x, w["rms_ffn_weight"][layer])
            gate = w["w1"][layer] @ h
            x = x + w["w2"][layer] @ (gate / (1 + np.exp(-gate)) * (w["w3"][layer] @ h))
        logits.append(w.get("wcls", w["token_embedding_table"]) @ norm(x, w["rms_final_weight"]))
    return torch.tensor(np.array(logits)), torch.tensor(looks)


@pytest.mark.parametrize(("kv_heads", "words"), [(1, WORDS), (7, -WORDS)])
@torch.inference_mode()
def test_the_forward_pass_equals_llama2cs(kv_heads, words, tmp_path):
    arrays = write_model(tmp_path / "model.bin", kv_heads, words)
    model, tokens = load(tmp_path / "model.bin"), torch.randint(WORDS, (13,))
    assert isinstance(model, LanguageModel)
    assert (model.vocabulary, model.context, model.training) == (WORDS, CONTEXT, False)
    assert (model.read is None) == (words > 0)
    logits, looks = forward(arrays, tokens.tolist(), kv_heads)
    assert logits.std() > 0.5
    with regard.watch(model) as records:
        assert_close(model(tokens[None])[0].double(), logits, atol=1e-4, rtol=1e-4)
    for layer, (result,) in enumerate(records.values()):
        assert_close(result[0].double(), looks[layer], atol=1e-5, rtol=1e-4)
    cache = model.begin(tokens[None, :4])
    for index in range(4, 13):
        cache, result = model.step(cache, tokens[index : index + 1])
        assert_close(result[0].double(), logits[index].log_softmax(dim=0), atol=1e-4, rtol=1e-4)


def test_truncated_and_other_files(tmp_path):
    path = tmp_path / "model.bin"
    write_model(path)
    raw = path.read_bytes()
    for wrong in (raw[:-1], raw[:28], raw + b"\0\0\0\0"):
        path.write_bytes(wrong)
        with pytest.raises(ValueError, match=rf"model.bin must have {len(raw)} bytes by its header, got {len(wrong)}"):
            load(path)
    path.write_bytes(raw[:27])
    with pytest.raises(ValueError, match="must start with a header of 28 bytes, got 27"):
        load(path)
    path.write_bytes(struct.pack("<2i", 0x616B3432, 1) + raw)
    with pytest.raises(ValueError, match=r"has llama2.c's version 1; only version 0 is supported"):
        load(path)
    for index, number in ((0, 41), (2, 0), (3, -7), (4, 2), (0, 7)):
        header = list(struct.unpack("<7i", raw[:28]))
        header[index] = number
        path.write_bytes(struct.pack("<7i", *header) + raw[28:])
        with pytest.raises(
            ValueError, match=rf"is not a llama2.c file: .* its header says dim={header[0]}, hidden_dim=29"
        ):
            load(path)
    with pytest.raises(FileNotFoundError, match=r"nowhere.bin is not a model folder: no such file or folder"):
        load(tmp_path / "nowhere.bin")


def write_pieces(path, pieces):
    """A tokenizer's file."""
    longest = max(len(piece) for piece, _ in pieces)
    path.write_bytes(
        struct.pack("<i", longest) + b"".join(struct.pack("<fi", score, len(piece)) + piece for piece, score in pieces)
    )
    return path


@pytest.fixture(params=range(5))
def pieces(request):
    """Scores in random order, so that a word is not simply cut into its longest pieces."""
    scores = np.random.default_rng(request.param).permutation(len(PIECES))
    return CONTROL + BYTES + [(piece.encode(), -float(score)) for piece, score in zip(PIECES, scores, strict=True)]


def merge_slowly(pieces, text):
    """llama2.c's encode: letters, or their bytes; then, repeatedly, the best pair is merged."""
    known = {piece: number for number, (piece, _) in enumerate(pieces) if number > 258}
    ids = [1]
    for letter in " " + text if text else "":
        raw = letter.encode()
        ids += [known[raw]] if raw in known else [3 + byte for byte in raw]
    while True:
        best = None
        for index in range(len(ids) - 1):
            new = known.get(pieces[ids[index]][0] + pieces[ids[index + 1]][0])
            if new is not None and (best is None or pieces[new][1] > pieces[best[1]][1]):
                best = index, new
        if best is None:
            return ids
        ids[best[0] : best[0] + 2] = [best[1]]


def test_the_tokenizer_equals_llama2cs(pieces, tmp_path):
    words = tokenizer(write_pieces(tmp_path / "tok.bin", pieces))
    random = np.random.default_rng(2)
    texts = ["", "a", " ", "  a ", "aaaaaaa", "é a", "x", "<s>", "<unk>", "<0x41>", "\n<s>\n", "日本 é\n", "abcabc bca"]
    texts += ["".join(random.choice(list("aabbcc é<unk>日"), size=random.integers(1, 40))) for _ in range(200)]
    for text in texts:
        ids = words.encode(text)
        assert ids == merge_slowly(pieces, text), text
        assert words.decode(ids) == text
    assert len(words.encode("abababab aaaaaaa")) < 12
    assert words.decode(words.encode("ab" * 50_000)) == "ab" * 50_000  # in less than quadratic time


def test_decoding(pieces, tmp_path):
    words = tokenizer(write_pieces(tmp_path / "tok.bin", pieces))
    space_a = words.encode("a")[-1]
    assert words.decode([space_a]) == " a"  # a piece within a text
    assert words.decode([1, space_a, 2, 1, space_a]) == "aa"
    assert words.decode([3 + 0xE6, 3 + 0x97]) == "\ufffd"  # an incomplete letter
    assert words.decode([3 + 0xE6, 3 + 0x97, 3 + 0xA5]) == "日"
    for wrong in (-1, len(pieces)):
        with pytest.raises(ValueError, match=f"ids must be at least 0 and below {len(pieces)}, got {wrong}"):
            words.decode([wrong])


def test_truncated_tokenizers(pieces, tmp_path):
    path = write_pieces(tmp_path / "tok.bin", pieces)
    raw = path.read_bytes()
    for wrong in (raw[:-1], raw[:-2], raw + b"\0", raw[:4] + struct.pack("<fi", 0, -1)):
        path.write_bytes(wrong)
        with pytest.raises(
            ValueError, match=rf"is truncated, or not a tokenizer .*: token \d+ ends at byte \d+ of {len(wrong)}"
        ):
            tokenizer(path)
    for rest in ([], CONTROL + BYTES[:-1]):
        path.write_bytes(b"\7\0\0\0") if not rest else write_pieces(path, rest)
        with pytest.raises(ValueError, match=f"for each of 256 bytes, got {max(0, len(rest) - 3)}"):
            tokenizer(path)


def run_example(monkeypatch, capsys, *args):
    monkeypatch.setattr(sys, "argv", ["tell_story.py", *map(str, args)])
    runpy.run_path(str(ROOT / "examples" / "tell_story.py"), run_name="__main__")
    return capsys.readouterr().out


def test_the_example_tells_a_story(pieces, tmp_path, monkeypatch, capsys):
    write_model(tmp_path / "model.bin", words=len(pieces))
    write_pieces(tmp_path / "tok.bin", pieces)
    files = tmp_path / "model.bin", tmp_path / "tok.bin"
    plain = run_example(monkeypatch, capsys, *files, "--prompt", "abc")
    assert re.match(r"abc.+\n$", plain, re.DOTALL)
    assert plain == run_example(monkeypatch, capsys, *files, "--prompt", "abc", "--seed", "5")
    drawn = [
        run_example(monkeypatch, capsys, *files, "--prompt", "abc", "--temperature", "3", "--seed", seed)
        for seed in (1, 1, 2)
    ]
    assert drawn[0] == drawn[1] != drawn[2]
    with pytest.raises(SystemExit):
        run_example(monkeypatch, capsys, *files, "--temperature", "-1")
    assert "--temperature must be at least 0, got -1.0" in capsys.readouterr().err
