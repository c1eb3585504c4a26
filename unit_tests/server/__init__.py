"""Tests of pybroker.server."""
