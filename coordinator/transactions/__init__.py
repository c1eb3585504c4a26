"""Transactions and the ids of producers."""
