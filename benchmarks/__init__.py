"""Side by side with the peers, as ratios. Each file is a command: `python -m benchmarks.attend`."""
