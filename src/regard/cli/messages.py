"""What the command line says beside its results."""

from rich.console import Console


def say(message: str, quiet: bool = False) -> None:
    """A line on stderr."""
    if not quiet:
        Console(stderr=True).print(" ".join(message.split()), soft_wrap=True, markup=False, highlight=False)
