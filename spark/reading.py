"""From options to rows: what is decided at `load()`, how it is divided into tasks, and what a task
does."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from pybroker.client.errors import ClientError, NoBrokers
from pybroker.client.ranges.model import PartitionRange
from pybroker.errors import ConfigError, PybrokerError
from pybroker.spark.batch_reader import read_batches
from pybroker.spark.failures import in_one_line
from pybroker.spark.latest import read_latest
from pybroker.spark.options import ReadRequest, read_request
from pybroker.spark.planning import plan_blocking
from pybroker.spark.rows import arrow_schema, check_schema, spark_schema
from pybroker.spark.snapshot_model import Snapshot
from pybroker.spark.splits import Limits, pieces_blocking

logger = logging.getLogger(__name__)


class BatchOnly(PybrokerError):
    """The source was asked for a stream, or to write."""

    def __init__(self) -> None:
        super().__init__(
            'format("pybroker") reads in batch only: for streams and for writing take Spark\'s own'
            ' source, format("kafka"), which works with the same brokers'
        )


@dataclass(frozen=True, slots=True)
class FrozenRead:
    """A read whose every offset is a number; travels from the driver to the tasks."""

    request: ReadRequest
    snapshot: Snapshot


def freeze(options: Mapping[str, str]) -> FrozenRead:
    """What is read, decided now and for good. Raises ConfigError, SnapshotError or ClientError."""
    with in_one_line():
        request = read_request(options)
        for notice in request.notices:
            logger.warning("event=option-without-effect detail=%r", notice)
        if request.snapshot is not None:
            return _of_snapshot(request, request.snapshot)
        return FrozenRead(request, _planned(request))


def schema_of(names: Sequence[str]) -> StructType:
    """The columns of these names, as Spark's Kafka source has them."""
    return spark_schema(names)


def _of_snapshot(request: ReadRequest, text: str) -> FrozenRead:
    snapshot = Snapshot.from_json(text) if text.startswith("{") else Snapshot.load(text)
    if request.isolation not in (None, snapshot.isolation):
        raise ConfigError(
            [
                f"kafka.isolation.level={request.isolation} contradicts the snapshot, which is"
                f" {snapshot.isolation}: leave the option out"
            ]
        )
    client = dict(request.client)
    if "bootstrap.servers" not in client:
        if not snapshot.bootstrap:
            raise ConfigError(
                ["kafka.bootstrap.servers is missing, and the snapshot names no brokers either"]
            )
        client["bootstrap.servers"] = snapshot.bootstrap
    return FrozenRead(replace(request, client=client, snapshot=None), snapshot)


def _planned(request: ReadRequest) -> Snapshot:
    attempts = 1 + request.planning_retries
    while True:
        attempts -= 1
        try:
            return plan_blocking(request.client, request.wish)
        except NoBrokers:
            raise  # the client has gone round the addresses for bootstrap.timeout.ms
        except ClientError as error:
            if not (error.retriable and attempts):
                raise
        time.sleep(request.planning_retry_interval_ms / 1_000)


class FrozenReader(DataSourceReader):
    """Divides a frozen read into tasks and carries one out. Travels to the tasks, too."""

    def __init__(self, frozen: FrozenRead, schema: StructType) -> None:
        """Raises ConfigError for a user's own schema that is not a choice of our columns."""
        with in_one_line():
            check_schema(schema, frozen.request)
        self._frozen = frozen
        self._schema = schema

    def __getstate__(self) -> dict[str, object]:
        """What every task needs; its range comes besides. A snapshot of many partitions that was
        counted is megabytes."""
        without_ranges = replace(self._frozen, snapshot=replace(self._frozen.snapshot, topics={}))
        return {**self.__dict__, "_frozen": without_ranges}

    def partitions(self) -> list[InputPartition]:
        """A range for each task. Runs each time that Spark plans, in a process of its own; it asks
        for sizes only, never for offsets."""
        with in_one_line():
            return [InputPartition(each) for each in _pieces(self._frozen)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one range, as batches of exactly the schema that Spark was told."""
        wanted: PartitionRange | None = partition.value
        if wanted is None:  # how Spark hands out an empty list of ranges
            return
        names = self._schema.fieldNames()
        expected = arrow_schema(self._schema)
        with in_one_line():
            for batch in _batches(self._frozen, wanted, names):
                yield pa.RecordBatch.from_arrays(batch.columns, schema=expected)


def _pieces(frozen: FrozenRead) -> list[PartitionRange]:
    """The range of each task."""
    request = frozen.request
    limits = Limits()
    if request.mode != "latest":  # else the last record of a key might be in another task
        limits = Limits(
            max_bytes=request.max_bytes_per_partition,
            max_offsets=request.max_records_per_partition,
            min_pieces=request.min_partitions,
        )
    snapshot = frozen.snapshot
    return pieces_blocking(request.client, snapshot.ranges(), limits, snapshot.cluster_id)


def _batches(
    frozen: FrozenRead, wanted: PartitionRange, names: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    request, isolation = frozen.request, frozen.snapshot.isolation
    if request.mode == "latest":
        return read_latest(request, isolation, wanted, names)
    if request.tombstones == "keep":
        return read_batches(request, isolation, wanted, names)
    return _without_tombstones(request, isolation, wanted, names)


def _without_tombstones(
    request: ReadRequest, isolation: str, wanted: PartitionRange, names: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    needed = names if "value" in names else [*names, "value"]
    for batch in read_batches(request, isolation, wanted, needed):
        kept = batch.filter(batch.column("value").is_valid()).select(names)
        if kept.num_rows:
            yield kept
