"""A text that a small language model learns by heart, and the settings of such models."""

LINE = "the quick brown fox jumps over the lazy dog, and the dog sleeps on.\n"
SMALL = {"context": 24, "blocks": 2, "heads": 2, "size": 32, "dropout": 0.0, "verbose": False, "random_state": 1}
TINY = SMALL | {"context": 16, "blocks": 1, "size": 16, "steps": 20, "validate_every": 5}
