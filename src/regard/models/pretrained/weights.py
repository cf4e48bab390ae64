r"""The weights of a folder in Hugging Face's layout: safetensors, whole or in shards.

    with opened(folder, prefix="model.") as weights:
        weights.take("norm.weight", 64)              float32, of that shape, or an error that names it
        weights.finish(r"rotary_emb\.inv_freq$")     nothing may be left but what does no harm

Nothing is ever unpickled.
"""

import contextlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from regard.models.pretrained.settings import listed, read_json

WHOLE, INDEX, READ = "model.safetensors", "model.safetensors.index.json", "lm_head.weight"
FLOATS = ("F64", "F32", "F16", "BF16")

Model = TypeVar("Model", bound=nn.Module)
State = dict[str, Tensor]  # weights by their names in our modules


class Weights:
    """The weights of a folder; each is taken once, by name.

    prefix   what stands before the names where the model was saved with a head, such as "model."
    files    for each name, its open file
    """

    def __init__(self, folder: Path, prefix: str, files: Mapping[str, Any]) -> None:
        self.folder, self.prefix, self.files = folder, prefix, files
        self.left = dict.fromkeys(files)

    def __contains__(self, name: str) -> bool:
        return self.find(name) is not None

    def find(self, name: str) -> str | None:
        """The name as the file has it."""
        return next((found for found in (self.prefix + name, name) if found in self.left), None)

    def take(self, name: str, *shape: int) -> Tensor:
        """The weight of that name in float32, once it has that shape. It is a copy: the file may go."""
        found = self.find(name)
        if found is None:
            raise ValueError(f"{self.folder} has no weight {name!r}")
        file = self.files[found]
        kind, got = file.get_slice(found).get_dtype(), file.get_slice(found).get_shape()
        if tuple(got) != shape:
            raise ValueError(f"{self.folder}: the weight {found!r} must be {list(shape)}, got {list(got)}")
        if kind not in FLOATS:
            raise ValueError(f"{self.folder}: the weight {found!r} must be one of {', '.join(FLOATS)}, got {kind}")
        del self.left[found]
        weight: Tensor = file.get_tensor(found)
        return weight.to(torch.float32, copy=True)

    def linear(self, parts: Mapping[str, int], columns: int, bias: bool) -> State:
        """A linear map; where it has several parts, each with a name and so many rows, they stand below each other."""
        found = {"weight": torch.cat([self.take(f"{name}.weight", rows, columns) for name, rows in parts.items()])}
        if bias:
            found["bias"] = torch.cat([self.take(f"{name}.bias", rows) for name, rows in parts.items()])
        return found

    def read(self, tied: bool, tokens: Tensor) -> State:
        """The matrix from rows to logits, where it is not the tokens' own, `[vocabulary, size]`."""
        if tied and READ not in self:
            return {}
        own = self.take(READ, *tokens.shape)
        if tied and not torch.equal(own, tokens):
            raise ValueError(f"{self.folder}: tie_word_embeddings is true, but {READ} is not the tokens' vectors")
        return {} if tied else {"read.weight": own}

    def finish(self, harmless: str) -> None:
        """Nothing may be left that is not harmless, a pattern of names."""
        left = [name for name in self.left if not re.search(harmless, name)]
        if left:
            raise ValueError(f"{self.folder} has weights that the model has no place for: {listed(left)}")


@contextlib.contextmanager
def opened(folder: Path, prefix: str = "") -> Iterator[Weights]:
    """The weights of a folder, whole or in shards."""
    with contextlib.ExitStack() as stack:
        files = {}
        for path, names in shards(folder).items():
            try:
                file = stack.enter_context(safe_open(path, framework="pt"))
            except (SafetensorError, OSError) as error:
                raise ValueError(f"{path} cannot be read: {error}") from None
            found = set(file.keys())
            missing = [name for name in names or () if name not in found]
            if missing:
                raise ValueError(f"{path} lacks what {INDEX} says is in it: {listed(missing)}")
            files.update(dict.fromkeys(sorted(found), file))
        yield Weights(folder, prefix, files)


def shards(folder: Path) -> dict[Path, list[str] | None]:
    """The files that hold weights, and which ones they hold where an index says so."""
    if (folder / WHOLE).is_file():
        return {folder / WHOLE: None}
    if not (folder / INDEX).is_file():
        pickles = sorted(path.name for path in folder.glob("*.bin"))
        if pickles:
            raise ValueError(
                f"{folder} has its weights in {pickles[0]}, which is a pickle and may run any code when it is read. "
                f"It is not read here: where you trust it, load it with transformers' from_pretrained and write "
                f"{WHOLE} with save_pretrained"
            )
        raise FileNotFoundError(f"{folder} has no weights: neither {WHOLE} nor {INDEX}")
    names = read_json(folder / INDEX).get("weight_map")
    if not isinstance(names, dict) or not names:
        raise ValueError(f"{folder / INDEX} must say in weight_map which file each weight is in")
    found: dict[Path, list[str] | None] = {}
    for name, file in names.items():
        if not isinstance(file, str) or Path(file).name != file or not file.endswith(".safetensors"):
            raise ValueError(f"{folder / INDEX} must name safetensors files beside it, got {file!r} for {name!r}")
        if not (folder / file).is_file():
            raise FileNotFoundError(f"{folder} has no {file}, which {INDEX} names")
        held = found.setdefault(folder / file, [])
        assert held is not None
        held.append(name)
    return found


class Undrawn(TorchFunctionMode):
    """`nn.init` does nothing. On "meta" it has nothing to fill, but loads torch's compiler, which takes seconds."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if getattr(function, "__module__", None) == nn.init.__name__:
            return kwargs["tensor"] if "tensor" in kwargs else args[0]
        return function(*args, **kwargs)


@contextlib.contextmanager
def hollow() -> Iterator[None]:
    """Modules made here have no memory and no values; `filled` gives them both."""
    with torch.device("meta"), Undrawn():
        yield


def filled(model: Model, state: State) -> Model:
    """A hollow model with these weights; it evaluates."""
    model.load_state_dict(state, assign=True)
    return model.eval()


def below(name: str, parts: State) -> State:
    """Weights by their whole names: those of the module of that name."""
    return {f"{name}.{part}": weight for part, weight in parts.items()}
