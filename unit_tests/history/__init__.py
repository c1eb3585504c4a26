"""Tests of the checker of histories (`pybroker.testing.history`)."""
