"""The schemas of a read's columns, for Spark and for Arrow, and the check of a user's own
schema."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from pybroker.errors import ConfigError
from pybroker.spark.options import COLUMNS, ReadRequest

BATCH_ROWS: Final = 8_192
"""Number of rows that are joined into a batch. With this number, Spark's fixed cost of a batch (60
microseconds) is negligible."""
BATCH_BYTES: Final = 4 * 2**20

_HEADER: Final = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
_TYPES: Final[dict[str, DataType]] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    "headers": ArrayType(_HEADER),
}
_NEVER_NULL: Final = frozenset(COLUMNS) - {"key", "value", "headers"}


def spark_schema(names: Sequence[str]) -> StructType:
    """Return the Spark schema of the columns `names`, with the types of Spark's Kafka source."""
    return StructType([StructField(name, _TYPES[name]) for name in names])


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema that every batch of a read must have."""
    found: pa.Schema = to_arrow_schema(schema, timezone="UTC")
    return found


def check_schema(schema: StructType, request: ReadRequest) -> None:
    """Raise ConfigError if a user's own schema does more than choose and order columns."""
    faults = []
    names = schema.fieldNames()
    if request.chosen_columns is not None and names != list(request.chosen_columns):
        faults.append(
            f"the schema has {', '.join(names)}, but the option columns has other names:"
            " leave the schema or the option out"
        )
    elif request.include_headers and "headers" not in names:
        faults.append(
            "the schema has no column headers, but includeHeaders=true: add the"
            " column, or leave the option out"
        )
    faults += [
        f"column {name} is given twice" for name in sorted(set(names)) if names.count(name) > 1
    ]
    for each in schema.fields:
        known = _TYPES.get(each.name)
        if known is None:
            faults.append(f"column {each.name}: expected one of {', '.join(COLUMNS)}")
        elif each.dataType != known:
            faults.append(
                f"column {each.name} is {known.simpleString()}, not"
                f" {each.dataType.simpleString()}: leave the type, and cast with Spark's functions"
            )
        elif not each.nullable and each.name not in _NEVER_NULL:
            faults.append(f"column {each.name} may be null: do not declare it NOT NULL")
    if not schema.fields:
        faults.append("the schema has no column: add at least one column")
    if faults:
        raise ConfigError([f"schema: {fault}" for fault in faults])
