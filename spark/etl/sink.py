"""Compares the columns of a table with the columns of the output so far, and writes the table as
Parquet files."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pyarrow.parquet
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, NullType, StructType

from pybroker.errors import PybrokerError
from pybroker.spark.etl import layout
from pybroker.spark.etl.decode import first_line
from pybroker.spark.etl.files import OutputError
from pybroker.spark.etl.job_model import Sink
from pybroker.spark.etl.manifest import Commit

FOLDERS_TIME_ZONE: Final = "UTC"
"""The time zone of times in folder names, whatever the time zone of the session is."""


class SinkError(PybrokerError):
    """The table cannot be written as the job file requires. Nothing was committed."""


def uri(path: Path) -> str:
    """Return a path as a URI, so that Spark's default file system has no effect on it."""
    return f"file://{path.absolute()}"


def check_columns(schema: StructType, sink: Sink, last: Commit | None) -> StructType:
    """Check the columns `schema` of the run's table. Return the columns of the output after this
    run. Raises SinkError if the output cannot have these columns."""
    names = [field.name for field in schema.fields]
    lower = [name.lower() for name in names]
    twice = sorted({name for name in lower if lower.count(name) > 1})
    if twice:
        raise SinkError(
            f"these column names occur more than once in the table: {', '.join(twice)}; give each"
            " column its own name"
        )
    ours = [name for name in names if name.lower().startswith(layout.RESERVED_PREFIX)]
    if ours:
        raise SinkError(
            f"these columns of the table have reserved names: {', '.join(ours)}; rename the columns"
        )
    missing = [name for name in sink.partition_by if name not in names]
    if missing:
        raise SinkError(
            f"sink.partition-by: the table has no column {', '.join(missing)}; "
            f"it has {', '.join(names)}"
        )
    if not names:
        raise SinkError("the table has no columns: select at least one")
    untyped = [field.name for field in schema.fields if isinstance(field.dataType, NullType)]
    if untyped:
        raise SinkError(
            f"these columns are always null and have no type: {', '.join(untyped)}; "
            "cast them to a type"
        )
    binary = [name for name in sink.partition_by if isinstance(schema[name].dataType, BinaryType)]
    if binary:
        raise SinkError(
            "sink.partition-by: values of the type binary cannot be names of folders; convert these"
            f" columns by string(...) or hex(...) in the transform: {', '.join(binary)}"
        )
    if len(names) == len(sink.partition_by):
        raise SinkError("sink.partition-by names all columns of the table; leave out at least one")
    found = schema.toNullable()
    if last is None:
        return found
    return _merged(StructType.fromJson(dict(last.schema)), found, sink)


def _merged(present: StructType, found: StructType, sink: Sink) -> StructType:
    """Return the columns of the output so far (`present`), followed by the new columns of the run's
    table (`found`). Raises SinkError if `found` lacks a column, changes a type, or has new columns
    that the job does not allow."""
    old = {field.name: field.dataType for field in present.fields}
    new = {field.name: field.dataType for field in found.fields}
    faults = [
        f"{name} was {kind.simpleString()} and is {new[name].simpleString()}"
        for name, kind in old.items()
        if name in new and new[name] != kind
    ]
    faults += [f"{name} is missing" for name in old if name not in new]
    added = [field for field in found.fields if field.name not in old]
    if sink.on_schema_change == "fail":
        faults += [f"{field.name} is new" for field in added]
    if faults:
        hint = (
            "; add-columns allows new columns" if sink.on_schema_change == "fail" and added else ""
        )
        raise SinkError(
            f"the columns differ from those of the output so far: {', '.join(faults)}"
            f" (sink.on-schema-change is {sink.on_schema_change}{hint}); change the transform,"
            " or set another sink.path"
        )
    return StructType([*present.fields, *added])


def write(frame: DataFrame, sink: Sink, folder: Path) -> int:
    """Write the table below the new folder `folder`. Return the number of written rows. Raises
    SinkError for a table that Parquet cannot store."""
    if sink.files is not None:
        frame = frame.repartition(sink.files, *sink.partition_by)
    written = Observation()
    observed = frame.observe(written, F.count(F.lit(1)).alias("rows"))
    writer = observed.write.mode("error").option("compression", sink.compression)
    writer = writer.option("timeZone", FOLDERS_TIME_ZONE)
    if sink.partition_by:
        writer = writer.partitionBy(*sink.partition_by)
    try:
        writer.parquet(uri(folder))
    except PySparkException as error:
        if error.getCondition() == "UNSUPPORTED_DATA_TYPE_FOR_DATASOURCE":
            raise SinkError(f"the table cannot be written: {first_line(error)}") from error
        raise
    return int(written.get["rows"])


def count_rows(path: Path) -> int:
    """Return the number of rows in a Parquet file, as its footer states. Raises OutputError if the
    file is incomplete."""
    try:
        return pyarrow.parquet.read_metadata(path).num_rows
    except (pyarrow.ArrowException, OSError) as error:
        raise OutputError(f"{path}: not a complete Parquet file: {first_line(error)}") from error
