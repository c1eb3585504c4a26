"""The runtime of group and transaction coordinators. The leader of a partition of an internal topic
keeps the coordinator's state in memory. Each change of the stored state is first appended to the
partition as a record, and then applied in memory."""
