"""Generated data for examples and tests."""
