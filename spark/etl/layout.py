"""Where things are in the output of a job; the only module that builds and parses these names.

    OUTPUT/
      _pybroker/
        output.json                           whose output this is
        plans/000000000012.json               what the run of this number reads
        attempts/000000000012-<attempt>.json  who writes; locked as long as the writer lives
        commits/000000000012-0000.json        what the run gave: number, revision
      data/pybroker_seq=000000000012/pybroker_attempt=<attempt>/[column=value/...]part-*.parquet
      dead_letters/pybroker_seq=000000000012/pybroker_attempt=<attempt>/part-*.parquet

`dead_letters` may be a folder elsewhere. Only files that a commit names belong to the output; the
commit that counts is the one of the highest revision of its number.
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
"""Columns of the output may not begin with it: it marks the folders of runs and attempts."""
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
    """A result: the number of the run, and how often it was made again since."""

    seq: int
    revision: int


class AttemptName(NamedTuple):
    """One try to write the result of a run."""

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
    """Relative to `data` or to the folder of dead letters."""
    return seq_folder(name.seq) / f"{ATTEMPT_COLUMN}={name.attempt}"


def seq_folder(seq: int) -> Path:
    return Path(f"{SEQ_COLUMN}={seq:012d}")


def is_seq_folder(name: str) -> bool:
    return _SEQ_FOLDER.fullmatch(name) is not None


def temporary_file() -> str:
    """A name for a file that is about to get its real name."""
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
    """The attempt that wrote `seq`/`attempt`, two names of folders."""
    of_seq, of_attempt = _SEQ_FOLDER.fullmatch(seq), _ATTEMPT_FOLDER.fullmatch(attempt)
    return AttemptName(int(of_seq[1]), of_attempt[1]) if of_seq and of_attempt else None
