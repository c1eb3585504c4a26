"""Tests of pybroker.coordinator."""
