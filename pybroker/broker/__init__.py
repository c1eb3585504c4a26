"""One broker: its parts put together, and its start, registration and stop."""
