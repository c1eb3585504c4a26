"""Tests of committed offsets: the two stores, and the change from one to the other."""
