"""Tests of replicas that may lack records which they have acknowledged."""
