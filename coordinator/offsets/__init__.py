"""Committed offsets of groups: the two stores, and the migration from one to the other."""
