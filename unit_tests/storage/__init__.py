"""Tests of the log; `bench.py` has their vocabulary."""
