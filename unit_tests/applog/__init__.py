"""Tests of the application log of a broker."""
