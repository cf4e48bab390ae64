"""The members of the stack behind `AttentionRegressor` and `AttentionClassifier`."""
