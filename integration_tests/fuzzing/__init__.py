"""Hostile frames against a running broker, and the recorded requests from which they are made."""
