"""The command line: `app.py` has a function for each verb, `fit.py` makes `regard fit NAME` of declared settings."""

from regard.cli.app import app, main

__all__ = ["app", "main"]
