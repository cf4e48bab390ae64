"""Engines: ways to compute the same thing.

An engine takes a `Job`, says whether it can do it (`refuses` gives the reason why not), and does it
(`attend`). Engines that can also give the summed weight have `attend_parts`. Each must agree with the
one slow definition in `tests/reference.py`, in value and in gradient.
"""
