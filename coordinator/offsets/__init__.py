"""Committed offsets of groups: the store in the log, the store in ZooKeeper, and the migration
between the two stores."""
