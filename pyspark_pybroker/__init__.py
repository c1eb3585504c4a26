"""Makes `spark.read.format("pybroker")` work without registration: Spark finds packages whose names
begin with `pyspark_` and registers their `DefaultSource`."""

from pybroker.spark.source import PybrokerDataSource as DefaultSource

__all__ = ["DefaultSource"]
