"""Tests of the Spark pipeline that need neither Spark nor a broker."""
