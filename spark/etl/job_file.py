"""Reads and checks the YAML file of a job. All faults are reported at once, each in one line with
file, line, key and the expected value."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, TypeVar, get_args

from pybroker.errors import ConfigError
from pybroker.spark.etl import job_model, layout
from pybroker.spark.etl.job_model import (
    DeadLetterSink,
    Decode,
    JobFile,
    OnError,
    Part,
    Sink,
    Source,
    Transform,
)
from pybroker.spark.etl.job_names import FOLDER, column_faults, folder_fault, topic_faults
from pybroker.spark.etl.moments import timestamp_ms
from pybroker.spark.etl.yaml_file import Fault, Key, Tree, parse
from pybroker.spark.options import client_option_fault, has_effect

T = TypeVar("T")

_SECTIONS: Final = ("name", "source", "decode", "transform", "sink", "dlq", "spark")
_SOURCE: Final = (
    "bootstrap.servers",
    "topics",
    "isolation.level",
    "starting",
    "mode",
    "tombstones",
    "include-headers",
    "fail-on-data-loss",
    "max-bytes-per-run",
    "max-bytes-per-partition",
    "min-partitions",
)
_PART: Final = ("format", "schema", "unknown-fields", "options")
_SINK: Final = ("format", "path", "partition-by", "compression", "files", "on-schema-change")
_FORMATS: Final = get_args(job_model.Format)
_COMPRESSIONS: Final = ("snappy", "zstd", "gzip", "lz4", "none")
_JSON_OPTIONS: Final = (
    "timestampFormat",
    "timestampNTZFormat",
    "dateFormat",
    "timeZone",
    "locale",
    "allowComments",
    "allowUnquotedFieldNames",
    "allowSingleQuotes",
    "allowNumericLeadingZeros",
    "allowNonNumericNumbers",
    "primitivesAsString",
    "prefersDecimal",
)
"""Options of Spark's JSON reader that change how a text is parsed. Spark's options for corrupt
texts are not allowed."""
_FIXED_KAFKA: Final = (
    "kafka.bootstrap.servers",
    "kafka.isolation.level",
    "kafka.group.id",
    "kafka.auto.offset.reset",
    "kafka.enable.auto.commit",
    "kafka.key.deserializer",
    "kafka.value.deserializer",
)
_SIZE: Final = re.compile(r"(\d+)\s*([kmgt]?)b?", re.IGNORECASE)
_UNITS: Final = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,100}")
_SERVER: Final = re.compile(r"\S+:\d{1,5}")
_FUNCTION: Final = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
COUNT_MAX: Final = 2**31 - 1


def load(path: str | os.PathLike[str], environment: Mapping[str, str] | None = None) -> JobFile:
    """Return the job in a file. Raises ConfigError with a list of all faults of the file."""
    file = Path(path)
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError([f"{file}: cannot be read: {error.strerror}"]) from error
    except UnicodeDecodeError as error:
        raise ConfigError([f"{file}: not UTF-8 at byte {error.start}"]) from error
    return from_text(text, file, environment)


def from_text(text: str, file: Path, environment: Mapping[str, str] | None = None) -> JobFile:
    """Return the job in a text. `file` names the text in messages. Relative paths in the text are
    relative to the folder of `file`. Raises ConfigError."""
    tree = parse(text, os.environ if environment is None else environment)
    reader = _Reader(tree, file)
    job = reader.job() if () in tree.values else None
    if tree.faults:
        faults = sorted(tree.faults, key=lambda fault: (fault.line, fault.key))
        raise ConfigError([_sentence(file, fault) for fault in faults])
    assert job is not None
    return job


def _sentence(file: Path, fault: Fault) -> str:
    key = f"{'.'.join(fault.key)}: " if fault.key else ""
    return f"{file}:{fault.line}: {key}{fault.text}"


class _Reader:
    """Reads a job file, and collects all faults: a method returns a default for a faulty value."""

    def __init__(self, tree: Tree, file: Path) -> None:
        self._tree = tree
        self._file = file
        self._unreadable = {fault.key for fault in tree.faults}
        self._misspelled: set[Key] = set()

    def job(self) -> JobFile:
        self._known((), _SECTIONS)
        source = self._source()
        decode = self._decode()
        sink = self._sink()
        job = JobFile(
            name=self._matching(("name",), _NAME, "letters, digits, '.', '_' and '-'"),
            file=self._file,
            source=source,
            sink=sink,
            decode=decode,
            transform=self._transform(),
            dead_letters=self._dead_letters(decode),
            spark=self._spark(),
        )
        self._check_together(job)
        return job

    # Sections

    def _source(self) -> Source:
        at = ("source",)
        self._section(at, needed=True)
        kafka = self._kafka()
        kafka_keys = [key for key in self._children(at) if key.startswith("kafka.")]
        self._known(at, _SOURCE, also=kafka_keys)
        return Source(
            bootstrap_servers=self._servers((*at, "bootstrap.servers")),
            topics=self._topics((*at, "topics")),
            isolation=self._one_of(
                (*at, "isolation.level"), "read_committed", ("read_committed", "read_uncommitted")
            ),
            starting=self._starting((*at, "starting")),
            mode=self._one_of((*at, "mode"), "append", ("append", "latest")),
            tombstones=self._one_of((*at, "tombstones"), "keep", ("keep", "drop")),
            include_headers=self._flag((*at, "include-headers"), False),
            fail_on_data_loss=self._flag((*at, "fail-on-data-loss"), True),
            max_bytes_per_run=self._size((*at, "max-bytes-per-run")),
            max_bytes_per_partition=self._size((*at, "max-bytes-per-partition")),
            min_partitions=self._count((*at, "min-partitions")),
            kafka=kafka,
        )

    def _kafka(self) -> dict[str, str]:
        """Return the client's options under the names of Spark's Kafka source, such as
        `kafka.security.protocol`."""
        found = {}
        for key in self._children(("source",)):
            if not key.startswith("kafka."):
                continue
            at = ("source", key)
            if key in _FIXED_KAFKA:
                self._fault(at, "cannot be set here: use the keys of the section source")
                continue
            value = self._tree.values.get(at)
            if value is None or isinstance(value, dict | list):
                self._fault(at, "expected a plain value")
            else:
                text = str(value).lower() if isinstance(value, bool) else str(value)
                fault = client_option_fault(key, text)
                if fault is not None:
                    self._fault(at, fault)
                elif has_effect(key):
                    found[key] = text
        return found

    def _decode(self) -> Decode:
        at = ("decode",)
        self._section(at)
        self._known(at, ("value", "key", "on-error"))
        choices: tuple[OnError, ...] = get_args(OnError)
        on_error = self._one_of((*at, "on-error"), choices[0], choices)
        return Decode(self._part((*at, "value")), self._part((*at, "key")), on_error)

    def _part(self, at: Key) -> Part:
        self._section(at)
        self._known(at, _PART)
        format_ = self._one_of((*at, "format"), "raw", _FORMATS)
        if format_ != "json" and self._is_faultless((*at, "format")):
            for key in _PART[1:]:
                if self._given((*at, key)):
                    self._fault((*at, key), f"has no meaning for the format {format_}")
        schema = self._schema((*at, "schema")) if format_ == "json" else None
        return Part(
            format=format_,
            schema=schema,
            unknown_fields=self._one_of((*at, "unknown-fields"), "error", ("error", "ignore")),
            options=self._strings((*at, "options"), _JSON_OPTIONS),
        )

    def _schema(self, at: Key) -> str | None:
        text = self._text(at, "a Spark DDL (id BIGINT NOT NULL, name STRING) or file:PATH")
        if text is None:
            return None
        if text.startswith("file:"):
            path = self._file.parent / text.removeprefix("file:")
            try:
                text = path.read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
                self._fault(at, f"{path} cannot be read: {reason}")
                return None
        if not text.strip():
            self._fault(at, "is empty; expected a Spark DDL (id BIGINT NOT NULL, name STRING)")
            return None
        return text.strip()

    def _transform(self) -> Transform | None:
        at = ("transform",)
        if not self._given(at):
            return None
        value = self._tree.values[at]
        if isinstance(value, str):
            if not _FUNCTION.fullmatch(value):
                self._fault(at, f"expected module:function or sql: TEXT, found {value!r}")
            return Transform(function=value, folder=self._file.absolute().parent)
        if not isinstance(value, dict):
            self._fault(at, "expected module:function or sql: TEXT")
            return None
        self._known(at, ("sql",))
        return Transform(sql=self._text((*at, "sql"), "a SELECT over the view records"))

    def _sink(self) -> Sink:
        at = ("sink",)
        self._section(at, needed=True)
        self._known(at, _SINK)
        self._one_of((*at, "format"), "parquet", ("parquet",))
        return Sink(
            path=self._folder((*at, "path")) or Path("/"),
            partition_by=self._columns((*at, "partition-by")),
            compression=self._one_of((*at, "compression"), "snappy", _COMPRESSIONS),
            files=self._count((*at, "files")),
            on_schema_change=self._one_of(
                (*at, "on-schema-change"), "fail", ("fail", "add-columns")
            ),
        )

    def _dead_letters(self, decode: Decode) -> DeadLetterSink | None:
        at = ("dlq",)
        if not self._given(at):
            if decode.on_error == "dlq" and self._is_faultless(at):
                self._fault(("decode", "on-error"), "dlq needs the section dlq with max-ratio")
            return None
        self._section(at)
        self._known(at, ("format", "path", "max-ratio"))
        if decode.on_error != "dlq" and self._is_faultless(("decode", "on-error")):
            self._fault(at, "has no effect without decode.on-error: dlq")
        self._one_of((*at, "format"), "parquet", ("parquet",))
        path = self._folder((*at, "path")) if self._given((*at, "path")) else None
        return DeadLetterSink(self._ratio((*at, "max-ratio")), path)

    def _spark(self) -> dict[str, str]:
        at = ("spark",)
        self._section(at)
        names = self._children(at)
        for name in names:
            if name != "master" and not name.startswith("spark."):
                self._fault((*at, name), "expected master or a Spark option (spark.*)")
        return self._strings(at, names)

    def _check_together(self, job: JobFile) -> None:
        source, sink = job.source, job.sink
        if source.mode == "latest" and self._is_faultless(("source", "mode")):
            if source.max_bytes_per_run is not None:
                self._fault(
                    ("source", "max-bytes-per-run"),
                    "cannot limit a run of mode latest, which always reads the topics from"
                    " their beginning",
                )
            if source.starting != "earliest":
                self._fault(("source", "starting"), "must be earliest with mode latest")
            if source.tombstones != "keep":
                self._fault(
                    ("source", "tombstones"),
                    "has no effect: mode latest always drops tombstones; remove it",
                )
        letters = job.dead_letters.path if job.dead_letters else None
        if not self._is_faultless(("sink", "path")) or not self._is_faultless(("dlq", "path")):
            return
        if letters is not None and (letters == sink.path or sink.path in letters.parents):
            self._fault(
                ("dlq", "path"),
                f"is inside sink.path; leave it out to use the folder {layout.DEAD_LETTERS}"
                " in sink.path",
            )

    # Values

    def _fault(self, key: Key, text: str) -> None:
        if key not in self._unreadable:
            self._tree.faults.append(Fault(self._tree.line(key), key, text))

    def _missing(self, key: Key, expected: str = "") -> None:
        """Report that a required key is missing. Report nothing if another fault explains the
        missing key: the key is misspelled, or a parent key has a fault."""
        if self._is_faultless(key):
            self._fault(key, f"is missing; expected {expected}" if expected else "is missing")

    def _is_faultless(self, key: Key) -> bool:
        """Return whether the key and its parent keys are free of faults and misspellings so far."""
        faulty = {fault.key for fault in self._tree.faults} | self._misspelled
        return not any(key[:length] in faulty for length in range(len(key) + 1))

    def _given(self, key: Key) -> bool:
        return self._tree.values.get(key) is not None

    def _children(self, at: Key) -> list[str]:
        return [key[-1] for key in self._tree.lines if key[:-1] == at and len(key) == len(at) + 1]

    def _section(self, at: Key, needed: bool = False) -> None:
        value = self._tree.values.get(at)
        if value is None and needed:
            self._missing(at)
        elif value is not None and not isinstance(value, dict):
            self._fault(at, f"expected keys and values, found {value!r}")

    def _known(self, at: Key, names: Collection[str], also: Collection[str] = ()) -> None:
        for name in self._children(at):
            if name not in names and name not in also:
                close = difflib.get_close_matches(name, names, 1)
                self._misspelled.update((*at, name) for name in close)
                hint = f"did you mean {close[0]}?" if close else f"known are {', '.join(names)}"
                self._fault((*at, name), f"is not a key of a job file; {hint}")

    def _text(self, at: Key, expected: str) -> str | None:
        value = self._tree.values.get(at)
        if value is None:
            self._missing(at, expected)
        elif not isinstance(value, str) or not value.strip():
            self._fault(at, f"expected {expected}, found {value!r}")
        else:
            return value
        return None

    def _matching(self, at: Key, pattern: re.Pattern[str], expected: str) -> str:
        text = self._text(at, expected)
        if text is not None and not pattern.fullmatch(text):
            self._fault(at, f"expected {expected}, found {text!r}")
        return text or ""

    def _one_of(self, at: Key, default: T, choices: Sequence[T]) -> T:
        value: Any = self._tree.values.get(at)
        if value is None:
            return default
        if value not in choices:
            self._fault(at, f"expected {' or '.join(map(str, choices))}, found {value!r}")
            return default
        found: T = value
        return found

    def _flag(self, at: Key, default: bool) -> bool:
        value = self._tree.values.get(at)
        if value is None or isinstance(value, bool):
            return default if value is None else value
        self._fault(at, f"expected true or false, found {value!r}")
        return default

    def _count(self, at: Key) -> int | None:
        expected = f"a count, 1 to {COUNT_MAX}"
        found = self._number(
            at, lambda value: isinstance(value, int) and 0 < value <= COUNT_MAX, expected
        )
        return None if found is None else int(found)

    def _ratio(self, at: Key) -> float:
        expected = "the part of a run's records that may be dead letters, 0.0 to 1.0"
        if not self._given(at):
            self._missing(at, expected)
            return 0.0
        good = self._number(
            at, lambda value: isinstance(value, int | float) and 0 <= value <= 1, expected
        )
        return float(good or 0)

    def _number(self, at: Key, good: Callable[[Any], bool], expected: str) -> float | None:
        value: Any = self._tree.values.get(at)
        if value is None:
            return None
        if isinstance(value, bool) or not good(value):
            self._fault(at, f"expected {expected}, found {value!r}")
            return None
        number: float = value
        return number

    def _size(self, at: Key) -> int | None:
        value = self._tree.values.get(at)
        if value is None:
            return None
        found = _SIZE.fullmatch(str(value))
        size = int(found[1]) * _UNITS[found[2].lower()] if found else 0
        if isinstance(value, bool) or size <= 0:
            self._fault(at, f"expected a size such as 128m, found {value!r}")
            return None
        return size

    def _strings(self, at: Key, names: Collection[str]) -> dict[str, str]:
        """Return the mapping at the key `at`, with strings as values."""
        self._section(at)
        self._known(at, names)
        found = {}
        for name in self._children(at):
            value = self._tree.values.get((*at, name))
            if value is None or isinstance(value, dict | list):
                self._fault((*at, name), "expected a plain value")
            else:
                found[name] = str(value).lower() if isinstance(value, bool) else str(value)
        return found

    def _list(self, at: Key, expected: str) -> list[str]:
        """Return a list of texts. A single text becomes a list with one element."""
        value = self._tree.values.get(at)
        items = [value] if isinstance(value, str) else value
        if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
            self._fault(at, f"expected {expected}, found {value!r}")
            return []
        return items

    def _servers(self, at: Key) -> str:
        expected = "HOST:PORT[,HOST:PORT]"
        if not self._given(at):
            self._missing(at, expected)
            return ""
        servers = [
            server.strip() for item in self._list(at, expected) for server in item.split(",")
        ]
        if not servers and self._tree.values[at] == []:
            self._fault(at, f"expected {expected}, found none")
        wrong = [server for server in servers if not _SERVER.fullmatch(server)]
        for server in wrong:
            self._fault(at, f"expected {expected}, found {server!r}")
        return ",".join(servers)

    def _topics(self, at: Key) -> tuple[str, ...]:
        expected = "a list of topics"
        if not self._given(at):
            self._missing(at, expected)
            return ()
        topics = self._list(at, expected)
        if self._tree.values[at] == []:
            self._fault(at, f"expected {expected}, found none")
        for fault in topic_faults(topics):
            self._fault(at, fault)
        return tuple(topics)

    def _starting(self, at: Key) -> Literal["earliest"] | int:
        value = self._tree.values.get(at)
        if value is None or value == "earliest":
            return "earliest"
        try:
            return timestamp_ms(str(value))
        except ValueError:
            self._fault(
                at,
                "expected earliest, a time such as 2026-01-31T12:00:00Z or ms since 1970,"
                " found {value!r}",
            )
            return "earliest"

    def _folder(self, at: Key) -> Path | None:
        text = self._text(at, FOLDER)
        if text is None:
            return None
        text = text.removeprefix("file://")
        if fault := folder_fault(text):
            self._fault(at, fault)
        return Path(os.path.normpath(text))

    def _columns(self, at: Key) -> tuple[str, ...]:
        if not self._given(at):
            return ()
        columns = self._list(at, "a list of columns")
        for fault in column_faults(columns):
            self._fault(at, fault)
        return tuple(columns)
