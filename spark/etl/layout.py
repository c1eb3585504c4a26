"""The file and folder names in the output of a job. Only this module builds and parses the names.

    OUTPUT/
      _pybroker/
        output.json                           the job that owns the output
        plans/000000000012.json               the offsets that run 12 reads
        attempts/000000000012-<attempt>.json  the process that writes; it holds a lock on the file
        commits/000000000012-0000.json        the result of run 12, revision 0
      data/pybroker_seq=000000000012/pybroker_attempt=<attempt>/[column=value/...]part-*.parquet
      dead_letters/pybroker_seq=000000000012/pybroker_attempt=<attempt>/part-*.parquet

`dead_letters` may be a folder elsewhere. A file belongs to the output only if a commit lists the
file. If a run has several commits, the highest revision applies.
"""

from __future__ import annotations

import re
import uuid
from pathlib import Path
from typing import Final, NamedTuple

STORE: Final = "_pybroker"
PLANS: Final = "plans"
COMMITS: Final = "commits"
ATTEMPTS: Final = "attempts"
OWNER: Final = "output.json"
DATA: Final = "data"
DEAD_LETTERS: Final = "dead_letters"

RESERVED_PREFIX: Final = "pybroker_"
"""The prefix of the folders of runs and attempts. No column of the output may begin with it."""
SEQ_COLUMN: Final = "pybroker_seq"
ATTEMPT_COLUMN: Final = "pybroker_attempt"

SEQ_MAX: Final = 10**12 - 1
REVISION_MAX: Final = 9999

_PLAN: Final = re.compile(r"(\d{12})\.json")
_COMMIT: Final = re.compile(r"(\d{12})-(\d{4})\.json")
_ATTEMPT: Final = re.compile(r"(\d{12})-([0-9a-f]{32})\.json")
_SEQ_FOLDER: Final = re.compile(rf"{SEQ_COLUMN}=(\d{{12}})")
_ATTEMPT_FOLDER: Final = re.compile(rf"{ATTEMPT_COLUMN}=([0-9a-f]{{32}})")
_TEMPORARY: Final = re.compile(r"\.[0-9a-f]{32}\.new")


class CommitName(NamedTuple):
    """The name of a commit: the number of the run, and the revision (how often the run was
    replayed)."""

    seq: int
    revision: int


class AttemptName(NamedTuple):
    """The name of one attempt to write the result of a run."""

    seq: int
    attempt: str


def new_attempt() -> str:
    return uuid.uuid4().hex


def plan_file(seq: int) -> str:
    return f"{seq:012d}.json"


def commit_file(name: CommitName) -> str:
    return f"{name.seq:012d}-{name.revision:04d}.json"


def attempt_file(name: AttemptName) -> str:
    return f"{name.seq:012d}-{name.attempt}.json"


def attempt_folder(name: AttemptName) -> Path:
    """Return the attempt's folder, relative to the folder `data` or the folder of dead letters."""
    return seq_folder(name.seq) / f"{ATTEMPT_COLUMN}={name.attempt}"


def seq_folder(seq: int) -> Path:
    return Path(f"{SEQ_COLUMN}={seq:012d}")


def is_seq_folder(name: str) -> bool:
    return _SEQ_FOLDER.fullmatch(name) is not None


def temporary_file() -> str:
    """Return a name for a temporary file."""
    return f".{uuid.uuid4().hex}.new"


def is_temporary(name: str) -> bool:
    return _TEMPORARY.fullmatch(name) is not None


def parse_plan(name: str) -> int | None:
    found = _PLAN.fullmatch(name)
    return int(found[1]) if found else None


def parse_commit(name: str) -> CommitName | None:
    found = _COMMIT.fullmatch(name)
    return CommitName(int(found[1]), int(found[2])) if found else None


def parse_attempt(name: str) -> AttemptName | None:
    found = _ATTEMPT.fullmatch(name)
    return AttemptName(int(found[1]), found[2]) if found else None


def parse_folders(seq: str, attempt: str) -> AttemptName | None:
    """Return the attempt that wrote the folder `seq`/`attempt`. Return None if one of the two names
    has the wrong form."""
    of_seq, of_attempt = _SEQ_FOLDER.fullmatch(seq), _ATTEMPT_FOLDER.fullmatch(attempt)
    return AttemptName(int(of_seq[1]), of_attempt[1]) if of_seq and of_attempt else None
