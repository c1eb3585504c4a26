"""Tests of the simulation itself: without them its results would prove nothing."""
