"""Tests of the wire protocol: round trips, other codecs, known bytes and damaged input."""
