"""Listeners and connections: frames in, frames out, one request of a connection at a time."""
