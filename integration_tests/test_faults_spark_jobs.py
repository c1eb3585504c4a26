"""Fault tests of ETL jobs whose driver, Python worker, executor or partition leader is killed, in
each phase of a run: every record is in the output once, and no reader ever sees part of a run.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import psutil
import pytest
from pyspark.sql import SparkSession

from integration_tests import spark_cluster, spark_topics
from integration_tests.faults import job_gate, mounts
from integration_tests.faults.gated_jobs import (
    COUNT,
    PARTITIONS,
    PYTHON_KILLED,
    LetteredWork,
    Running,
    Work,
    driver_of,
    is_alive,
    kill_all,
    python_at,
    python_below,
)
from integration_tests.faults.job_gate import GatedFiles
from integration_tests.samples import Sample
from pybroker.errors import PybrokerError
from pybroker.spark.etl import store
from pybroker.spark.etl.output import output_commits
from pybroker.testing.cluster import Cluster
from unit_tests.patience import wait_until

pytestmark = pytest.mark.ours

CONFIG: Final = {"log.retention.ms": -1}  # the timestamps are in the past
ROOT: Final = Path(__file__).resolve().parent.parent
OUTPUT_BYTES: Final = 2 * 1024**2


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
def lettered(
    cluster: Cluster, spark: SparkSession, topic: str, tmp_path: Path
) -> Iterator[LetteredWork]:
    made = LetteredWork(cluster, spark, topic, tmp_path)
    made.write()
    yield made
    made.gate.release()


@pytest.fixture
def gated_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install the gates for runs in this process, too."""
    monkeypatch.setattr(GatedFiles, "folder", tmp_path, raising=False)
    monkeypatch.setattr(store, "RealFiles", GatedFiles)


@pytest.mark.parametrize("moment", job_gate.MOMENTS)
def test_the_driver_is_killed(work: Work, moment: str) -> None:
    """Java and the Python workers end with the driver. More records are written before the next
    run, but the plan of the first run stays unchanged.
    """
    work.gate.hold(moment)
    driver = driver_of(work)
    try:
        work.gate.reached(moment, driver)
        below = psutil.Process(driver.pid).children(recursive=True)
        assert any("java" in process.name() for process in below)
        driver.kill9()
        wait_until(
            lambda: not any(is_alive(each) for each in below),
            what="all processes of the run have ended",
        )
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


