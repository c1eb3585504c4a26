"""Spark looks for packages whose names begin with `pyspark_` and registers their `DefaultSource`:
so, where pybroker is installed, `spark.read.format("pybroker")` works without a word before it.
"""

from pybroker.spark.source import PybrokerDataSource as DefaultSource

__all__ = ["DefaultSource"]
