"""Plans, attempts and commits of a job in its output. What is promised:

- A document is put under its name whole and lasting, or not at all; of several that are put under
  one name the first wins, and everybody is given that one.
- A crash between any two steps leaves files behind that nobody reads.
- A run number is committed once. Its revisions (a run that was made again) follow one another.

The order of steps that makes it so: write a temporary file beside the final place, sync it, link it
to its name (which fails if there is one), sync the folder, remove the temporary name.
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
from pybroker.spark.etl.manifest import Claim, Commit, Document, Owner, Plan

_FOLDERS: Final = (layout.PLANS, layout.ATTEMPTS, layout.COMMITS)


class Store:
    """The documents of one output."""

    def __init__(self, output: Path, files: Files | None = None) -> None:
        self.output = output
        self.files: Files = files or RealFiles()
        self._root = output / layout.STORE

    # What is there

    def owner(self) -> Owner | None:
        """Whose output it is; None if nobody has written there yet."""
        content = self._read(self._root / layout.OWNER)
        return None if content is None else manifest.owner_from(content, self._where(layout.OWNER))

    def all_commit_names(self) -> list[CommitName]:
        """Every commit, those that were made again since among them, in order."""
        names = self.files.names(self._root / layout.COMMITS)
        return sorted(found for name in names if (found := layout.parse_commit(name)) is not None)

    def commit_names(self) -> list[CommitName]:
        """The commits that count, one a run, in the order of runs.

        Raises OutputError if one between them is missing.
        """
        # Plans before commits: a run is planned when the one before it is committed.
        planned = max(self._planned(), default=0)
        latest = {name.seq: name for name in self.all_commit_names()}
        for expected, seq in enumerate(sorted(latest)):
            if seq != expected:
                raise self._missing(expected, f"a commit {seq}")
        if planned > len(latest):
            raise self._missing(len(latest), f"a plan {planned}")
        if not latest and self._has_data() and self.owner() is None:
            raise OutputError(
                f"{self.output} holds files of runs, and no {layout.STORE} that says which of them "
                "count: bring it back, or give another sink.path"
            )
        return [latest[seq] for seq in sorted(latest)]

    def commit(self, name: CommitName) -> Commit:
        path = self._root / layout.COMMITS / layout.commit_file(name)
        content = self._read(path)
        if content is None:
            raise OutputError(f"{path} is missing")
        return manifest.commit_from(content, str(path))

    def commits(self) -> list[Commit]:
        """All commits that count."""
        return [self.commit(name) for name in self.commit_names()]

    def last_commit(self) -> Commit | None:
        names = self.commit_names()
        return self.commit(names[-1]) if names else None

    def plan(self, seq: int) -> Plan | None:
        path = self._root / layout.PLANS / layout.plan_file(seq)
        content = self._read(path)
        return None if content is None else manifest.plan_from(content, str(path))

    def attempts(self) -> list[AttemptName]:
        """Who writes, or wrote and has not tidied up."""
        names = self.files.names(self._root / layout.ATTEMPTS)
        return [found for name in names if (found := layout.parse_attempt(name)) is not None]

    def claim(self, name: AttemptName) -> Claim | None:
        path = self._root / layout.ATTEMPTS / layout.attempt_file(name)
        content = self._read(path)
        return None if content is None else manifest.claim_from(content, str(path))

    # What is put there

    def open(self, owner: Owner) -> None:
        """Makes the output ready for a job.

        Raises OutputError if it is the output of another one, or was made in another shape.
        """
        self.check(owner)
        self._make_folders()
        self._put(self._root / layout.OWNER, owner)
        self.check(owner)

    def check(self, owner: Owner) -> None:
        """Raises OutputError if this is the output of another job, was made in another shape, or
        has lost what says what belongs to it."""
        self.commit_names()
        found = self.owner()
        if found is None:
            return
        if found.job != owner.job:
            raise OutputError(
                f"{self.output} is the output of the job {found.job}, not of {owner.job}; "
                "give each job a sink.path of its own"
            )
        if found != owner:
            raise OutputError(
                f"{self.output} was made with mode {found.mode}, partitioned by "
                f"{list(found.partition_by)}, and the job file asks for mode {owner.mode}, "
                f"partitioned by {list(owner.partition_by)}; keep it or give another sink.path"
            )

    def put_plan(self, plan: Plan) -> Plan:
        """The plan of this run: this one, or one that was there before."""
        # The commit before it lasts first: whoever linked it may have been stopped before this.
        self.files.sync_folder(self._root / layout.COMMITS)
        self._put(self._root / layout.PLANS / layout.plan_file(plan.seq), plan)
        found = self.plan(plan.seq)
        if found is None:
            raise OutputError(f"the plan of run {plan.seq} was dropped meanwhile; run it again")
        return found

    def drop_plan(self, seq: int) -> bool:
        """Forgets a plan that is not committed; whether there was one. A run that is under way
        with it may still commit first: the commit holds what was read, so nothing is lost or
        doubled."""
        path = self._root / layout.PLANS / layout.plan_file(seq)
        there = self._read(path) is not None
        self.files.remove(path)
        if there:
            self.files.sync_folder(path.parent)
        return there

    def put_commit(self, commit: Commit) -> bool:
        """Whether this one counts; otherwise another one of this name was quicker."""
        if commit.seq and self.commit_names()[-1].seq < commit.seq - 1:
            raise OutputError(f"run {commit.seq - 1} is not committed yet")
        return self._put(self._root / layout.COMMITS / layout.commit_file(commit.name), commit)

    @contextmanager
    def claimed(self, claim: Claim) -> Iterator[AttemptName]:
        """While this is entered, nobody takes the attempt for an orphan. Its claim goes with it;
        its data stay."""
        name = AttemptName(claim.seq, claim.attempt)
        path = self._root / layout.ATTEMPTS / layout.attempt_file(name)
        temporary = path.parent / layout.temporary_file()
        self.files.create(temporary, manifest.to_bytes(claim))
        self.files.sync(temporary)
        descriptor = os.open(temporary, os.O_RDONLY)
        try:
            # Locked before it has its name, so that it is never seen without its lock.
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            self.files.link(temporary, path)
            self.files.remove(temporary)
            yield name
            self.forget_attempt(name)
        finally:
            os.close(descriptor)

    def is_claimed(self, name: AttemptName) -> bool:
        """Whether the process that writes an attempt lives (on this machine, or on another one
        where the file system shares its locks)."""
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
        """What crashes left of documents that were about to be put."""
        folders = (self._root, *(self._root / folder for folder in _FOLDERS))
        return [
            folder / name
            for folder in folders
            for name in self.files.names(folder)
            if layout.is_temporary(name)
        ]

    # How it is done

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
        return OutputError(f"{path} is missing, though there is {there}: bring it back")

    def _make_folders(self) -> None:
        """Their names last when the owner is put beside them, at the latest."""
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
        # The loser, too: what it found is acted upon, so it has to last.
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
    """Creates a folder and those above it, so that their names outlive a loss of power."""
    for folder in reversed((path, *path.parents)):
        was_there = folder.exists()
        if was_there and os.path.ismount(folder):
            continue
        if not was_there:
            files.make_folder(folder)
        try:
            # Also if it was there: whoever made it may have been stopped before this.
            files.sync_folder(folder.parent)
        except PermissionError:
            if not was_there:
                raise


def new_claim(job: str, seq: int, now_ms: int) -> Claim:
    return Claim(job, seq, layout.new_attempt(), now_ms, socket.gethostname(), os.getpid())
