"""The group membership of a consumer: the lookup of the coordinator, JoinGroup and heartbeats,
assignments and committed offsets."""
