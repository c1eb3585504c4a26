"""Tests of administration by the client."""
