"""Exact ranges of partitions: reading, counting and checking them."""
