"""Helpers that users' own tests may use too."""
