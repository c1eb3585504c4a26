"""Hostile frames against a running broker, and the recorded requests that they are made from."""
