"""Comparisons with other libraries, as ratios. Each file is a command: `python -m benchmarks.attend`."""
