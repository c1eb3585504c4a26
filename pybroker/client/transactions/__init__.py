"""Transactions of a producer: the state of the transaction, and the requests to its coordinator."""
