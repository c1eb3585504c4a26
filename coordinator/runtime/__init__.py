"""The runtime of group and transaction coordinators. The leader of a partition of an internal topic
keeps the state in memory. Each change is appended to the partition before it is applied."""
