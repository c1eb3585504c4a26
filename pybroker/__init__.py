"""pybroker: classic, ZooKeeper-coordinated Apache Kafka, written in Python.

This module imports no other module of the package, so that `pybroker.client` can be used without
the broker's dependencies.
"""

__version__ = "0.1.0"
