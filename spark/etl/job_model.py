"""The content of a job file, as frozen values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

from pybroker.spark.etl import layout
from pybroker.spark.etl.exactly_once import Places
from pybroker.spark.etl.manifest import Mode, Owner

Isolation: TypeAlias = Literal["read_committed", "read_uncommitted"]
Format: TypeAlias = Literal["json", "string", "raw"]
OnError: TypeAlias = Literal["fail", "dlq"]
Tombstones: TypeAlias = Literal["keep", "drop"]
UnknownFields: TypeAlias = Literal["error", "ignore"]
SchemaChange: TypeAlias = Literal["fail", "add-columns"]


@dataclass(frozen=True)
class Source:
    """The topics to read. `max_bytes_per_run` limits a run, and `max_bytes_per_partition` limits a
    Spark partition. Both limits are in bytes, as stored in the log."""

    bootstrap_servers: str
    topics: tuple[str, ...]
    isolation: Isolation = "read_committed"
    starting: Literal["earliest"] | int = "earliest"
    mode: Mode = "append"
    tombstones: Tombstones = "keep"
    include_headers: bool = False
    fail_on_data_loss: bool = True
    max_bytes_per_run: int | None = None
    max_bytes_per_partition: int | None = None
    min_partitions: int | None = None
    kafka: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Part:
    """The rules for decoding either the keys or the values. If the format is JSON, `schema`
    names the columns in Spark's DDL."""

    format: Format = "raw"
    schema: str | None = None
    unknown_fields: UnknownFields = "error"
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Decode:
    """The rules for decoding records, and what happens to records that cannot be decoded."""

    value: Part = Part()
    key: Part = Part()
    on_error: OnError = "fail"


@dataclass(frozen=True)
class Transform:
    """The transform: SQL over the view `records`, or a function `module:name` that receives a
    DataFrame and a RunContext. The module is searched in `folder` first."""

    sql: str | None = None
    function: str | None = None
    folder: Path | None = None


@dataclass(frozen=True)
class Sink:
    """The output table: Parquet files below `path`."""

    path: Path
    partition_by: tuple[str, ...] = ()
    compression: str = "snappy"
    files: int | None = None
    on_schema_change: SchemaChange = "fail"


@dataclass(frozen=True)
class DeadLetterSink:
    """The output of records that cannot be decoded. A run fails if the share of such records
    exceeds `max_ratio` (0 to 1)."""

    max_ratio: float
    path: Path | None = None


@dataclass(frozen=True)
class JobFile:
    """The content of a job file. Reading an unchanged file again gives an equal value."""

    name: str
    file: Path
    source: Source
    sink: Sink
    decode: Decode = Decode()
    transform: Transform | None = None
    dead_letters: DeadLetterSink | None = None
    spark: Mapping[str, str] = field(default_factory=dict)

    @property
    def owner(self) -> Owner:
        return Owner(self.name, self.source.mode, self.sink.partition_by)

    @property
    def places(self) -> Places:
        letters = self.dead_letters.path if self.dead_letters else None
        return Places(self.sink.path, str(letters) if letters else layout.DEAD_LETTERS)
