"""Tests of the classic consumer."""
