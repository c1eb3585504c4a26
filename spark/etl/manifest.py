"""The JSON documents that a job stores in its output. An unknown version or a missing field raises
OutputError."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal, TypeAlias

from pybroker.spark.etl.files import OutputError
from pybroker.spark.etl.layout import CommitName

VERSION: Final = 1

Mode: TypeAlias = Literal["append", "latest"]
Json: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True)
class Owner:
    """The job that owns an output. Only a job with the same name, mode and partition columns may
    write to the output."""

    job: str
    mode: Mode
    partition_by: tuple[str, ...] = ()


@dataclass(frozen=True)
class Plan:
    """The snapshot that the run `seq` reads, as JSON. A repeated run reads the same offsets."""

    job: str
    seq: int
    created_at_ms: int
    snapshot: Json


@dataclass(frozen=True)
class AttemptWriter:
    """The content of an attempt's lock file: the process that attempts to write the result of the
    run `seq`. During the attempt, this process holds a lock on the file."""

    job: str
    seq: int
    attempt: str
    started_at_ms: int
    host: str
    process: int


@dataclass(frozen=True)
class OutputFile:
    """A Parquet file of a result. `size` is in bytes. `path` is relative to the output folder. For
    dead letters, `path` is relative to their folder."""

    path: str
    size: int
    rows: int


@dataclass(frozen=True)
class DeadLetters:
    """The records of a run that could not be decoded. `folder` is an absolute path, or relative to
    the output."""

    folder: str
    rows: int = 0
    files: tuple[OutputFile, ...] = ()
    reasons: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Commit:
    """The result of the run `seq`. With the mode `latest`, a commit replaces all earlier commits.

    - `schema`: Spark's JSON form of the columns, including `partition_by`
    - `rows_read`: None if the records were not counted
    - `lost`: ranges deleted before the run read them, each as [topic, partition, first offset, next
      offset]
    - `tombstones`: `keep` or `drop` (None: unknown)
    """

    job: str
    seq: int
    revision: int
    attempt: str
    mode: Mode
    committed_at_ms: int
    snapshot: Json
    schema: Json
    partition_by: tuple[str, ...]
    rows_read: int | None
    rows: int
    files: tuple[OutputFile, ...]
    dead_letters: DeadLetters | None = None
    lost: tuple[tuple[str, int, int, int], ...] = ()
    seconds: float = 0.0
    decode_schema: str | None = None
    tombstones: str | None = None

    @property
    def name(self) -> CommitName:
        return CommitName(self.seq, self.revision)

    @property
    def size(self) -> int:
        """The total size of the files in bytes."""
        return sum(file.size for file in self.files)


Document: TypeAlias = Owner | Plan | AttemptWriter | Commit


def to_bytes(document: Document) -> bytes:
    value = {"version": VERSION, **asdict(document)}
    return json.dumps(value, ensure_ascii=False, indent=1).encode() + b"\n"


def owner_from(content: bytes, where: str) -> Owner:
    get = _Fields(content, where)
    return Owner(get.text("job"), _mode(get), tuple(get.texts("partition_by")))


def plan_from(content: bytes, where: str) -> Plan:
    get = _Fields(content, where)
    return Plan(
        get.text("job"), get.number("seq"), get.number("created_at_ms"), get.map("snapshot")
    )


def attempt_writer_from(content: bytes, where: str) -> AttemptWriter:
    get = _Fields(content, where)
    return AttemptWriter(
        job=get.text("job"),
        seq=get.number("seq"),
        attempt=get.text("attempt"),
        started_at_ms=get.number("started_at_ms"),
        host=get.text("host"),
        process=get.number("process"),
    )


def commit_from(content: bytes, where: str) -> Commit:
    get = _Fields(content, where)
    letters = get.optional("dead_letters")
    return Commit(
        job=get.text("job"),
        seq=get.number("seq"),
        revision=get.number("revision"),
        attempt=get.text("attempt"),
        mode=_mode(get),
        committed_at_ms=get.number("committed_at_ms"),
        snapshot=get.map("snapshot"),
        schema=get.map("schema"),
        partition_by=tuple(get.texts("partition_by")),
        rows_read=get.number("rows_read") if get.optional("rows_read") is not None else None,
        rows=get.number("rows"),
        files=_files(get),
        dead_letters=_dead_letters(letters, where) if letters is not None else None,
        lost=tuple(_lost(get, item) for item in get.items("lost")),
        seconds=float(get.get("seconds", int | float)),
        decode_schema=get.text("decode_schema") if get.optional("decode_schema") else None,
        tombstones=get.text("tombstones") if get.optional("tombstones") else None,
    )


_TYPES: Final[Mapping[Any, str]] = {
    str: "text",
    int: "a whole number",
    int | float: "a number",
    list: "a list",
    dict: "an object",
}


class _Fields:
    """Reads the fields of one document. A wrong type raises OutputError."""

    def __init__(self, content: bytes | Json, where: str) -> None:
        self._where = where
        if isinstance(content, bytes):
            self._value = _parse(content, where)
        else:
            self._value = content

    def get(self, name: str, kind: Any) -> Any:
        if name not in self._value:
            raise OutputError(f"{self._where}: the field {name} is missing")
        value = self._value[name]
        if not isinstance(value, kind) or isinstance(value, bool):
            raise self.wrong(name, value, _TYPES[kind])
        return value

    def wrong(self, name: str, value: object, expected: str) -> OutputError:
        return OutputError(
            f"{self._where}: the field {name} is {json.dumps(value)[:80]}, expected {expected}"
        )

    def optional(self, name: str) -> object:
        return self._value.get(name)

    def text(self, name: str) -> str:
        return str(self.get(name, str))

    def number(self, name: str) -> int:
        return int(self.get(name, int))

    def map(self, name: str) -> Json:
        found: Json = self.get(name, dict)
        return found

    def items(self, name: str) -> list[Any]:
        return list(self.get(name, list))

    def texts(self, name: str) -> list[str]:
        found = self.items(name)
        if not all(isinstance(item, str) for item in found):
            raise self.wrong(name, found, "a list of texts")
        return found


def _parse(content: bytes, where: str) -> Json:
    try:
        value = json.loads(content)
    except ValueError as error:
        raise OutputError(f"{where}: not a JSON document ({error})") from error
    if not isinstance(value, dict):
        raise OutputError(f"{where}: not a JSON object")
    if value.get("version") != VERSION:
        raise OutputError(
            f"{where}: unknown version {json.dumps(value.get('version'))} (expected"
            f" {VERSION}); a newer pybroker may have written the file"
        )
    return value


def _mode(get: _Fields) -> Mode:
    value = get.text("mode")
    if value == "append":
        return "append"
    if value == "latest":
        return "latest"
    raise get.wrong("mode", value, "append or latest")


def _files(get: _Fields) -> tuple[OutputFile, ...]:
    return tuple(_file(get, item) for item in get.items("files"))


def _file(get: _Fields, item: object) -> OutputFile:
    if not isinstance(item, dict):
        raise get.wrong("files", item, "objects")
    fields = _Fields(item, get._where)
    return OutputFile(fields.text("path"), fields.number("size"), fields.number("rows"))


def _dead_letters(value: object, where: str) -> DeadLetters:
    if not isinstance(value, dict):
        raise OutputError(f"{where}: the field dead_letters is not a JSON object")
    get = _Fields(value, where)
    reasons = {str(reason): int(count) for reason, count in get.map("reasons").items()}
    return DeadLetters(get.text("folder"), get.number("rows"), _files(get), reasons)


def _lost(get: _Fields, item: object) -> tuple[str, int, int, int]:
    match item:
        case [str(topic), int(partition), int(start), int(end)]:
            return topic, partition, start, end
    raise get.wrong("lost", item, "lists of topic, partition, first offset and next offset")
