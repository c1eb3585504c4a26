"""A consumer as a member of a group: finding the coordinator, joining and staying, dividing the
partitions, committed offsets. `session` combines them; `decisions` and `topics` are pure."""