def test_the_driver_is_killed_after_writing_dead_letters(lettered: LetteredWork) -> None:
    """The dead letters are complete, but belong to no committed run."""
    work = lettered
    work.gate.hold(job_gate.STAGE_TABLE)
    driver = driver_of(work)
    try:
        work.gate.reached(job_gate.STAGE_TABLE, driver)
        driver.kill9()
    finally:
        driver.close()
    assert [*work.output.rglob("*.parquet")]
    assert work.committed() == 0
    work.gate.release()
    work.write()
    work.run()
    work.assert_complete()
    assert [commit.rows for commit in output_commits(work.output)] == [COUNT * 4 // 5] * 2


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_the_driver(work: Work, number: signal.Signals, code: int) -> None:
    """The driver gets a signal while Java works for it: the work is cancelled, no output is left,
    and one line reports the end.
    """
    work.gate.hold(job_gate.WORKER)
    driver = driver_of(work)
    try:
        work.gate.reached(job_gate.WORKER, driver)
        driver.signal(number)
        assert driver.wait() == code
        told = f"ended by {number.name}: the next run reads the uncommitted records again"
        assert told in driver.output.splitlines()
        assert "Traceback" not in driver.output
    finally:
        driver.close()
    work.assert_nothing_is_left_and_the_next_run_reads_all()


@pytest.mark.parametrize("moment", job_gate.PYTHON_MOMENTS)
def test_a_python_worker_is_killed(lettered: LetteredWork, moment: str) -> None:
    """If Spark does not retry, the run fails with one line, and the next run uses its plan."""
    work, gate = lettered, lettered.gate
    gate.hold(moment)
    running = Running(work)
    if moment == job_gate.STAGE_LETTERS:
        moment = work.read_again_for_letters(running)
    python_at(gate, moment, running, os.getpid()).kill()
    error = running.join()
    assert isinstance(error, PybrokerError) and str(error) == PYTHON_KILLED, running.output
    assert work.committed() == 0
    assert work.job.store.attempts() == []
    assert not [*work.output.rglob("*.parquet")]
    gate.release()
    work.write()
    work.run()
    work.assert_complete()
    assert [commit.rows for commit in output_commits(work.output)] == [COUNT * 4 // 5] * 2


@pytest.mark.usefixtures("gated_here")
def test_python_workers_are_killed_between_the_stages(lettered: LetteredWork) -> None:
    """Idle workers are killed. Spark starts new workers, and the run continues."""
    work, gate = lettered, lettered.gate
    for moment in job_gate.BETWEEN:
        gate.hold(moment)
    running = Running(work)
    killed = {}
    for moment in job_gate.BETWEEN:
        gate.reached(moment, running)
        _, workers = python_below(os.getpid())
        kill_all(workers)
        killed[moment] = len(workers)
        gate.release(moment)
    assert running.join() is None, running.output
    assert all(killed[moment] for moment in job_gate.BETWEEN_PYTHON), killed
    work.assert_complete()


def test_the_command_reports_that_all_python_processes_were_killed(work: Work) -> None:
    """Workers and Spark's daemons are killed during a task: one line reports it, and no output of
    the run is left.
    """
    work.gate.hold(job_gate.WORKER)
    driver = driver_of(work)
    try:
        python_at(work.gate, job_gate.WORKER, driver, driver.pid)
        daemons, workers = python_below(driver.pid)
        kill_all([*workers, *daemons])
        assert driver.wait() == 1
        assert driver.output.splitlines()[-1] == PYTHON_KILLED, driver.output
        assert "Traceback" not in driver.output and "\tat " not in driver.output
    finally:
        driver.close()
    work.assert_nothing_is_left_and_the_next_run_reads_all()


def test_a_run_continues_if_spark_retries_tasks(work: Work, tmp_path: Path) -> None:
    """local[N,F] gives a task F attempts. Spark does not retry its search for data sources, and the
    run continues without the search.
    """
    with work.file.open("a") as file:
        file.write('spark: {master: "local[2,3]"}\n')
    moments = (job_gate.SEARCH, job_gate.WORKER)
    for moment in moments:
        work.gate.hold(moment)
    job_gate.search_gate(tmp_path)
    driver = driver_of(work, {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"})
    try:
        for moment in moments:
            python_at(work.gate, moment, driver, driver.pid).kill()
        work.gate.reached(job_gate.WORKER, driver)
        daemons, workers = python_below(driver.pid)
        kill_all([*workers, *daemons])
        work.gate.release()
        assert driver.wait() == 0, driver.output
    finally:
        driver.close()
    work.assert_complete()


@pytest.mark.usefixtures("gated_here")
def test_the_leader_is_killed_in_each_phase(work: Work) -> None:
    """The run continues, and commits the same result as without the kill."""
    for turn, moment in enumerate(job_gate.MOMENTS):
        if turn:
            work.write()
        work.gate.hold(moment)
        running = Running(work)
        work.gate.reached(moment, running)
        leader = work.cluster.leader(work.topic, turn % PARTITIONS)
        work.cluster.kill(leader)
        work.gate.release()
        assert running.join() is None
        work.assert_complete()
        work.cluster.restart(leader)
        work.cluster.wait_until_in_sync()


def test_the_leader_is_killed_while_dead_letters_are_written(lettered: LetteredWork) -> None:
    """The decoded records are lost, too, so that a task reads them again from another leader."""
    work = lettered
    work.gate.hold(job_gate.STAGE_LETTERS)
    running = Running(work)
    work.gate.reached(work.read_again_for_letters(running), running)
    leader = work.cluster.leader(work.topic, 0)
    work.cluster.kill(leader)
    work.gate.release()
    assert running.join() is None, running.output
    work.assert_complete()
    work.cluster.restart(leader)
    work.cluster.wait_until_in_sync()


def test_two_runners_commit_one_result(work: Work) -> None:
    """Another process carries out the same run while the first process is about to commit."""
    work.gate.hold(job_gate.BEFORE_COMMIT)
    driver = driver_of(work)
    try:
        work.gate.reached(job_gate.BEFORE_COMMIT, driver)
        work.write()
        work.run()
        work.gate.release()
        assert driver.wait() == 0, driver.output
    finally:
        driver.close()
    work.assert_complete()


def test_a_standalone_cluster_loses_a_worker_and_an_executor(work: Work, tmp_path: Path) -> None:
    """The same job file runs in spark-submit, and Spark runs the lost tasks again."""
    reason = spark_cluster.reason_to_skip()
    if reason is not None:
        pytest.skip(reason)
    work.gate.hold(job_gate.WORKER)
    with spark_cluster.SparkCluster(tmp_path) as cluster:
        script = [job_gate.__file__, str(work.gate.folder), str(work.file)]
        # The gate is not a module beside the job's file, which Spark would distribute: executors
        # import it.
        conf = {"spark.executorEnv.PYTHONPATH": str(ROOT)}
        driver = spark_cluster.submitted(tmp_path, cluster.master, script, conf=conf)
        try:
            psutil.Process(work.gate.reached(job_gate.WORKER, driver)).kill()
            worker = psutil.Process(work.gate.reached(job_gate.WORKER, driver))
            executors = {process.pid: process for process in cluster.executors()}
            (executor,) = (executors[p.pid] for p in worker.parents() if p.pid in executors)
            executor.kill()
            work.gate.reached(job_gate.WORKER, driver)
            work.gate.release()
            assert driver.wait() == 0
        except AssertionError as error:
            error.add_note(f"{driver.output}\n{cluster.output}")
            raise
        finally:
            driver.close()
    work.assert_complete()


def test_the_disk_of_the_output_is_full(
    cluster: Cluster, spark: SparkSession, topic: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The run fails with one line and keeps committed results. With free space the next run repeats
    it.
    """
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
        # A writer to the full disk may leave its file open until the JVM collects it.
        assert spark._jvm is not None
        spark._jvm.System.gc()
