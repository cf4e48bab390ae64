"""The command line as tests talk to it: a verb run here or in a process of its own, and what it said."""

import io
import subprocess
import sys
from pathlib import Path

import pandas as pd
from typer.testing import CliRunner

from regard.cli import app


def run(*words, code=0, given=None):
    """A verb, run here, with what is given on stdin; what it printed."""
    result = CliRunner().invoke(app, [str(word) for word in words], input=given)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.stderr
    return result


def refused(*words, given=None):
    """The one line that a user gets who made a mistake, without the word for it."""
    result = run(*words, code=1, given=given)
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    return result.stderr.removeprefix("error: ")


def typed(*words, **settings):
    """A verb, run in a process of its own."""
    command = [sys.executable, "-m", "regard", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False, **settings)


def held(folder):
    """The files of a folder."""
    return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def frame_of(result, **settings):
    """The table that was printed."""
    return pd.read_csv(io.StringIO(result.stdout), **settings)
