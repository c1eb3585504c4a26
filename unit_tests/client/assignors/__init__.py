"""Tests of assignors: the rules of all assignors, known assignments, and a comparison with
kafka-python."""
