"""Committed offsets of groups: the two stores, and the change from one to the other."""
