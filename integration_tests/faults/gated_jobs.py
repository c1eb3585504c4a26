"""ETL jobs whose processes stop at gates (`job_gate`), their runs, and their child processes, for
tests that kill these processes.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import traceback
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import psutil
from pyspark.sql import Row, SparkSession

from integration_tests import spark_cluster, spark_topics
from integration_tests.faults import job_gate
from integration_tests.faults.job_gate import Gate
from integration_tests.process import ChildProcess
from integration_tests.samples import Sample
from integration_tests.spark_topics import numbered
from pybroker.spark import Job
from pybroker.spark.etl import read_dead_letters
from pybroker.spark.etl.output import output_commits, read_output
from pybroker.testing.cluster import Cluster
from unit_tests.patience import PATIENCE_S

PARTITIONS: Final = 3
COUNT: Final = 600
PYTHON_KILLED: Final = (
    "a Python process of Spark has ended unexpectedly (was it killed, or out of memory?); "
    "nothing was committed"
)
JOB: Final = """
name: numbers
source:
  bootstrap.servers: "{bootstrap}"
  topics: [{topic}]
  max-bytes-per-partition: 4k
{decode}
transform: gate:transform
sink: {{path: "{output}"}}
"""
DECODE: Final = """
decode:
  value: {format: json, schema: n INT NOT NULL}
  on-error: dlq
dlq: {max-ratio: 0.5}
"""
GATE: Final = """
from integration_tests.faults.job_gate import gated

def transform(frame):
    return gated(frame, {folder!r})
"""


class Work:
    """A job, its input and its output."""

    decode = ""

    def __init__(self, cluster: Cluster, spark: SparkSession, topic: str, folder: Path) -> None:
        self.cluster = cluster
        self.spark = spark
        self.topic = topic
        self.output = folder / "output"
        self.gate = Gate(folder)
        self.file = folder / "job.yaml"
        self._written = 0
        bootstrap = cluster.bootstrap
        text = JOB.format(bootstrap=bootstrap, topic=topic, output=self.output, decode=self.decode)
        self.file.write_text(text)
        (folder / "gate.py").write_text(GATE.format(folder=str(folder)))
        spark_topics.create(bootstrap, topic, PARTITIONS, replicas=3)
        cluster.wait_until_in_sync(topic)

    def write(self) -> None:
        """Send COUNT more numbers."""
        numbers = range(self._written, self._written + COUNT)
        for start in range(0, COUNT, 60):  # several batches in each partition
            part = self.samples(numbers[start : start + 60])
            spark_topics.produce(self.cluster.bootstrap, self.topic, part, linger_ms=5)
        self._written += COUNT

    def samples(self, numbers: range) -> list[tuple[int, Sample]]:
        return numbered(numbers, partitions=PARTITIONS)

    @property
    def job(self) -> Job:
        return Job.from_file(self.file)

    def run(self) -> None:
        """Run the job to the end of the topic, in the Spark session of the tests."""
        for result in self.job.run(self.spark):
            assert result.state in ("committed", "committed-elsewhere", "nothing-new"), result

    def committed(self) -> int:
        """Return the number of rows that a reader of the output sees."""
        if not self.output.exists() or not output_commits(self.output):
            return 0
        return read_output(self.spark, self.output).count()

    def assert_nothing_is_left_and_the_next_run_reads_all(self) -> None:
        """Check, after a failed first run, that no output is left and that the next run reads all
        records.
        """
        assert self.committed() == 0
        assert self.job.store.attempts() == []
        self.gate.release()
        self.run()
        self.assert_complete()

    def assert_complete(self) -> None:
        """Check that every sent number is in the output once."""
        frame = read_output(self.spark, self.output)
        rows = frame.selectExpr("partition", "offset", "int(string(value))").collect()
        self._assert_all_once(rows)

    def _assert_all_once(self, rows: Sequence[Row]) -> None:
        """Check that rows of (partition, offset, number) have every sent number once."""
        numbers = Counter(row[2] for row in rows)
        expected = Counter(range(self._written))
        assert numbers == expected, f"more {numbers - expected}, missing {expected - numbers}"
        assert len({(row[0], row[1]) for row in rows}) == self._written


class LetteredWork(Work):
    """A job for which every fifth record is a dead letter, and whose reads pass a gate."""

    decode = DECODE

    def samples(self, numbers: range) -> list[tuple[int, Sample]]:
        return [
            (n % PARTITIONS, Sample(b"k", b"%d" % n if n % 5 == 0 else b'{"n": %d}' % n))
            for n in numbers
        ]

    @property
    def job(self) -> Job:
        folder = self.gate.folder
        read, progress = job_gate.gated_read(folder), job_gate.GatedStages(folder)
        return replace(super().job, read=read, progress=progress)

    def assert_complete(self) -> None:
        """Check that rows and dead letters occur once, and together are all sent numbers."""
        table = read_output(self.spark, self.output).selectExpr("partition", "offset", "value.n")
        letters = read_dead_letters(self.spark, self.output).selectExpr(
            "partition", "offset", "int(string(value))"
        )
        rows, bad = table.collect(), letters.collect()
        assert all(row[2] % 5 for row in rows) and not any(row[2] % 5 for row in bad)
        self._assert_all_once(rows + bad)

    def read_again_for_letters(self, run: Running) -> str:
        """Remove the decoded records of a run when it begins to write dead letters, like the loss
        of an executor. Return the gate that the run reaches next.
        """
        self.gate.reached(job_gate.STAGE_LETTERS, run)
        self.gate.hold(job_gate.READ)
        self._forget_decoded()
        self.gate.release(job_gate.STAGE_LETTERS)
        return job_gate.READ

    def _forget_decoded(self) -> None:
        context = self.spark.sparkContext._jsc
        for number in list(context.getPersistentRDDs()):
            context.sc().unpersistRDD(number, True)


class Running:
    """A run of a job in a thread of this process."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._work.run()
        except BaseException as error:
            self._error = error

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    @property
    def output(self) -> str:
        return "" if self._error is None else "".join(traceback.format_exception(self._error))

    def join(self) -> BaseException | None:
        """Wait for the end of the run. Return the error with which it failed."""
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "the run does not end"
        return self._error


def driver_of(work: Work, environment: Mapping[str, str] | None = None) -> ChildProcess:
    """Start a run in a separate process with its own Spark."""
    program = [sys.executable, "-m", "integration_tests.faults.job_gate"]
    return ChildProcess([*program, str(work.gate.folder), str(work.file)], environment=environment)


def is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:  # it ended between the two calls
        return False


def python_at(gate: Gate, moment: str, run: job_gate.Run, driver: int) -> psutil.Process:
    """Return the Python process of Spark below the driver that has reached the gate."""
    process = psutil.Process(gate.reached(moment, run))
    _, workers = python_below(driver)
    assert process in workers, (process, workers)
    return process


def python_below(driver: int) -> tuple[list[psutil.Process], list[psutil.Process]]:
    """Return Spark's Python processes below the driver: the daemons, and their forked workers."""
    found = spark_cluster.python_workers_of(driver)
    daemons = [process for process in found if _parent(process) not in found]
    return daemons, [process for process in found if process not in daemons]


def _parent(process: psutil.Process) -> psutil.Process | None:
    """Return the parent of a process; None if the process has ended."""
    try:
        return process.parent()
    except psutil.NoSuchProcess:
        return None


def kill_all(processes: Sequence[psutil.Process]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(processes, timeout=PATIENCE_S)
