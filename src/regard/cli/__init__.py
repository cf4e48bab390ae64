"""The command line: `app.py` has a function for each verb; the other files say what it does with each kind of data."""

from regard.cli.app import app, main

__all__ = ["app", "main"]
