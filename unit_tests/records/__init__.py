"""Tests of the record batch formats."""
