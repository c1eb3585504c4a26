"""Adds the result of each run to the output exactly once.

1. The plan has the offsets to read. A run keeps its first plan, so that a repeated run, or a second
   process, reads the same offsets.
2. An attempt writes into its own folders.
3. After a sync of the files, a commit lists the files, and makes offsets and output visible
   together. If another process has committed first, the attempt's files are removed.

The next plan begins at the end of the committed offsets.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from pybroker.spark.etl import layout
from pybroker.spark.etl.files import Files, OutputError
from pybroker.spark.etl.layout import AttemptName, CommitName
from pybroker.spark.etl.manifest import (
    Commit,
    DeadLetters,
    Json,
    OutputFile,
    Owner,
    Plan,
)
from pybroker.spark.etl.store import Store, make_folders, new_attempt_writer

log = logging.getLogger(__name__)

Lost = tuple[str, int, int, int]


@dataclass(frozen=True)
class Places:
    """The folders of a job's output in which an attempt puts its files."""

    output: Path
    dead_letters: str = layout.DEAD_LETTERS
    """The folder of dead letters, as a manifest names it: relative to the output, or absolute."""

    @property
    def dead_letters_root(self) -> Path:
        return self.output / self.dead_letters

    def data(self, name: AttemptName) -> Path:
        return self.output / layout.DATA / layout.attempt_folder(name)

    def letters(self, name: AttemptName) -> Path:
        return self.dead_letters_root / layout.attempt_folder(name)


@dataclass(frozen=True)
class Written:
    """The result of one attempt to write the files of a run, without the list of these files."""

    schema: Json
    rows_read: int | None
    rows: int
    dead_letter_reasons: Mapping[str, int] = field(default_factory=dict)
    dead_letters: int = 0
    lost: tuple[Lost, ...] = ()
    decode_schema: str | None = None
    tombstones: str | None = None


@dataclass(frozen=True)
class Outcome:
    """The commit of a run. `won` is False if another process committed the run first."""

    commit: Commit
    won: bool


class Clock(Protocol):
    """The wall clock and the monotonic clock of the machine."""

    def wall_ms(self) -> int: ...

    def monotonic(self) -> float: ...


Propose = Callable[[Commit | None], Json | None]
"""A function that receives the last commit (None: no run is committed yet). It returns the snapshot
that the next run reads, or None if there are no new records."""
Write = Callable[[Plan, AttemptName], Written]
"""A function that reads the offsets in a plan and writes files into the folders of an attempt."""
CountRows = Callable[[Path], int]
"""A function that returns the number of rows in a file of the output."""


