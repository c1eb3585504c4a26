"""Tests that each offset is in the output exactly once, at whatever step a run stops, and with
several processes at the same time."""

from __future__ import annotations

import dataclasses
import shutil
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pybroker.spark.etl.exactly_once import Written
from pybroker.spark.etl.files import OutputError
from pybroker.spark.etl.layout import AttemptName, CommitName
from pybroker.spark.etl.manifest import Owner, Plan
from pybroker.spark.etl.orphans import Kind, leftovers, remove, remove_temporary
from pybroker.spark.etl.store import new_attempt_writer
from unit_tests.patience import PATIENCE_S
from unit_tests.spark.etl.log import Job, Log, documents, visible
from unit_tests.spark.etl.power import FaultyFiles, Killed

LATER = 10**12


def steps_of_two_runs(folder: Path) -> int:
    files = FaultyFiles(folder)
    run_twice(Job(folder / "a" / "out", files))
    return files.steps


def run_twice(job: Job) -> None:
    for end in (25, 40):
        job.run(Log(end))


def test_each_run_begins_where_the_preceding_run_ended(tmp_path: Path) -> None:
    job, log = Job(tmp_path), Log()
    assert not job.run(log)
    log.end = 25
    assert job.run(log)
    assert not job.run(log)
    log.end = 26
    assert job.run(log)
    assert visible(tmp_path) == list(range(26))
    first, second = job.store.commits()
    assert (first.rows_read, first.rows) == (25, 23)
    assert first.dead_letters is not None and first.dead_letters.rows == 2
    assert second.dead_letters is None
    assert job.store.attempts() == []


def test_without_new_records_no_plan_is_stored(tmp_path: Path) -> None:
    assert not Job(tmp_path).run(Log(0))
    assert Job(tmp_path).store.plan(0) is None


@pytest.mark.parametrize("power", [True, False], ids=["power lost", "killed"])
def test_a_run_stopped_at_any_step_is_repeated(tmp_path: Path, power: bool) -> None:
    counted = tmp_path / "counted"
    counted.mkdir()
    steps = steps_of_two_runs(counted)
    assert steps > 40
    for die_at in range(steps + 1):
        folder = tmp_path / str(die_at)
        folder.mkdir()
        output = folder / "a" / "out"
        files = FaultyFiles(folder, die_at)
        job = Job(output, files)
        try:
            run_twice(job)
        except Killed:
            pass
        seen = visible(output)
        assert seen == list(range(len(seen))) and len(seen) in (0, 25, 40), die_at
        if power:
            files.lose_power()
            lasting = visible(output)
            assert lasting == seen[: len(lasting)] and len(lasting) in (0, 25, 40), die_at
        documents(output)
        files.restart()
        run_twice(job)
        assert visible(output) == list(range(40)), die_at
        if power:
            files.lose_power()
        assert visible(output) == list(range(40)), die_at


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    stops=st.lists(
        st.tuples(st.integers(0, 60), st.integers(0, 20), st.booleans()), min_size=1, max_size=6
    )
)
def test_runs_survive_repeated_stops(
    tmp_path_factory: pytest.TempPathFactory, stops: list[tuple[int, int, bool]]
) -> None:
    folder = tmp_path_factory.mktemp("runs")
    output = folder / "out"
    files, log = FaultyFiles(folder), Log()
    for die_at, more, power in stops:
        log.end += more
        files.restart(die_at)
        try:
            while Job(output, files).run(log):
                pass
        except Killed:
            pass
        before = visible(output)
        assert before == list(range(len(before)))
        if power:
            files.lose_power()
    files.restart()
    while Job(output, files).run(log):
        pass
    assert visible(output) == list(range(log.end))
    places = Job(output).runner.places
    store = Job(output).store
    remove(store, leftovers(store, places, LATER, 60))
    remove_temporary(store, LATER, 60)
    assert visible(output) == list(range(log.end))
    assert leftovers(store, places, LATER, 60) == []
    assert store.temporary_files() == []


