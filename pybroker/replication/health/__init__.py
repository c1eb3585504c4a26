"""A replica that may hold less than it has acknowledged, and how it steps aside."""
