"""Replication on one broker: replica roles, high watermarks, ISR changes, replica fetchers and the
purgatory of waiting requests."""
