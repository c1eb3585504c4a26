"""Replicas that may lack records which they have acknowledged, and how they step aside."""
