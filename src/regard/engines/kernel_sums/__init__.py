"""Sums of a kernel over points: the engines `pairs` and `gauss`."""
