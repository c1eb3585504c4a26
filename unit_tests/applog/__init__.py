"""Tests of the log of a broker."""
