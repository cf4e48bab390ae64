"""Settings of a model as typed: --set size=256 --set tokens=pieces."""

import inspect
import json
import os
from difflib import get_close_matches
from typing import Any


def settings_in(kind: Any, given: dict[str, Any]) -> dict[str, Any]:
    """What a model is made with: the settings that were typed, the seed, and whether it shows a bar.

    kind    the class, whose arguments are its settings
    given   the options of `regard fit`: `set`, `seed`, `quiet`
    """
    known = set(inspect.signature(kind).parameters) - {"random_state", "verbose"}
    settings: dict[str, Any] = {"random_state": given["seed"], "verbose": not given["quiet"]}
    for text in given["set"] or []:
        name, mark, value = text.partition("=")
        name = name.strip().replace("-", "_")
        if not mark or name not in known:
            near = get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]}? " if near else ""
            raise ValueError(
                f"--set takes NAME=VALUE, a setting of {kind.__name__}, got {text!r}: {hint}"
                f"there are {', '.join(sorted(known))}"
            )
        settings[name] = typed(value.strip())
    return settings


def leads() -> bool:
    """Whether this process is the one that writes, of those that `torchrun` started together."""
    return os.environ.get("RANK", "0") == "0"


def typed(text: str) -> Any:
    """A number, true, false or null as JSON has them; else a word."""
    try:
        return json.loads({"True": "true", "False": "false", "None": "null"}.get(text, text))
    except ValueError:
        return text
