"""Integration tests with real processes, a real ZooKeeper and real clients."""
