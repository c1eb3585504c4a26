"""Consumer groups: records, decisions, and what becomes of them over time."""
