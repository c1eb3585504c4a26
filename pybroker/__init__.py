"""pybroker: classic, ZooKeeper-coordinated Apache Kafka, written in Python.

This package imports nothing below it, so that `pybroker.client` can be used without the broker's
dependencies.
"""

__version__ = "0.1.0"
