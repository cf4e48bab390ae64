"""The tour: every system on a small case, what it looked at, and its score beside that of a baseline.

`regard tour` runs the stations and writes a page. Stations are in the file `station.py` of each subject of
`regard.estimators`, and in `layers.py` here.
"""
