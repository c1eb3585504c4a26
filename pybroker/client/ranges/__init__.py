"""Exact ranges of partitions: how they are read, counted and checked."""
