"""Tests of the log: see `bench.py` for the words in which they are written."""
