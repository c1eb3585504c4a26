"""Tests of the checker of histories."""
