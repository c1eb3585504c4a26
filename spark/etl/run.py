"""One run of a job on Spark: reads, decodes and transforms records, and writes the files of an
attempt. The module `exactly_once` then commits these files."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

from py4j.protocol import Py4JError, Py4JNetworkError  # type: ignore[import-untyped]
from pyspark import StorageLevel
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from pybroker.errors import PybrokerError
from pybroker.spark.etl import decode, proposal, sink, transform
from pybroker.spark.etl.exactly_once import Lost, Places, Written
from pybroker.spark.etl.job_model import JobFile
from pybroker.spark.etl.layout import AttemptName
from pybroker.spark.etl.manifest import Commit, Plan
from pybroker.spark.etl.progress import Progress, Silent, watched
from pybroker.spark.failures import reason
from pybroker.spark.snapshot_model import Snapshot
from pybroker.spark.source import PybrokerDataSource

EXAMPLES: Final = 3
_NO_JAVA: Final = (Py4JError, PySparkException, OSError)
"""The exceptions of calls to a Java process that has ended."""
_JAVA_GONE: Final = "the Java process of Spark has ended (was it killed, or out of memory?)"
_NOT_FOUND: Final = "[DATA_SOURCE_NOT_FOUND]"
REASONS: Final = 20
"""The largest number of reasons for dead letters that a commit lists with their counts."""


class RunFailed(PybrokerError):
    """A run failed, and nothing was committed. The message is one line."""


Read = Callable[[SparkSession, JobFile, Snapshot], DataFrame]
"""Returns the records of a snapshot as a frame with the columns of Spark's Kafka source."""


@dataclass(frozen=True)
class Parts:
    """The checked schemas and the imported transform function of a job. None: no schema, or no
    Python transform."""

    key: StructType | None
    value: StructType | None
    function: transform.Function | None


def prepare(job: JobFile) -> Parts:
    """Load and check the schemas and the transform function of a job. Needs a Spark session. Raises
    ConfigError."""
    where = f"{job.file}: decode"
    return Parts(
        key=decode.parse_schema(job.decode.key, f"{where}.key"),
        value=decode.parse_schema(job.decode.value, f"{where}.value"),
        function=transform.load(job.transform, str(job.file)),
    )


def read_snapshot(spark: SparkSession, job: JobFile, snapshot: Snapshot) -> DataFrame:
    """Return the records of a snapshot as a frame."""
    reader = spark.read.format(PybrokerDataSource.name())
    reader = reader.options(**source_options(job, snapshot))
    try:
        return reader.load()
    except (PySparkException, Py4JError) as error:
        if _NOT_FOUND not in str(error):
            raise
    # Spark searches for data sources once in a session. If the search fails (another package cannot
    # be imported, a process was killed), Spark has only its built-in sources: register this one.
    spark.dataSource.register(PybrokerDataSource)
    return reader.load()


def source_options(job: JobFile, snapshot: Snapshot) -> dict[str, str]:
    """Return the options of `format("pybroker")` for a job's read."""
    source = job.source
    options: dict[str, str | None] = {
        **source.kafka,
        "snapshot": snapshot.to_json(),
        "kafka.bootstrap.servers": source.bootstrap_servers,
        "mode": source.mode,
        "failOnDataLoss": str(source.fail_on_data_loss).lower(),
        "includeHeaders": str(source.include_headers).lower(),
        "tombstones": source.tombstones if source.mode == "append" else None,
        "minPartitions": str(source.min_partitions) if source.min_partitions else None,
        "maxBytesPerPartition": str(source.max_bytes_per_partition)
        if source.max_bytes_per_partition
        else None,
    }
    return {name: value for name, value in options.items() if value is not None}


