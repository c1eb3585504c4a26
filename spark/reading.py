"""The data source's read: `load()` fixes the offsets, the reader divides them into tasks, a task
yields rows."""

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

log = logging.getLogger(__name__)


class BatchOnly(PybrokerError):
    """The user asked the source for a stream or for a write."""

    def __init__(self) -> None:
        super().__init__(
            'format("pybroker") reads in batch only: for streams and for writing use Spark\'s own'
            ' source, format("kafka"), which works with the same brokers'
        )


@dataclass(frozen=True, slots=True)
class FrozenRead:
    """A read whose offsets are all numbers. It is pickled from the driver to the tasks."""

    request: ReadRequest
    snapshot: Snapshot


def freeze(options: Mapping[str, str]) -> FrozenRead:
    """Fix the offsets to read. Raises ConfigError, SnapshotError or ClientError."""
    with in_one_line():
        request = read_request(options)
        for notice in request.notices:
            log.warning("event=option-without-effect detail=%r", notice)
        if request.snapshot is not None:
            return _of_snapshot(request, request.snapshot)
        return FrozenRead(request, _planned(request))


def schema_of(names: Sequence[str]) -> StructType:
    """Return the columns of these names with the types of Spark's Kafka source."""
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
            return plan_blocking(request.client, request.spec)
        except NoBrokers:
            raise  # the client has tried the addresses for bootstrap.timeout.ms
        except ClientError as error:
            if not (error.retriable and attempts):
                raise
        time.sleep(request.planning_retry_interval_ms / 1_000)


class FrozenReader(DataSourceReader):
    """Divides a frozen read into tasks, and carries out a task. It is pickled to the tasks."""

    def __init__(self, frozen: FrozenRead, schema: StructType) -> None:
        """Check the schema. Raises ConfigError for a user's own schema with other columns."""
        with in_one_line():
            check_schema(schema, frozen.request)
        self._frozen = frozen
        self._schema = schema

    def __getstate__(self) -> dict[str, object]:
        """Return the state without the snapshot's ranges: each task gets its own range separately,
        and a snapshot with record counts of many partitions takes megabytes."""
        without_ranges = replace(self._frozen, snapshot=replace(self._frozen.snapshot, topics={}))
        return {**self.__dict__, "_frozen": without_ranges}

    def partitions(self) -> list[InputPartition]:
        """Return a range for each task. Spark calls it at each planning, in a process of its own.
        It asks the cluster for sizes only, never for offsets."""
        with in_one_line():
            return [InputPartition(each) for each in _pieces(self._frozen)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one range as batches with exactly the schema announced to Spark."""
        wanted: PartitionRange | None = partition.value
        if wanted is None:  # Spark's form of an empty list of ranges
            return
        names = self._schema.fieldNames()
        expected = arrow_schema(self._schema)
        with in_one_line():
            for batch in _batches(self._frozen, wanted, names):
                yield pa.RecordBatch.from_arrays(batch.columns, schema=expected)


def _pieces(frozen: FrozenRead) -> list[PartitionRange]:
    """Return the range of each task."""
    request = frozen.request
    limits = Limits()
    if request.mode != "latest":  # one task must see all records of a key
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
