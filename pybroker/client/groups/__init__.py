"""A consumer as a member of a group: who coordinates it, joining and staying, dividing the
partitions, committed offsets. `session` puts it together; `decisions` and `topics` are pure."""
