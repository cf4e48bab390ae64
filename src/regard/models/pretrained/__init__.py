"""Trained models of others, as modules of ours.

    load(path)        a folder in Hugging Face's layout (config.json and safetensors) of GPT-2, Llama, Mistral, Qwen 2
                      or 3, BERT, RoBERTa or DistilBERT, or llama2.c's binary, version 0, to a `LanguageModel` or a
                      `TextEncoder` in float32
    tokenizer(path)   its tokenizer: text to the ids that the model was trained on, and back

They are made of the same blocks as any model here, so `regard.watch`, `look`, caches and training work. What is
unknown, missing, left over or of another shape in a folder is an error. Nothing is unpickled, nothing is downloaded.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from regard.checks import optional_import
from regard.models.language import LanguageModel
from regard.models.pretrained import llama2c
from regard.models.pretrained.architectures import ARCHITECTURES
from regard.models.pretrained.folder import Settings, open_weights
from regard.models.transformer import TextEncoder

__all__ = ["Tokenizer", "load", "tokenizer"]

TOKENIZER = "tokenizer.json"


def load(path: str | Path) -> LanguageModel | TextEncoder:
    """The model of a folder or a file, in evaluation mode, in float32 on the CPU.

    GPT-2, Llama and its kind, and llama2.c give a `LanguageModel`; BERT and its kind a `TextEncoder`, with a row for
    each token. A language model that was saved without its head has `rows`, and raises ValueError for logits. An
    encoder's classifier is left out with a warning.

    >>> import struct, tempfile, torch
    >>> with tempfile.NamedTemporaryFile(suffix=".bin") as file:  # llama2.c's: seven sizes, then the weights
    ...     _ = file.write(struct.pack("<7i", 8, 16, 1, 2, 1, 50, 32) + bytes(4512))
    ...     file.flush()
    ...     model = load(file.name)
    >>> model(torch.tensor([[1, 7, 5]])).shape
    torch.Size([1, 3, 50])
    """
    path = Path(path)
    if path.is_file():
        if path.suffix != ".bin":
            raise ValueError(f"{path} is a file: give the folder it is in, or a .bin of llama2.c")
        return llama2c.read_model(path)
    settings = Settings.read(path)
    settings.require("quantization_config", None)
    architecture = settings.choice("model_type", None, ARCHITECTURES)
    with open_weights(path, architecture.prefix) as weights:
        return architecture.load(settings, weights)


class Tokenizer(Protocol):
    """Text to ids and back.

    encode(text)   with the tokens that the model expects around a text
    decode(ids)    without them
    """

    def encode(self, text: str) -> list[int]: ...

    def decode(self, ids: Iterable[int]) -> str: ...


def tokenizer(path: str | Path) -> Tokenizer:
    """The tokenizer of a model: a folder with `tokenizer.json`, that file itself, or llama2.c's `.bin`.

    >>> import tempfile
    >>> from regard.data.tokenizers import character_tokenizer
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     character_tokenizer("banana").save(f"{folder}/tokenizer.json")
    ...     words = tokenizer(folder)
    >>> words.decode(words.encode("nab"))
    'nab'
    """
    path = Path(path)
    if path.is_dir():
        path = path / TOKENIZER
    if not path.is_file():
        raise FileNotFoundError(f"there is no {path}: a tokenizer is a folder with {TOKENIZER}, or llama2.c's .bin")
    return llama2c.BinTokenizer(path) if path.suffix == ".bin" else JsonTokenizer(path)


class JsonTokenizer:
    """A `tokenizer.json`, read by the package `tokenizers`. Texts are neither truncated nor padded."""

    def __init__(self, path: str | Path) -> None:
        with optional_import(f"{path} needs the package tokenizers"):
            import tokenizers
        try:
            self.inner = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the package raises nothing narrower
            raise ValueError(f"{path} is not a tokenizer: {error}") from None
        self.inner.no_padding()
        self.inner.no_truncation()

    def encode(self, text: str) -> list[int]:
        return list(self.inner.encode(text).ids)

    def decode(self, ids: Iterable[int]) -> str:
        return str(self.inner.decode(list(ids)))
