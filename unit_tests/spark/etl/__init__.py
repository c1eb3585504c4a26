"""Tests of the jobs of the Spark pipeline."""
