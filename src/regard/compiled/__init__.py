"""Compiled loops: Numba, its cache, its threads."""
