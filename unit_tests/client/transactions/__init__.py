"""Tests of the transactions of a producer."""
