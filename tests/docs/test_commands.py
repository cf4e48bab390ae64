"""The commands in README and the pages parse: their subcommands and options exist."""

import importlib.util
import re
import shlex
from pathlib import Path

import pytest
import typer

from regard.cli.app import app

ROOT = Path(__file__).parents[2]
TEXT = "\n".join(page.read_text() for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
COMMANDS = re.findall(r"^    (?:torchrun .* -m regard|regard) (.*)$", TEXT.replace("\\\n", " "), re.MULTILINE)
MODULES = re.findall(r"(?:python|torchrun)\b[^\n`]*? -m ([\w.]+)", TEXT + (ROOT / "CONTRIBUTING.md").read_text())


def parse(line):
    """Parse a command line without running it; raises if a command, an argument or an option does not exist."""
    words = shlex.split(re.sub(r" [<>] \S+", "", line))
    command = typer.main.get_command(app)
    while hasattr(command, "get_command"):
        name = words.pop(0)
        command = command.get_command(typer.Context(command), name)
        assert command is not None, name
    return command.make_context(name, words)


@pytest.mark.parametrize("line", sorted(set(COMMANDS)))
def test_a_command_in_the_docs_parses(line):
    assert parse(line).args == []  # every word is an argument or an option of the command


def runs(name):
    """Whether `python -m` can run a module: a package needs a `__main__`, a module ends with a call of its own."""
    spec = importlib.util.find_spec(name)
    if spec is not None and spec.submodule_search_locations is not None:
        return importlib.util.find_spec(f"{name}.__main__") is not None
    return spec is not None and "__main__" in Path(spec.origin).read_text()


@pytest.mark.parametrize("name", sorted(set(MODULES)))
def test_a_module_in_the_docs_can_be_run(name):
    assert runs(name), f"python -m {name} does not run"


def test_a_module_that_cannot_be_run_is_found():
    assert {"regard", "benchmarks.attend"} < set(MODULES)
    assert not runs("regard.cli")
    assert not runs("regard.masks")
    assert not runs("regard.no_such_module")


def test_every_kind_of_model_is_fitted_in_the_docs():
    kinds = {line.split()[1] for line in COMMANDS if line.startswith("fit ")}
    assert kinds == {"table", "bags", "translator", "captioner", "writer"}


def test_an_option_that_does_not_exist_is_found():
    with pytest.raises(ValueError, match="has no option --set"):
        parse("fit writer book.txt --set size=256 --out model/")
