"""Tests of exact ranges."""
