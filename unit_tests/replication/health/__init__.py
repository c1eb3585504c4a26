"""Tests of replicas that may hold less than they have acknowledged."""
