"""Tests of a broker as a process and its child processes."""
