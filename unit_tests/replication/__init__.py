"""Tests of pybroker.replication."""
