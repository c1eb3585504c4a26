"""Tests of the channels between brokers."""
