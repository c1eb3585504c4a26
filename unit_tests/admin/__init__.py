"""Tests of the broker's HTTP pages."""
