"""Tests of pybroker.coordinator.zookeeper."""
