"""The commands in README and the pages parse: their subcommands and options exist."""

import re
import shlex
from pathlib import Path

import pytest
import typer

from regard.cli.app import app

ROOT = Path(__file__).parents[2]
TEXT = "\n".join(page.read_text() for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
COMMANDS = re.findall(r"^    (?:torchrun .* -m regard\.cli|regard) (.*)$", TEXT.replace("\\\n", " "), re.MULTILINE)


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
    parse(line)


def test_every_kind_of_model_is_fitted_in_the_docs():
    kinds = {line.split()[1] for line in COMMANDS if line.startswith("fit ")}
    assert kinds == {"table", "bags", "translator", "captioner", "writer"}


def test_an_option_that_does_not_exist_is_found():
    with pytest.raises(ValueError, match="has no option --set"):
        parse("fit writer book.txt --set size=256 --out model/")
