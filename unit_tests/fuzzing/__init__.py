"""Inputs found by fuzzers, and the fuzzers that need no broker."""
