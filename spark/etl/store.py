"""Stores the plans, attempts and commits of a job as documents in the output folder.

- A document is stored completely and durably, or not at all. The first document under a name is
  kept.
- A crash between any two steps leaves only files that no process reads.
- Each revision of a run is committed by only one process. Each replay of a run adds one revision.

The steps: write a temporary file in the final folder, sync the file, link the file under the final
name (fails if the name exists), sync the folder, remove the temporary name.
"""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pybroker.spark.etl import layout, manifest
from pybroker.spark.etl.files import Files, OutputError, RealFiles
from pybroker.spark.etl.layout import AttemptName, CommitName
from pybroker.spark.etl.manifest import AttemptWriter, Commit, Document, Owner, Plan

_FOLDERS: Final = (layout.PLANS, layout.ATTEMPTS, layout.COMMITS)


class Store:
    """Stores and reads the plans, attempts and commits of one output."""

    def __init__(self, output: Path, files: Files | None = None) -> None:
        self.output = output
        self.files: Files = files or RealFiles()
        self._root = output / layout.STORE

    # Reading

    def owner(self) -> Owner | None:
        """Return the owner of the output; None if no job has written to the output yet."""
        content = self._read(self._root / layout.OWNER)
        return None if content is None else manifest.owner_from(content, self._where(layout.OWNER))

    def all_commit_names(self) -> list[CommitName]:
        """Return the names of all commits in order, including replaced ones."""
        names = self.files.names(self._root / layout.COMMITS)
        return sorted(found for name in names if (found := layout.parse_commit(name)) is not None)

    def commit_names(self) -> list[CommitName]:
        """Return the name of each run's newest commit, in the order of the runs. Raises OutputError
        if a run has no commit, but a later run has a plan or a commit."""
        # List plans before commits: a run is planned only after the preceding run is committed.
        planned = max(self._planned(), default=0)
        latest = {name.seq: name for name in self.all_commit_names()}
        for expected, seq in enumerate(sorted(latest)):
            if seq != expected:
                raise self._missing(expected, f"commit {seq}")
        if planned > len(latest):
            raise self._missing(len(latest), f"plan {planned}")
        if not latest and self._has_data() and self.owner() is None:
            raise OutputError(
                f"{self.output} contains files of runs, but the folder {layout.STORE} with"
                " their commits is missing: restore it, or set another sink.path"
            )
        return [latest[seq] for seq in sorted(latest)]

    def commit(self, name: CommitName) -> Commit:
        path = self._root / layout.COMMITS / layout.commit_file(name)
        content = self._read(path)
        if content is None:
            raise OutputError(f"the commit {path} is missing: restore it")
        return manifest.commit_from(content, str(path))

    def commits(self) -> list[Commit]:
        """Return the newest commit of each run, in the order of the runs."""
        return [self.commit(name) for name in self.commit_names()]

    def last_commit(self) -> Commit | None:
        names = self.commit_names()
        return self.commit(names[-1]) if names else None

    def plan(self, seq: int) -> Plan | None:
        path = self._root / layout.PLANS / layout.plan_file(seq)
        content = self._read(path)
        return None if content is None else manifest.plan_from(content, str(path))

    def attempts(self) -> list[AttemptName]:
        """Return the attempts that have a lock file. A lock file means that the attempt's process
        still runs, or has ended without removing the file."""
        names = self.files.names(self._root / layout.ATTEMPTS)
        return [found for name in names if (found := layout.parse_attempt(name)) is not None]

    def attempt_writer(self, name: AttemptName) -> AttemptWriter | None:
        path = self._root / layout.ATTEMPTS / layout.attempt_file(name)
        content = self._read(path)
        return None if content is None else manifest.attempt_writer_from(content, str(path))

    # Writing

    def open(self, owner: Owner) -> None:
        """Create the folders and the owner document of an output. Raises the errors of `check`."""
        self.check(owner)
        self._make_folders()
        self._put(self._root / layout.OWNER, owner)
        self.check(owner)

    def check(self, owner: Owner) -> None:
        """Raise OutputError if another job owns the output, or if the output was written with
        another mode or other partition columns. Also raises the errors of `commit_names`."""
        self.commit_names()
        found = self.owner()
        if found is None:
            return
        if found.job != owner.job:
            raise OutputError(
                f"{self.output} is the output of the job {found.job}, not of {owner.job}; "
                "give each job its own sink.path"
            )
        if found != owner:
            raise OutputError(
                f"{self.output} was written with mode {found.mode} and partitioned by"
                f" {list(found.partition_by)}, but the job file has mode {owner.mode} and"
                f" partition-by {list(owner.partition_by)}; change the job file back, or set"
                " another sink.path"
            )

    def put_plan(self, plan: Plan) -> Plan:
        """Store a plan, unless the run already has one. Return the stored plan of the run."""
        # Make the preceding commit durable first: its process may have died before the sync.
        self.files.sync_folder(self._root / layout.COMMITS)
        self._put(self._root / layout.PLANS / layout.plan_file(plan.seq), plan)
        found = self.plan(plan.seq)
        if found is None:
            raise OutputError(
                f"another process has discarded the plan of run {plan.seq}; run the job again"
            )
        return found

    def drop_plan(self, seq: int) -> bool:
        """Remove the plan of an uncommitted run. Return whether the run had a plan. A process that
        read the plan before its removal can still commit the run, without loss or duplicates."""
        path = self._root / layout.PLANS / layout.plan_file(seq)
        there = self._read(path) is not None
        self.files.remove(path)
        if there:
            self.files.sync_folder(path.parent)
        return there

    def put_commit(self, commit: Commit) -> bool:
        """Store a commit. Return False if a commit with this name exists already."""
        if commit.seq and self.commit_names()[-1].seq < commit.seq - 1:
            raise OutputError(
                f"run {commit.seq} cannot be committed: run {commit.seq - 1} is not committed yet"
            )
        return self._put(self._root / layout.COMMITS / layout.commit_file(commit.name), commit)

    @contextmanager
    def attempt_lock(self, writer: AttemptWriter) -> Iterator[AttemptName]:
        """Lock an attempt inside the `with` block, so that no process removes the attempt as an
        orphan. After an exception in the block, the lock file stays, unlocked."""
        name = AttemptName(writer.seq, writer.attempt)
        path = self._root / layout.ATTEMPTS / layout.attempt_file(name)
        temporary = path.parent / layout.temporary_file()
        self.files.create(temporary, manifest.to_bytes(writer))
        self.files.sync(temporary)
        descriptor = os.open(temporary, os.O_RDONLY)
        try:
            # Lock the file before linking it, so that no process sees the file without its lock.
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            self.files.link(temporary, path)
            self.files.remove(temporary)
            yield name
            self.forget_attempt(name)
        finally:
            os.close(descriptor)

    def is_attempt_locked(self, name: AttemptName) -> bool:
        """Return whether the process that writes the attempt is alive. Locks of other machines are
        seen only if the file system shares locks."""
        path = self._root / layout.ATTEMPTS / layout.attempt_file(name)
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    def forget_attempt(self, name: AttemptName) -> None:
        self.files.remove(self._root / layout.ATTEMPTS / layout.attempt_file(name))

    def temporary_files(self) -> list[Path]:
        """Return the temporary files that crashed processes left behind."""
        folders = (self._root, *(self._root / folder for folder in _FOLDERS))
        return [
            folder / name
            for folder in folders
            for name in self.files.names(folder)
            if layout.is_temporary(name)
        ]

    # Helpers

    def _planned(self) -> list[int]:
        names = self.files.names(self._root / layout.PLANS)
        return [seq for name in names if (seq := layout.parse_plan(name)) is not None]

    def _has_data(self) -> bool:
        data = self.output / layout.DATA
        return any(
            layout.is_seq_folder(name) and self.files.names(data / name)
            for name in self.files.names(data)
        )

    def _missing(self, seq: int, there: str) -> OutputError:
        path = self._root / layout.COMMITS / layout.commit_file(CommitName(seq, 0))
        return OutputError(f"{path} is missing, although {there} exists: restore it")

    def _make_folders(self) -> None:
        """Create the folders of the output. The caller must store the owner document next: storing
        it syncs the parent of the new folders, which makes them durable."""
        make_folders(self.files, self._root)
        for folder in _FOLDERS:
            self.files.make_folder(self._root / folder)

    def _put(self, path: Path, document: Document) -> bool:
        temporary = path.parent / layout.temporary_file()
        self.files.create(temporary, manifest.to_bytes(document))
        self.files.sync(temporary)
        try:
            self.files.link(temporary, path)
            won = True
        except FileExistsError:
            won = False
        # Sync even if another process stored the document: this process relies on its content.
        self.files.sync_folder(path.parent)
        self.files.remove(temporary)
        return won

    def _read(self, path: Path) -> bytes | None:
        try:
            return self.files.read(path)
        except FileNotFoundError:
            return None
        except NotADirectoryError as error:
            raise OutputError(f"{self.output} is not a folder") from error

    def _where(self, name: str) -> str:
        return str(self._root / name)


def make_folders(files: Files, path: Path) -> None:
    """Create a folder and its parents, and make their names durable."""
    for folder in reversed((path, *path.parents)):
        was_there = folder.exists()
        if was_there and os.path.ismount(folder):
            continue
        if not was_there:
            files.make_folder(folder)
        try:
            # Sync even if the folder existed: its creator may have died before the sync.
            files.sync_folder(folder.parent)
        except PermissionError:
            if not was_there:
                raise


def new_attempt_writer(job: str, seq: int, now_ms: int) -> AttemptWriter:
    return AttemptWriter(job, seq, layout.new_attempt(), now_ms, socket.gethostname(), os.getpid())
