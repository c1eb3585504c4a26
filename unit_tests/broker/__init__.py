"""Tests of one broker put together."""
