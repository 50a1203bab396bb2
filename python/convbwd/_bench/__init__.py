"""Measurements: `python -m convbwd bench`, `python -m convbwd explain` and the scripts of the folder bench/."""