@dataclass
class Run:
    """The execution of one plan by Spark."""

    spark: SparkSession
    job: JobFile
    parts: Parts
    places: Places
    last: Commit | None
    """The commit whose columns the new table must match; None: no other run is committed."""
    read: Read = read_snapshot
    progress: Progress = field(default_factory=Silent)
    seconds: dict[str, float] = field(default_factory=dict)

    def write(self, plan: Plan, attempt: AttemptName) -> Written:
        """Read and transform the records, and write the files of an attempt. Raises RunFailed and
        other PybrokerErrors."""
        snapshot = proposal.snapshot_of(plan.snapshot)
        group = f"pybroker-etl-{attempt.attempt}"
        context = self.spark.sparkContext
        context.setJobGroup(group, describe(self.job, plan.seq, snapshot), interruptOnCancel=True)
        try:
            with watched(self.spark, group, self.progress), _one_line():
                return self._write(plan, attempt, snapshot)
        except BaseException:
            with suppress(*_NO_JAVA):  # a second error must not hide the first one
                context.cancelJobGroup(group)
            raise
        finally:
            with suppress(*_NO_JAVA):
                for name in ("spark.jobGroup.id", "spark.job.description"):
                    context.setLocalProperty(name, None)  # type: ignore[arg-type]

    def _write(self, plan: Plan, attempt: AttemptName, snapshot: Snapshot) -> Written:
        frame = self.read(self.spark, self.job, snapshot)
        if not decode.can_fail(self.job.decode):
            schema, written = self._write_table(frame, plan, attempt)
            rows = None if self.job.transform else written
            return self._written(schema, snapshot, rows, written, {}, 0)
        decoded = decode.decoded(frame, self.job.decode, self.parts.key, self.parts.value)
        # The records are persisted, because up to four queries read them.
        decoded = decoded.persist(StorageLevel.MEMORY_AND_DISK)
        try:
            with self._stage("read and decode"):
                rows, failed = self._count(decoded)
            reasons = self._check_dead_letters(decoded, rows, failed)
            if failed:
                with self._stage("write dead letters"):
                    letters = decode.bad(decoded)
                    letters.write.mode("error").parquet(sink.uri(self.places.letters(attempt)))
            schema, written = self._write_table(decode.good(decoded), plan, attempt)
            return self._written(schema, snapshot, rows, written, reasons, failed)
        finally:
            decoded.unpersist()

    def _written(
        self,
        schema: StructType,
        snapshot: Snapshot,
        rows: int | None,
        written: int,
        reasons: dict[str, int],
        failed: int,
    ) -> Written:
        return Written(
            schema=schema.jsonValue(),
            rows_read=rows,
            rows=written,
            dead_letter_reasons=reasons,
            dead_letters=failed,
            lost=self._lost(snapshot),
            decode_schema=self.job.decode.value.schema,
            tombstones=self.job.source.tombstones,
        )

    def _write_table(
        self, frame: DataFrame, plan: Plan, attempt: AttemptName
    ) -> tuple[StructType, int]:
        """Write the table. Return the columns of the output after this run, and the number of
        written rows."""
        context = transform.RunContext(
            self.spark, self.job.name, plan.seq, attempt.attempt, plan.snapshot
        )
        with self._stage("transform and write" if self.job.transform else "write"):
            table = transform.apply(frame, self.job.transform, self.parts.function, context)
            schema = sink.check_columns(table.schema, self.job.sink, self.last)
            rows = sink.write(table, self.job.sink, self.places.data(attempt))
        return schema, rows

    def _count(self, decoded: DataFrame) -> tuple[int, int]:
        """Return the number of all records, and the number of records that cannot be decoded."""
        row = decoded.agg(F.count(F.lit(1)), F.count(decode.ERROR)).first()
        assert row is not None
        return int(row[0]), int(row[1])

    def _check_dead_letters(self, decoded: DataFrame, rows: int, failed: int) -> dict[str, int]:
        """Return the number of undecodable records for each reason. `rows` is the number of all
        records, `failed` the number of undecodable ones. Raises RunFailed if the job does not allow
        so many undecodable records."""
        if not failed:
            return {}
        letters = self.job.dead_letters
        bad = decoded.where(F.col(decode.ERROR).isNotNull())
        if letters is None or failed > letters.max_ratio * rows:
            examples = bad.select("topic", "partition", "offset", decode.ERROR).limit(EXAMPLES)
            listed = "; ".join(f"{r[0]}-{r[1]}@{r[2]}: {r[3]}" for r in examples.collect())
            limit = (
                "decode.on-error is fail"
                if letters is None
                else f"dlq.max-ratio allows {letters.max_ratio:g} of them"
            )
            raise RunFailed(
                f"{failed} of {rows} records cannot be decoded ({limit}); nothing was committed. "
                f"Examples: {listed}"
            )
        found = bad.groupBy(decode.ERROR).count().orderBy(F.desc("count")).limit(REASONS).collect()
        return {str(row[0]): int(row[1]) for row in found}

    def _lost(self, snapshot: Snapshot) -> tuple[Lost, ...]:
        if self.job.source.fail_on_data_loss or self.job.source.mode == "latest":
            return ()
        return proposal.lost_meanwhile(self.job, snapshot)

    @contextmanager
    def _stage(self, name: str) -> Iterator[None]:
        self.progress.stage(f"{self.job.name}: {name}")
        started = time.monotonic()
        try:
            yield
        finally:
            self.seconds[name] = round(time.monotonic() - started, 3)


def describe(job: JobFile, seq: int, snapshot: Snapshot) -> str:
    """Return the description of a run for Spark's web pages."""
    ranges = sum(1 for item in snapshot.ranges() if item.offsets)
    offsets = sum(snapshot.counts().values())
    return (
        f"{job.name} seq={seq} [{len(snapshot.topics)} topics, {ranges} ranges, {offsets} offsets]"
    )


@contextmanager
def _one_line() -> Iterator[None]:
    """During the block, turn a Spark error into a RunFailed with a message of one line."""
    try:
        yield
    except (Py4JNetworkError, ConnectionError) as error:
        raise RunFailed(f"{_JAVA_GONE}; nothing was committed") from error
    except (PySparkException, Py4JError) as error:
        raise RunFailed(f"{reason(error)}; nothing was committed") from error
