"""The runtime of group and transaction coordinators. The leader of a partition of an internal topic
keeps the coordinator's state in memory, and appends every change as a record first."""
