"""Spark finds packages whose names begin with `pyspark_` and registers their `DefaultSource`. With
pybroker installed, `spark.read.format("pybroker")` therefore works without a registration.
"""

from pybroker.spark.source import PybrokerDataSource as DefaultSource

__all__ = ["DefaultSource"]
