"""Listeners and connections: they receive request frames and send response frames, one request of a
connection at a time."""
