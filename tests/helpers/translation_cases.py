"""Settings of small translators of dates."""

QUICK = {"tokens": "characters", "smoothing": 0.0, "dropout": 0.0, "warm": 20, "random_state": 0, "verbose": False}
TINY = QUICK | {"size": 8, "hidden": 12, "epochs": 2, "batch_tokens": 256, "blocks": 1, "heads": 2}
"""Trained in less than a second; its translations are wrong."""
SMALL = QUICK | {"size": 24, "hidden": 32, "epochs": 6, "batch_tokens": 256, "learning_rate": 0.02}
"""Trained on 400 dates, most of its translations are right."""