def test_a_commit_survives_a_power_loss_right_after_it(tmp_path: Path) -> None:
    files = FaultyFiles(tmp_path)
    Job(tmp_path / "out", files).run(Log(25))
    files.lose_power()
    assert visible(tmp_path / "out") == list(range(25))


def test_two_processes_with_one_plan_commit_one_result(tmp_path: Path) -> None:
    """Two processes write at the same time. The first commits; the second finds this commit and
    removes its own files."""
    together = threading.Barrier(2, timeout=PATIENCE_S)
    jobs = [Job(tmp_path, before_end=together.wait) for _ in range(2)]
    jobs[0].store.open(jobs[0].runner.owner)
    outcomes = []

    def work(job: Job, end: int) -> None:
        plan = job.runner.next_plan(Log(end).propose)
        assert plan is not None
        outcomes.append(job.runner.run(plan, job.write))

    threads = [
        threading.Thread(target=work, args=each) for each in zip(jobs, (500, 520), strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcome.won for outcome in outcomes) == [False, True]
    assert outcomes[0].commit == outcomes[1].commit
    assert visible(tmp_path) in (list(range(500)), list(range(520)))
    store = jobs[0].store
    assert leftovers(store, jobs[0].runner.places, LATER, 0) == []
    assert len(list((tmp_path / "data").glob("*/*"))) == 1


def test_a_failed_attempt_removes_its_files(tmp_path: Path) -> None:
    def fail() -> None:
        raise RuntimeError("no")

    job = Job(tmp_path, before_end=fail)
    with pytest.raises(RuntimeError):
        job.run(Log(25))
    assert leftovers(job.store, job.runner.places, LATER, 0) == []
    assert job.store.plan(0) is not None
    job.before_end = None
    job.run(Log(30))
    assert visible(tmp_path) == list(range(25))


def test_rows_missing_in_the_files_of_this_machine_fail_the_run(tmp_path: Path) -> None:
    """Without a shared file system, workers write files that the driver does not see."""
    job = Job(tmp_path)

    def write(plan: Plan, name: AttemptName) -> Written:
        return dataclasses.replace(job.write(plan, name), rows=24)

    plan = job.runner.next_plan(Log(25).propose)
    assert plan is not None
    with pytest.raises(OutputError, match="wrote 24 rows, but the files contain 23"):
        job.runner.run(plan, write)
    assert visible(tmp_path) == []
    assert leftovers(job.store, job.runner.places, LATER, 0) == []


def test_a_commit_that_fails_after_its_link_keeps_its_files(tmp_path: Path) -> None:
    """The commit may already be visible when an I/O error follows, and the process keeps
    running."""

    class Broken(FaultyFiles):
        def link(self, source: Path, target: Path) -> None:
            super().link(source, target)
            if target.parent.name == "commits":
                raise OSError(5, "Input/output error")

    job = Job(tmp_path / "out", Broken(tmp_path))
    with pytest.raises(OSError):
        job.run(Log(25))
    assert visible(tmp_path / "out") == list(range(25))


def test_a_replay_replaces_the_run_in_one_step(tmp_path: Path) -> None:
    job = Job(tmp_path)
    run_twice(job)
    before = job.store.commit(CommitName(0, 0))
    outcome = job.runner.replay(0, job.write)
    assert outcome.won
    assert outcome.commit.name == (0, 1)
    assert outcome.commit.snapshot == before.snapshot
    assert visible(tmp_path) == list(range(40))
    [old] = leftovers(job.store, job.runner.places, LATER, 0)
    assert (old.name.attempt, old.kind) == (before.attempt, Kind.SUPERSEDED)
    assert remove(job.store, [old]) == old.size > 0
    assert visible(tmp_path) == list(range(40))


def test_a_replay_of_an_uncommitted_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="run 3 is not committed, so it cannot be replayed"):
        Job(tmp_path).runner.replay(3, Job(tmp_path).write)


def test_attempt_of_a_running_process_is_no_orphan(tmp_path: Path) -> None:
    job = Job(tmp_path)
    seen: list[Kind] = []

    def look() -> None:
        seen.extend(item.kind for item in leftovers(job.store, job.runner.places, LATER, 0))

    job.before_end = look
    job.run(Log(25))
    assert seen == [Kind.ALIVE]


