"""Hostile frames against a running broker, and the recorded requests from which the frames are
generated.
"""
