"""A broker's components put together, and the broker's start, registration and stop."""
