"""Trained models of others, as modules of ours.

    load(path)        a folder in Hugging Face's layout (config.json and safetensors) of GPT-2, BERT or Llama, or
                      llama2.c's binary, version 0, to a `LanguageModel` or a `TextEncoder` in float32
    tokenizer(path)   what turns text into its tokens and back

They are made of the same blocks as any model here, so `regard.watch`, `look`, caches and training know them. A
folder is read as it is: what is unknown, missing, left over or of another shape is an error. Nothing is unpickled,
nothing is downloaded.
"""

from pathlib import Path

from regard.models.language import LanguageModel
from regard.models.pretrained import bert, gpt2, llama, llama2c
from regard.models.pretrained.settings import Settings, listed
from regard.models.pretrained.tokens import Tokenizer, tokenizer
from regard.models.pretrained.weights import opened
from regard.models.transformer import TextEncoder

__all__ = ["Tokenizer", "load", "tokenizer"]

FAMILIES = {"bert": bert, "gpt2": gpt2, "llama": llama}


def load(path: str | Path) -> LanguageModel | TextEncoder:
    """The model of a folder or a file, ready to evaluate, in float32 on the CPU.

    GPT-2, Llama and llama2.c are a `LanguageModel`; BERT and its kind a `TextEncoder`, with a row for each token.

    >>> import struct, tempfile, torch
    >>> with tempfile.NamedTemporaryFile(suffix=".bin") as file:  # as llama2.c has it: seven sizes, then the weights
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
        return llama2c.read(path)
    settings = Settings.read(path)
    kind = settings.get("model_type")
    if not isinstance(kind, str) or kind not in FAMILIES:
        raise ValueError(f"{settings.path}: model_type {kind!r} is not known; known are {listed(FAMILIES)}")
    settings.only("quantization_config", None)
    family = FAMILIES[kind]
    with opened(path, family.PREFIX) as weights:
        model: LanguageModel | TextEncoder = family.build(settings, weights)
        weights.finish(family.HARMLESS)
    return model
