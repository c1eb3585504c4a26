"""Tests of pybroker.handlers."""
