"""Tests of pybroker.coordinator.runtime."""
