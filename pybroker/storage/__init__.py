"""The logs of partitions as files: segments, indexes, checkpoints, recovery and retention."""
