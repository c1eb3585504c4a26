"""Consumer groups: their members, the members' assignments, and the committed offsets."""
