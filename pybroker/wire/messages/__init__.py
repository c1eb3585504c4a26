"""The messages of the protocol: one module for each family of APIs, and one dataclass for all
versions of a message."""
