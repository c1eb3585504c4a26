"""Partitions as replicas: high watermark, ISR, delayed operations, and the manager of a broker's
replicas."""
