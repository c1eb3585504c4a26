"""Tests of pybroker.testing."""
