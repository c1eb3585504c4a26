"""The data source's read: `load()` determines the offset ranges, the reader divides the ranges into
tasks, and each task yields rows."""

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
    """The user requested a stream or a write, which this source does not support."""

    def __init__(self) -> None:
        super().__init__(
            'format("pybroker") reads in batch only: for streams and for writing use Spark\'s own'
            ' source, format("kafka"), which works with the same brokers'
        )


@dataclass(frozen=True, slots=True)
class FrozenRead:
    """A read whose offsets are fixed numbers. It is pickled and sent from the driver to the
    tasks."""

    request: ReadRequest
    snapshot: Snapshot


def freeze(options: Mapping[str, str]) -> FrozenRead:
    """Determine the start and end offsets of the read that `options` describes. If `options`
    contains a snapshot, take the offsets from the snapshot. Raises ConfigError, SnapshotError or
    ClientError."""
    with in_one_line():
        request = read_request(options)
        for notice in request.notices:
            log.warning("option without effect detail=%r", notice)
        if request.snapshot is not None:
            return _of_snapshot(request, request.snapshot)
        return FrozenRead(request, _planned(request))


def schema_of(names: Sequence[str]) -> StructType:
    """Return the schema of the columns `names`, with the types of Spark's Kafka source."""
    return spark_schema(names)


def _of_snapshot(request: ReadRequest, text: str) -> FrozenRead:
    snapshot = Snapshot.from_json(text) if text.startswith("{") else Snapshot.load(text)
    if request.isolation not in (None, snapshot.isolation):
        raise ConfigError(
            [
                f"kafka.isolation.level={request.isolation} contradicts the snapshot, whose"
                f" isolation is {snapshot.isolation}: leave the option out"
            ]
        )
    client = dict(request.client)
    if "bootstrap.servers" not in client:
        if not snapshot.bootstrap:
            raise ConfigError(
                [
                    "kafka.bootstrap.servers is missing, and the snapshot contains no broker"
                    " addresses: set the option"
                ]
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
            raise  # no retry: the client has already tried the addresses for bootstrap.timeout.ms
        except ClientError as error:
            if not (error.retriable and attempts):
                raise
        time.sleep(request.planning_retry_interval_ms / 1_000)


class FrozenReader(DataSourceReader):
    """Divides a read with fixed offsets into tasks, and executes the tasks. It is pickled and sent
    to the tasks."""

    def __init__(self, frozen: FrozenRead, schema: StructType) -> None:
        """Create the reader. Raises ConfigError if a user's own schema does more than choose and
        order columns."""
        with in_one_line():
            check_schema(schema, frozen.request)
        self._frozen = frozen
        self._schema = schema

    def __getstate__(self) -> dict[str, object]:
        """Return the state without the snapshot's ranges, because they may take megabytes. Each
        task receives its own range separately."""
        without_ranges = replace(self._frozen, snapshot=replace(self._frozen.snapshot, topics={}))
        return {**self.__dict__, "_frozen": without_ranges}

    def partitions(self) -> list[InputPartition]:
        """Return an offset range for each task. Spark calls this method in a separate process for
        each query plan. The brokers are asked only for sizes and batch boundaries."""
        with in_one_line():
            return [InputPartition(each) for each in _pieces(self._frozen)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one range as batches with exactly the schema that Spark expects."""
        wanted: PartitionRange | None = partition.value
        if wanted is None:  # Spark passes None if the list of ranges is empty
            return
        names = self._schema.fieldNames()
        expected = arrow_schema(self._schema)
        with in_one_line():
            for batch in _batches(self._frozen, wanted, names):
                yield pa.RecordBatch.from_arrays(batch.columns, schema=expected)


def _pieces(frozen: FrozenRead) -> list[PartitionRange]:
    """Return the range of each task, in the order of the partitions."""
    request = frozen.request
    limits = Limits()
    if request.mode != "latest":  # with mode=latest, one task must read all records of a key
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
