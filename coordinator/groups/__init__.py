"""Consumer groups: who is in them, what they are assigned, and how far they have read."""
