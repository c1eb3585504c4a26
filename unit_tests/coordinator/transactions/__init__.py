"""Tests of pybroker.coordinator.transactions."""
