"""The replicas of a broker: their roles, high watermarks, ISR changes, waiting requests, and the
copying from leaders."""
