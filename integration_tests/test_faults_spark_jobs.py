"""Jobs whose driver, Python worker, executor or partition leader is killed, in each phase of a run:
every record is in the output once, and nobody ever sees half a run."""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import psutil
import pytest
from pyspark.sql import SparkSession

from integration_tests import spark_cluster, spark_topics
from integration_tests.faults import job_gate, mounts
from integration_tests.faults.job_gate import Gate, GatedFiles
from integration_tests.process import ChildProcess, wait_until
from integration_tests.samples import Sample
from integration_tests.spark_topics import numbered
from pybroker.errors import PybrokerError
from pybroker.spark import Job
from pybroker.spark.etl import store
from pybroker.spark.etl.output import output_commits, read_output
from pybroker.testing.cluster import Cluster

pytestmark = pytest.mark.ours

CONFIG: Final = {"log.retention.ms": -1}  # the time stamps lie in the past
ROOT: Final = Path(__file__).resolve().parent.parent
PARTITIONS: Final = 3
COUNT: Final = 600
OUTPUT_BYTES: Final = 2 * 1024**2
RUN_SECONDS_MAX: Final = 120.0
JOB: Final = """
name: numbers
source:
  bootstrap.servers: "{bootstrap}"
  topics: [{topic}]
  max-bytes-per-partition: 4k
transform: gate:transform
sink: {{path: "{output}"}}
"""
GATE: Final = """
from integration_tests.faults.job_gate import gated

def transform(frame):
    return gated(frame, {folder!r})
"""


class Work:
    """A job, what it reads and what has come of it."""

    def __init__(self, cluster: Cluster, spark: SparkSession, topic: str, folder: Path) -> None:
        self.cluster = cluster
        self.spark = spark
        self.topic = topic
        self.output = folder / "output"
        self.gate = Gate(folder)
        self.file = folder / "job.yaml"
        self._written = 0
        bootstrap = cluster.bootstrap
        self.file.write_text(JOB.format(bootstrap=bootstrap, topic=topic, output=self.output))
        (folder / "gate.py").write_text(GATE.format(folder=str(folder)))
        spark_topics.create(bootstrap, topic, PARTITIONS, replicas=3)
        cluster.wait_until_in_sync(topic)

    def write(self) -> None:
        """COUNT more numbers."""
        numbers = range(self._written, self._written + COUNT)
        for start in range(0, COUNT, 60):  # several batches in each partition
            part = numbered(numbers[start : start + 60], partitions=PARTITIONS)
            spark_topics.produce(self.cluster.bootstrap, self.topic, part, linger_ms=5)
        self._written += COUNT

    def run(self) -> None:
        """To the end of the topic, in the tests' own session."""
        for result in Job.from_file(self.file).run(self.spark):
            assert result.state in ("committed", "committed-elsewhere", "nothing-new"), result

    def committed(self) -> int:
        """Rows that a reader of the output sees."""
        if not self.output.exists() or not output_commits(self.output):
            return 0
        return read_output(self.spark, self.output).count()

    def assert_complete(self) -> None:
        """All that was written is there, once."""
        frame = read_output(self.spark, self.output)
        rows = frame.selectExpr("partition", "offset", "int(string(value)) as number").collect()
        assert sorted(row["number"] for row in rows) == [*range(self._written)]
        assert len({(row["partition"], row["offset"]) for row in rows}) == self._written


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(3, data=tmp_path_factory.mktemp("cluster"), config=CONFIG) as running:
        yield running


@pytest.fixture
def work(cluster: Cluster, spark: SparkSession, topic: str, tmp_path: Path) -> Iterator[Work]:
    made = Work(cluster, spark, topic, tmp_path)
    made.write()
    yield made
    made.gate.release()


