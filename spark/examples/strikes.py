"""The transform of birdstrikes.yaml: selects some columns, gives them short names, and adds the
year."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F


def transform(records: DataFrame) -> DataFrame:
    """Return a table with one row for each bird strike."""

    def field(name: str) -> Column:
        return F.col("value").getField(name)

    return records.select(
        "topic",
        "partition",
        "offset",
        field("Airport Name").alias("airport"),
        field("Flight Date").alias("day"),
        F.year(field("Flight Date")).alias("year"),
        field("Wildlife Species").alias("species"),
        field("Speed IAS in knots").alias("speed_knots"),
        field("Cost Total $").alias("cost_dollars"),
    )
