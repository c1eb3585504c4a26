"""A job: it reads the records of topics, transforms them, and writes a table exactly once."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from pyspark.sql import SparkSession

from pybroker.clock import SystemClock
from pybroker.spark.etl import job_file, proposal, sink
from pybroker.spark.etl.exactly_once import Outcome, Runner, Write, Written
from pybroker.spark.etl.files import OutputError
from pybroker.spark.etl.job_model import JobFile
from pybroker.spark.etl.layout import AttemptName
from pybroker.spark.etl.manifest import Commit, Json, Plan
from pybroker.spark.etl.progress import Progress, Silent
from pybroker.spark.etl.report import RunResult, of_outcome
from pybroker.spark.etl.run import Parts, Read, Run, prepare, read_snapshot
from pybroker.spark.etl.store import Store
from pybroker.spark.snapshot_model import Snapshot


@dataclass(frozen=True)
class Job:
    """A job, loaded from its file. A run stores a plan (the offsets to read), and at the end a
    commit. Several processes may run the same job: only one commits each run."""

    file: JobFile
    progress: Progress = field(default_factory=Silent)
    read: Read = read_snapshot

    @classmethod
    def from_file(
        cls, path: str | os.PathLike[str], environment: Mapping[str, str] | None = None
    ) -> Job:
        """Return the job in a file. Raises ConfigError with every fault of the file."""
        return cls(job_file.load(path, environment))

    @property
    def name(self) -> str:
        return self.file.name

    @property
    def store(self) -> Store:
        return Store(self.file.sink.path)

    @property
    def runner(self) -> Runner:
        return Runner(
            store=self.store,
            owner=self.file.owner,
            places=self.file.places,
            clock=SystemClock(),
            count_rows=sink.count_rows,
        )

    def run_once(self, spark: SparkSession, until_ms: int | None = None) -> RunResult:
        """Execute one run: repeat the stored plan if it has no commit, or else read the new
        records.

        `until_ms` (ms since 1970) ends each new range before the first record with this timestamp
        or later. A repeated plan ignores `until_ms`.

        Raises ConfigError, SnapshotError, RunFailed, OutputError or a ClientError. A failed run
        commits nothing; the next run repeats its stored plan.
        """
        parts = prepare(self.file)
        self.progress.stage(f"{self.name}: plan")
        started = time.monotonic()
        with self._writable():
            plan = self.runner.next_plan(lambda last: self._proposed(last, until_ms))
        if plan is None:
            return RunResult(self.name, "nothing-new")
        self._check_plan_continues(plan)
        run = self._run(spark, parts, self._last_other_commit(plan.seq))
        run.seconds["plan"] = round(time.monotonic() - started, 3)
        return self._finished(run, lambda write: self.runner.run(plan, write), plan.snapshot)

    def run(self, spark: SparkSession, until_ms: int | None = None) -> Iterator[RunResult]:
        """Execute runs until the output has all records that existed before the first run. Yield at
        least one result. `until_ms` is as in `run_once`."""
        goal = self._all_new_records(until_ms)
        while True:
            result = self.run_once(spark, until_ms)
            yield result
            if result.snapshot is None or goal is None or proposal.reached(goal, result.snapshot):
                return

    def replay(self, spark: SparkSession, seq: int) -> RunResult:
        """Repeat a committed run with the present job file, and replace its result in one step.

        Raises the errors of `run_once`, and OutputError if records of the run are no longer in the
        topics, even with `fail-on-data-loss: false`.
        """
        parts = prepare(self.file)
        old = self.committed(seq)
        run = self._run(spark, parts, self._last_other_commit(seq))

        def write(plan: Plan, attempt: AttemptName) -> Written:
            written = run.write(plan, attempt)
            self._check_rows_kept(old, written)
            return written

        return self._finished(run, lambda _: self.runner.replay(seq, write), old.snapshot)

    def _check_rows_kept(self, old: Commit, written: Written) -> None:
        """Raise OutputError if a replay (`written`) missed records of the commit that it replaces
        (`old`)."""
        known = {(topic, number): end for topic, number, _, end in old.lost}
        gone = [
            f"{topic}-{number}@{max(start, known.get((topic, number), start))}-{end}"
            for topic, number, start, end in written.lost
            if end > known.get((topic, number), start)
        ]
        if gone:
            raise OutputError(
                f"run {old.seq} cannot be repeated without losing rows of its result: the"
                f" topics no longer contain {', '.join(gone)}; the old result is unchanged"
            )
        if old.tombstones != written.tombstones or old.rows_read is None:
            return  # the old run did not count its records
        if written.rows_read is not None and written.rows_read < old.rows_read:
            raise OutputError(
                f"run {old.seq} cannot be repeated without losing rows of its result: the run read"
                f" {old.rows_read} records, but compaction (cleanup.policy) has left only"
                f" {written.rows_read} of them; the old result is unchanged"
            )

    def committed(self, seq: int) -> Commit:
        """Return the run's commit with the highest revision. Raises OutputError if the run has no
        commit."""
        name = next((each for each in self.store.commit_names() if each.seq == seq), None)
        if name is None:
            raise OutputError(
                f"{self.store.output}: run {seq} is not committed, so it cannot be replayed"
            )
        return self.store.commit(name)

    def dry_run(self, until_ms: int | None = None) -> RunResult:
        """Return the ranges that the next run would read, with `until_ms` as in `run_once`. Writes
        nothing and needs no Spark."""
        self.store.check(self.file.owner)
        last = self.store.last_commit()
        seq = last.seq + 1 if last is not None else 0
        found = self.store.plan(seq)
        if found is not None:
            snapshot: Snapshot | None = proposal.snapshot_of(found.snapshot)
        else:
            snapshot = proposal.propose(self.file, last, until_ms)
        if snapshot is None:
            return RunResult(self.name, "nothing-new")
        return RunResult(self.name, "planned", seq, snapshot=snapshot)

    def drop_plan(self) -> bool:
        """Discard the plan of the next run, so that the run makes a new plan. Return whether there
        was a plan."""
        last = self.store.last_commit()
        return self.store.drop_plan(last.seq + 1 if last is not None else 0)

    def _all_new_records(self, until_ms: int | None) -> Snapshot | None:
        """Return the snapshot of all new records, without the size limit of one run. Return None if
        there are no new records. `until_ms` is as in `run_once`."""
        source = replace(self.file.source, max_bytes_per_run=None)
        return proposal.propose(
            replace(self.file, source=source), self.store.last_commit(), until_ms
        )

    def _check_plan_continues(self, plan: Plan) -> None:
        """Raise OutputError if a plan does not begin at the end of the last commit. This happens if
        commits were removed by hand."""
        last = self.store.last_commit()
        if last is None or plan.seq <= last.seq:
            return
        before, after = (proposal.snapshot_of(each.snapshot) for each in (last, plan))
        if after.parent != before.id:
            raise OutputError(
                f"{self.store.output}: the plan of run {plan.seq} does not begin where run"
                f" {last.seq} ended; discard the plan with --new-plan"
            )

    def _proposed(self, last: Commit | None, until_ms: int | None) -> Json | None:
        snapshot = proposal.propose(self.file, last, until_ms)
        return None if snapshot is None else proposal.as_json(snapshot)

    def _last_other_commit(self, seq: int) -> Commit | None:
        """Return the commit of the last committed run, without counting the run `seq`. Return None
        if no other run is committed."""
        others = [name for name in self.store.commit_names() if name.seq != seq]
        return self.store.commit(others[-1]) if others else None

    @contextmanager
    def _writable(self) -> Iterator[None]:
        """During the block, turn an OSError into an OutputError with a message of one line."""
        try:
            yield
        except OSError as error:
            where = error.filename or self.store.output
            raise OutputError(f"{where}: {error.strerror or error}") from error

    def _run(self, spark: SparkSession, parts: Parts, last: Commit | None) -> Run:
        return Run(
            spark=spark,
            job=self.file,
            parts=parts,
            places=self.file.places,
            last=last,
            read=self.read,
            progress=self.progress,
        )

    def _finished(
        self, run: Run, carry_out: Callable[[Write], Outcome], snapshot: Json
    ) -> RunResult:
        started = time.monotonic()
        with self._writable():
            outcome = carry_out(run.write)
        spent = sum(seconds for stage, seconds in run.seconds.items() if stage != "plan")
        run.seconds["commit"] = round(time.monotonic() - started - spent, 3)
        return of_outcome(outcome, proposal.snapshot_of(snapshot), run.seconds)
