"""The runtime of group and transaction coordinators: the leader of a partition of an internal
topic keeps state in memory, and every change is appended as a record first."""
