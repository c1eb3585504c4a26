"""Tests of what a broker shows of itself."""
