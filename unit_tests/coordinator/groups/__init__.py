"""Tests of consumer groups: records, decisions, and their effects over time."""
