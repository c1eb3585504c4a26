"""Partitions as files: segments, indexes, checkpoints, recovery and retention."""
