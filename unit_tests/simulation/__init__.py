"""Tests of the simulation itself, on which all its results depend."""