@dataclass(frozen=True)
class Runner:
    """Plans and commits the runs of one job. All these runs write to the same output."""

    store: Store
    owner: Owner
    places: Places
    clock: Clock
    count_rows: CountRows

    def next_plan(self, propose: Propose) -> Plan | None:
        """Return the stored plan of the run after the last commit, or else a new plan from
        `propose`. Return None if there are no new records."""
        self.store.open(self.owner)
        last = self.store.last_commit()
        seq = last.seq + 1 if last else 0
        if seq > layout.SEQ_MAX:
            raise OutputError(
                f"{self.store.output}: the job has used its highest run number, "
                f"{layout.SEQ_MAX}; set another sink.path"
            )
        found = self.store.plan(seq)
        if found is not None:
            return found
        snapshot = propose(last)
        if snapshot is None:
            return None
        return self.store.put_plan(Plan(self.owner.job, seq, self.clock.wall_ms(), snapshot))

    def run(self, plan: Plan, write: Write) -> Outcome:
        """Write the run's files (a new attempt), then store the commit. If another process has
        committed the run first, return that process's commit."""
        return self._attempt(plan, CommitName(plan.seq, 0), write)

    def replay(self, seq: int, write: Write) -> Outcome:
        """Repeat a committed run with the same offsets, and replace the old result in one step."""
        self.store.open(self.owner)
        name = next((each for each in self.store.commit_names() if each.seq == seq), None)
        if name is None:
            raise OutputError(
                f"{self.store.output}: run {seq} is not committed, so it cannot be replayed"
            )
        if name.revision == layout.REVISION_MAX:
            raise OutputError(
                f"{self.store.output}: run {seq} cannot be replayed: all its revision numbers"
                f" up to {layout.REVISION_MAX} are used"
            )
        commit = self.store.commit(name)
        plan = Plan(commit.job, seq, commit.committed_at_ms, commit.snapshot)
        return self._attempt(plan, CommitName(seq, name.revision + 1), write)

    def _attempt(self, plan: Plan, name: CommitName, write: Write) -> Outcome:
        started = self.clock.monotonic()
        writer = new_attempt_writer(self.owner.job, plan.seq, self.clock.wall_ms())
        with self.store.attempt_lock(writer) as attempt:
            try:
                self._make_folders()
                written = write(plan, attempt)
                commit = self._sealed(plan, name, attempt, written, started)
            except BaseException:
                self.discard(attempt)
                raise
            # From here on, the attempt may be part of the output: its files stay.
            won = self.store.put_commit(commit)
            if not won:
                self.discard(attempt)
                commit = self.store.commit(name)
        return Outcome(commit, won)

    def discard(self, attempt: AttemptName) -> None:
        """Remove the files of an attempt that is not committed."""
        try:
            for folder in (self.places.data(attempt), self.places.letters(attempt)):
                self.store.files.remove_tree(folder)
            self.store.forget_attempt(attempt)
        except OSError as error:
            log.warning("attempt not removed attempt=%s reason=%s", attempt.attempt, error)

    def _make_folders(self) -> None:
        make_folders(self.store.files, self.places.output / layout.DATA)

    def _sealed(
        self, plan: Plan, name: CommitName, attempt: AttemptName, written: Written, started: float
    ) -> Commit:
        """Sync the files of the attempt, and return a commit that names them. `started` is in
        seconds of the monotonic clock."""
        files = _seal(
            self.store.files, self.places.output, self.places.data(attempt), self.count_rows
        )
        rows = sum(file.rows for file in files)
        if rows != written.rows:
            raise OutputError(
                f"{self.places.data(attempt)}: Spark tasks wrote {written.rows} rows, but the"
                f" files contain {rows}; set sink.path to a file system that all workers share"
            )
        return Commit(
            job=self.owner.job,
            seq=plan.seq,
            revision=name.revision,
            attempt=attempt.attempt,
            mode=self.owner.mode,
            committed_at_ms=self.clock.wall_ms(),
            snapshot=plan.snapshot,
            schema=written.schema,
            partition_by=self.owner.partition_by,
            rows_read=written.rows_read,
            rows=rows,
            files=files,
            dead_letters=self._sealed_letters(attempt, written),
            lost=written.lost,
            seconds=round(self.clock.monotonic() - started, 3),
            decode_schema=written.decode_schema,
            tombstones=written.tombstones,
        )

    def _sealed_letters(self, attempt: AttemptName, written: Written) -> DeadLetters | None:
        if not written.dead_letters:
            return None
        root, files = self.places.dead_letters_root, self.store.files
        make_folders(files, root)
        sealed = _seal(files, root, self.places.letters(attempt), self.count_rows)
        rows = sum(file.rows for file in sealed)
        if rows != written.dead_letters:
            raise OutputError(
                f"{self.places.letters(attempt)}: {written.dead_letters} dead letters were"
                f" counted, but the files contain {rows}; set dlq.path to a file system that"
                " all workers share"
            )
        return DeadLetters(
            self.places.dead_letters, rows, sealed, dict(written.dead_letter_reasons)
        )


def _seal(files: Files, root: Path, folder: Path, count_rows: CountRows) -> tuple[OutputFile, ...]:
    """Sync all files and folders below `folder`. Then sync `folder` and its parent folders up to
    `root`. Return the data files, with paths relative to `root`."""
    found: list[OutputFile] = []
    for path in sorted(folder.rglob("*")):
        if path.is_dir():
            files.sync_folder(path)
            continue
        # Checksum files are synced too: an empty checksum file makes its data file unreadable.
        files.sync(path)
        if is_data(path.name):
            size = path.stat().st_size
            found.append(OutputFile(str(path.relative_to(root)), size, count_rows(path)))
    above = folder
    while above != root:
        if above.is_dir():
            files.sync_folder(above)
        above = above.parent
    files.sync_folder(root)
    return tuple(found)


def is_data(name: str) -> bool:
    """Return whether a file with this name has rows. Checksum files and Spark's markers have
    none."""
    return not name.startswith((".", "_"))
