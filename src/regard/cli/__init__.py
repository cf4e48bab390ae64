"""The command line: `app.py` and `fitting.py` have a function for each verb.

The other files say what it does with each kind of data.
"""

from regard.cli.app import app, main

__all__ = ["app", "main"]
