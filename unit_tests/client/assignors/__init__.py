"""Assignors: rules that every one keeps, known cases, and kafka-python as oracle."""
