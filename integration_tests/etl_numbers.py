"""Helpers of the tests of ETL jobs: a topic of numbers, and the job that makes a table of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession

from integration_tests import spark_topics
from integration_tests.broker import Broker
from integration_tests.samples import Sample
from pybroker.spark import Job
from pybroker.spark.etl import read_dead_letters, read_output
from pybroker.spark.etl.report import RunResult
from pybroker.spark.etl.run import read_snapshot
from pybroker.tools import _cli, etl

PARTITIONS: Final = 2
NUMBERS: Final = "decode: {value: {format: json, schema: 'n BIGINT NOT NULL'}}"
TABLE: Final = "transform: {sql: 'SELECT value.n, partition, offset FROM records'}"
LETTERS: Final = (
    "decode: {value: {format: json, schema: 'n BIGINT NOT NULL'}, on-error: dlq}\n"
    "dlq: {max-ratio: 0.5}"
)


@dataclass
class Numbers:
    """A topic of numbers and the job that makes a table of them."""

    broker: Broker
    topic: str
    spark: SparkSession
    folder: Path
    sent: int = 0
    lines: list[str] = field(default_factory=lambda: [NUMBERS, TABLE])

    @property
    def output(self) -> Path:
        return self.folder / "out"

    @property
    def file(self) -> Path:
        return self.folder / "job.yaml"

    def job(self, *lines: str, sink: str = "", **source: object) -> Job:
        """Return the job with these lines instead of decode and transform, and with more keys."""
        given = [f"  {name.replace('_', '-')}: {value}" for name, value in source.items()]
        text = [
            f"name: {self.topic}",
            "source:",
            f"  bootstrap.servers: {self.broker.bootstrap}",
            f"  topics: [{self.topic}]",
            *given,
            *(lines or self.lines),
            "sink:",
            f"  path: {self.output}",
            sink,
        ]
        self.file.write_text("\n".join(text) + "\n")
        return Job.from_file(self.file)

    def send(self, count: int) -> None:
        """Send the next numbers, distributed over the partitions."""
        self.send_values(b'{"n": %d}' % n for n in range(self.sent, self.sent + count))
        self.sent += count

    def send_values(self, values: Iterable[bytes | None], key: bytes | None = None) -> None:
        samples = [(i % PARTITIONS, Sample(key, value)) for i, value in enumerate(values)]
        spark_topics.produce(self.broker.bootstrap, self.topic, samples)

    def numbers(self) -> list[int]:
        """Return the numbers that a reader of the output sees."""
        return sorted(row[0] for row in read_output(self.spark, self.output).select("n").collect())

    def letters(self) -> list[tuple[bytes | None, str]]:
        rows = read_dead_letters(self.spark, self.output).collect()
        return sorted((bytes(row["value"]), row["error"]) for row in rows)

    def files(self) -> list[Path]:
        return sorted(self.output.rglob("*.parquet"))


def run_all(job: Job, spark: SparkSession) -> list[RunResult]:
    return list(job.run(spark))


def dying(times: int = 1) -> Callable[..., DataFrame]:
    """Return a read function whose tasks fail during the write, `times` times; later reads
    succeed.
    """
    left = [times]

    def read(spark: SparkSession, job: Any, snapshot: Any) -> DataFrame:
        frame = read_snapshot(spark, job, snapshot)
        if not left[0]:
            return frame
        left[0] -= 1
        return frame.selectExpr(
            "*", "IF(offset = 7, raise_error('the task dies'), 0) AS dead"
        ).where("dead = 0")

    return read


def command(*words: str) -> int:
    """Run `pybroker etl ...` in this process and with its Spark session. Return the exit code."""
    return _cli.run(etl.command, words, "pybroker etl")