def test_recently_written_attempt_without_a_lock_is_kept(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.store.open(job.runner.owner)
    with (
        pytest.raises(KeyError),
        job.store.attempt_lock(new_attempt_writer("numbers", 0, 0)) as name,
    ):
        job.write(Plan("numbers", 0, 0, {"start": 0, "end": 5}), name)
        raise KeyError
    written = (tmp_path / "data").stat().st_mtime
    assert [item.kind for item in leftovers(job.store, job.runner.places, written + 1, 3600)] == [
        Kind.YOUNG
    ]
    [orphan] = leftovers(job.store, job.runner.places, written + 3700, 3600)
    assert orphan.kind is Kind.ORPHAN
    assert len(orphan.folders) == 2


@pytest.mark.parametrize(
    ("owner", "reason"),
    [
        (Owner("letters", "append"), "is the output of the job numbers, not of letters"),
        (Owner("numbers", "latest"), "was written with mode append"),
        (
            Owner("numbers", "append", ("day",)),
            r"the job file has mode .* and partition-by \['day'\]",
        ),
    ],
)
def test_the_output_of_another_job_is_refused(tmp_path: Path, owner: Owner, reason: str) -> None:
    job = Job(tmp_path)
    job.run(Log(5))
    runner = dataclasses.replace(job.runner, owner=owner)
    with pytest.raises(OutputError, match=reason):
        runner.next_plan(Log(9).propose)


def test_a_missing_commit_between_others_is_named(tmp_path: Path) -> None:
    run_twice(Job(tmp_path))
    (tmp_path / "_pybroker" / "commits" / "000000000000-0000.json").unlink()
    with pytest.raises(OutputError, match=r"000000000000-0000\.json is missing, although .* 1"):
        visible(tmp_path)


@pytest.mark.parametrize("gone", ["_pybroker", "_pybroker/commits"])
def test_an_output_without_its_commits_is_refused(tmp_path: Path, gone: str) -> None:
    """Without the error, the files would be removed as orphans, and retention may have deleted the
    records."""
    job = Job(tmp_path)
    run_twice(job)
    shutil.rmtree(tmp_path / gone)
    files = sorted((tmp_path / "data").rglob("*"))
    for use in (
        lambda: job.run(Log(50)),
        lambda: job.store.check(job.runner.owner),
        lambda: leftovers(job.store, job.runner.places, LATER, 0),
        lambda: visible(tmp_path),
    ):
        with pytest.raises(OutputError, match="restore it"):
            use()
    assert sorted((tmp_path / "data").rglob("*")) == files


def test_a_missing_last_commit_is_repeated_from_its_plan(tmp_path: Path) -> None:
    job = Job(tmp_path)
    run_twice(job)
    (tmp_path / "_pybroker" / "commits" / "000000000001-0000.json").unlink()
    assert job.run(Log(50))
    assert visible(tmp_path) == list(range(40))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "not a JSON document"),
        (b"[]", "not a JSON object"),
        (b'{"version": 2}', "unknown version 2"),
        (b'{"version": 1}', "job is missing"),
        (b'{"version": 1, "job": 5}', "job is 5, expected text"),
    ],
)
def test_damaged_commit_is_refused_with_its_path(
    tmp_path: Path, content: bytes, reason: str
) -> None:
    Job(tmp_path).run(Log(5))
    (tmp_path / "_pybroker" / "commits" / "000000000000-0000.json").write_bytes(content)
    with pytest.raises(OutputError, match=rf"000000000000-0000\.json: .*{reason}"):
        visible(tmp_path)


def test_dropped_plan_is_replaced_by_a_new_plan(tmp_path: Path) -> None:
    job = Job(tmp_path)
    assert job.runner.next_plan(Log(25).propose) is not None
    assert job.store.drop_plan(0)
    assert not job.store.drop_plan(0)
    plan = job.runner.next_plan(Log(30).propose)
    assert plan is not None and plan.snapshot["end"] == 30
