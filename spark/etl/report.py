"""The result of a run, as a value and as JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

from pybroker.errors import PybrokerError
from pybroker.spark.etl.exactly_once import Lost, Outcome
from pybroker.spark.etl.files import OutputError
from pybroker.spark.etl.manifest import Commit
from pybroker.spark.snapshot_model import Snapshot

State: TypeAlias = Literal["committed", "committed-elsewhere", "nothing-new", "planned"]


@dataclass(frozen=True)
class RunResult:
    """The result of one run of a job.

    - `state`: `committed`, `committed-elsewhere` (by another process), `nothing-new` or `planned`
      (a dry run)
    - `revision`: how often the run was replayed
    - `rows_read`: None if the records were not counted
    - `lost`: ranges deleted before the run read them, each as (topic, partition, first offset, next
      offset)
    - `seconds`: the duration of each stage
    """

    job: str
    state: State
    seq: int | None = None
    revision: int = 0
    attempt: str | None = None
    snapshot: Snapshot | None = field(default=None, repr=False)
    rows_read: int | None = None
    rows: int = 0
    bytes: int = 0
    files: int = 0
    dlq_rows: int = 0
    dlq_reasons: Mapping[str, int] = field(default_factory=dict)
    lost: tuple[Lost, ...] = ()
    seconds: Mapping[str, float] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the result as JSON values. The field `snapshot` has only the snapshot's id, and
        the field `ranges` lists the snapshot's ranges."""
        snapshot = self.snapshot
        value = asdict(_without_snapshot(self))
        value["snapshot"] = snapshot.id if snapshot else None
        value["ranges"] = [
            {"topic": item.topic, "partition": item.partition, "start": item.start, "end": item.end}
            for item in (snapshot.ranges() if snapshot else ())
        ]
        value["lost"] = [list(item) for item in self.lost]
        return value

    def __str__(self) -> str:
        if self.state == "nothing-new":
            return f"{self.job}: nothing new"
        if self.state == "planned":
            offsets = sum(self.snapshot.counts().values()) if self.snapshot else 0
            return f"{self.job} seq={self.seq}: would read up to {offsets} records"
        text = f"{self.job} seq={self.seq}"
        text += f" revision={self.revision}" if self.revision else ""
        if self.state == "committed-elsewhere":
            return f"{text}: committed by another process, {self.rows} rows"
        total = round(sum(self.seconds.values()), 1)
        text += f": {many(self.rows, 'row')} in {many(self.files, 'file')}"
        text += f" ({megabytes(self.bytes)}), {total} s"
        text += f", {many(self.dlq_rows, 'dead letter')}" if self.dlq_rows else ""
        text += (
            f", {sum(each[3] - each[2] for each in self.lost)} offsets lost" if self.lost else ""
        )
        return text


def of_outcome(outcome: Outcome, snapshot: Snapshot, seconds: Mapping[str, float]) -> RunResult:
    commit = outcome.commit
    letters = commit.dead_letters
    return RunResult(
        job=commit.job,
        state="committed" if outcome.won else "committed-elsewhere",
        seq=commit.seq,
        revision=commit.revision,
        attempt=commit.attempt,
        snapshot=snapshot,
        rows_read=commit.rows_read,
        rows=commit.rows,
        bytes=commit.size,
        files=len(commit.files),
        dlq_rows=letters.rows if letters else 0,
        dlq_reasons=letters.reasons if letters else {},
        lost=commit.lost,
        seconds=seconds,
    )


class InvalidArgument(PybrokerError):
    """An argument of the command line is invalid. The message names the expected value."""


def document(results: list[RunResult], error: str | None) -> dict[str, Any]:
    """Return the report of a command: its runs, and the error if it failed."""
    return {"runs": [result.to_json() for result in results], "error": error}


def check_path(path: str) -> None:
    """Raise OutputError if the report cannot be written to `path`."""
    target = Path(path)
    if target.is_dir():
        raise OutputError(f"the report {path} cannot be written: it is a folder")
    if not os.access(target if target.exists() else target.parent, os.W_OK):
        raise OutputError(
            f"the report {path} cannot be written: its folder does not exist, or permission"
            " is denied"
        )


def write(path: str, results: list[RunResult], error: str | None) -> None:
    """Write the report of a command. Raises OutputError."""
    text = json.dumps(document(results, error), ensure_ascii=False, indent=1)
    try:
        Path(path).write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise OutputError(f"the report {path} cannot be written: {error.strerror}") from error


def megabytes(size: int) -> str:
    """Return `size` (bytes) as text in a suitable unit from B to GB, such as "1.5 MB"."""
    for unit, scale in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if size >= scale:
            return f"{size / scale:.1f} {unit}"
    return f"{size} B"


def summary(commit: Commit) -> dict[str, Any]:
    """Return the main fields of a commit."""
    letters = commit.dead_letters
    return {
        "seq": commit.seq,
        "revision": commit.revision,
        "committed_at_ms": commit.committed_at_ms,
        "rows_read": commit.rows_read,
        "rows": commit.rows,
        "bytes": commit.size,
        "dead_letters": letters.rows if letters else 0,
        "lost": sum(each[3] - each[2] for each in commit.lost),
        "seconds": commit.seconds,
    }


def _without_snapshot(result: RunResult) -> RunResult:
    values = {name: getattr(result, name) for name in result.__dataclass_fields__}
    return RunResult(**{**values, "snapshot": None})


def many(count: int, what: str) -> str:
    """Return a number with its noun, such as `1 row` or `2 rows`."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