@pytest.fixture
def gated_here(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs in this process stand still, too."""
    monkeypatch.setattr(GatedFiles, "folder", work.gate.folder, raising=False)
    monkeypatch.setattr(store, "RealFiles", GatedFiles)


class Running:
    """A run in this process, in a thread of its own."""

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

    def join(self) -> BaseException | None:
        """What it failed of."""
        self._thread.join(RUN_SECONDS_MAX)
        assert not self._thread.is_alive(), "the run does not end"
        return self._error


def driver_of(work: Work) -> ChildProcess:
    """A run in a process and a Spark of its own."""
    program = [sys.executable, "-m", "integration_tests.faults.job_gate"]
    return ChildProcess([*program, str(work.gate.folder), str(work.file)])


@pytest.mark.parametrize("moment", job_gate.MOMENTS)
def test_the_driver_is_killed(work: Work, moment: str) -> None:
    """Java and the Python workers go with it. More is written before the next run, and what the
    first one had planned stays what it was."""
    work.gate.hold(moment)
    driver = driver_of(work)
    try:
        work.gate.reached(moment)
        below = psutil.Process(driver.pid).children(recursive=True)
        assert any("java" in process.name() for process in below)
        driver.kill9()
        wait_until(lambda: not any(is_alive(each) for each in below), what="all of it is gone")
    finally:
        driver.close()
    assert work.committed() == (COUNT if moment == job_gate.AFTER_COMMIT else 0)
    work.gate.release()
    work.write()
    work.run()
    work.assert_complete()
    planned = moment != job_gate.BEFORE_PLAN
    assert [commit.rows for commit in output_commits(work.output)] == (
        [COUNT, COUNT] if planned else [2 * COUNT]
    )


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_the_driver_is_told_to_end(work: Work, number: signal.Signals, code: int) -> None:
    """While Java works for it: that is cancelled, nothing is left, and one line says so."""
    work.gate.hold(job_gate.WORKER)
    driver = driver_of(work)
    try:
        work.gate.reached(job_gate.WORKER)
        driver.signal(number)
        assert driver.wait(seconds=60) == code
        told = f"ended by {number.name}: what was not committed is read again by the next run"
        assert told in driver.output.splitlines()
        assert "Traceback" not in driver.output
    finally:
        driver.close()
    assert work.committed() == 0
    assert Job.from_file(work.file).store.attempts() == []
    work.gate.release()
    work.run()
    work.assert_complete()


def is_alive(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def test_a_python_worker_is_killed(work: Work) -> None:
    """Where Spark does not try again the run fails in one line; the next one takes its plan."""
    work.gate.hold(job_gate.WORKER)
    running = Running(work)
    psutil.Process(work.gate.reached(job_gate.WORKER)).kill()
    error = running.join()
    assert isinstance(error, PybrokerError) and "\n" not in str(error), error
    assert work.committed() == 0
    work.gate.release()
    work.write()
    work.run()
    work.assert_complete()
    assert [commit.rows for commit in output_commits(work.output)] == [COUNT, COUNT]


@pytest.mark.usefixtures("gated_here")
def test_the_leader_is_killed_in_each_phase(work: Work) -> None:
    """A run goes on, and commits what it would have without."""
    for turn, moment in enumerate(job_gate.MOMENTS):
        if turn:
            work.write()
        work.gate.hold(moment)
        running = Running(work)
        work.gate.reached(moment)
        leader = work.cluster.leader(work.topic, turn % PARTITIONS)
        work.cluster.kill(leader)
        work.gate.release()
        assert running.join() is None
        work.assert_complete()
        work.cluster.restart(leader)
        work.cluster.wait_until_in_sync()


def test_two_runners_commit_one_result(work: Work) -> None:
    """Another process makes the same run while the first is about to commit."""
    work.gate.hold(job_gate.BEFORE_COMMIT)
    driver = driver_of(work)
    try:
        work.gate.reached(job_gate.BEFORE_COMMIT)
        work.write()
        work.run()
        work.gate.release()
        assert driver.wait(seconds=RUN_SECONDS_MAX) == 0, driver.output
    finally:
        driver.close()
    work.assert_complete()


def test_a_standalone_cluster_loses_a_worker_and_an_executor(work: Work, tmp_path: Path) -> None:
    """The same file, given to spark-submit; Spark makes the lost tasks again."""
    reason = spark_cluster.reason_to_skip()
    if reason is not None:
        pytest.skip(reason)
    work.gate.hold(job_gate.WORKER)
    with spark_cluster.SparkCluster(tmp_path) as cluster:
        script = [job_gate.__file__, str(work.gate.folder), str(work.file)]
        # The gate is no module beside the job's file, which would travel: executors import it.
        conf = {"spark.executorEnv.PYTHONPATH": str(ROOT)}
        driver = spark_cluster.submitted(tmp_path, cluster.master, script, conf=conf)
        try:
            psutil.Process(work.gate.reached(job_gate.WORKER)).kill()
            worker = psutil.Process(work.gate.reached(job_gate.WORKER))
            executors = {process.pid: process for process in cluster.executors()}
            (executor,) = (executors[p.pid] for p in worker.parents() if p.pid in executors)
            executor.kill()
            work.gate.reached(job_gate.WORKER)
            work.gate.release()
            assert driver.wait(seconds=RUN_SECONDS_MAX) == 0
        except AssertionError as error:
            error.add_note(f"{driver.output}\n{cluster.output}")
            raise
        finally:
            driver.close()
    work.assert_complete()


def test_the_disk_of_the_output_is_full(
    cluster: Cluster, spark: SparkSession, topic: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The run fails in one line and leaves what is committed alone; with room it is made again."""
    reason = mounts.reason_to_skip()
    if reason is not None:
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp(mounts.FOLDER)
    with mounts.Mounts() as mounted:
        work = Work(cluster, spark, topic, folder)
        mounted.memory(work.output, OUTPUT_BYTES)
        work.write()
        work.run()
        ballast = work.output / "ballast"
        with ballast.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, OUTPUT_BYTES * 9 // 10)
        dice = random.Random(3)
        large = [(n % PARTITIONS, Sample(b"k", dice.randbytes(2_000))) for n in range(300)]
        spark_topics.produce(cluster.bootstrap, topic, large)
        with pytest.raises(PybrokerError) as caught:
            work.run()
        assert "\n" not in str(caught.value) and "No space left" in str(caught.value)
        assert work.committed() == COUNT
        ballast.unlink()
        work.run()
        assert work.committed() == COUNT + len(large)
