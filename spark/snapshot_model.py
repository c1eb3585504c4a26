"""A snapshot: which offsets of which partitions are meant, as one frozen value that is written as
JSON.

It says what the cluster said when it was taken, and nothing changes it afterwards. Every partition
is cut by itself: the cut is consistent within a partition, and no moment common to all of them.

The form of the document (version 1):

    {"version": 1, "id": "01J...", "clusterId": "...", "createdAtMs": 1780000000000,
     "isolation": "read_committed", "bootstrap": "broker:9092", "parent": null,
     "topics": {"orders": {"topicId": "...", "partitions":
         {"0": {"start": 100, "end": 250, "logStart": 0, "leaderEpoch": 7}}}}}
"""

from __future__ import annotations

import contextlib
import enum
import json
import os
import re
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pybroker.client.blocking import run_blocking
from pybroker.client.offset_lookup import ISOLATION_LEVELS
from pybroker.client.range_options import parse_range_options
from pybroker.client.range_reader import PartitionRange
from pybroker.errors import PybrokerError
from pybroker.model import NO_EPOCH, NO_OFFSET, TopicPartition, topic_name_fault
from pybroker.spark.readability import Readability, readability

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

VERSION: Final = 1
OFFSET_MAX: Final = 2**63 - 1
INT_MAX: Final = 2**31 - 1


class SnapshotError(PybrokerError):
    """A snapshot cannot be taken, read or used; the text is one line that says what to change."""


@dataclass(frozen=True, slots=True)
class PartitionCut:
    """The offsets from `start` up to, not including, `end`; where the log began and which leader
    epoch it had when the cut was made (-1: unknown). 0 <= `start` <= `end`."""

    start: int
    end: int
    log_start: int = NO_OFFSET
    leader_epoch: int = NO_EPOCH


@dataclass(frozen=True, slots=True)
class TopicCut:
    """`topic_id` is the UUID as text, "" where the cluster gives topics no ids. Partitions are in
    the order of their numbers."""

    topic_id: str
    partitions: Mapping[int, PartitionCut] = field(hash=False)


class Change(enum.Enum):
    """What became of a partition from one snapshot to the next."""

    NEW = "new"
    GROWN = "grown"
    SAME = "same"
    SHRUNK = "shrunk"
    """It ends before where it ended: an unclean election took records."""
    RECREATED = "recreated"
    """It belongs to another topic of the same name."""
    REMOVED = "removed"


@dataclass(frozen=True, slots=True)
class PartitionChange:
    """`offsets` is how much the end moved; for a partition that is new all that it has, and
    negative where it lost some."""

    topic_partition: TopicPartition
    change: Change
    offsets: int
    before: PartitionCut | None
    after: PartitionCut | None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Topics in the order of their names. `created_at_ms` in ms since 1970 by the clock of the
    machine that took it; `isolation` is read_committed or read_uncommitted; `parent` is the id of
    the snapshot that it goes on from; `bootstrap` the addresses at which it was taken."""

    id: str
    cluster_id: str
    created_at_ms: int
    isolation: str
    topics: Mapping[str, TopicCut] = field(hash=False)
    parent: str | None = None
    bootstrap: str = ""
    version: int = VERSION

    def ranges(self) -> list[PartitionRange]:
        """All partitions, also those without any offsets, by topic and number."""
        return [
            PartitionRange(
                topic, number, cut.start, cut.end, found.topic_id, cut.leader_epoch, cut.log_start
            )
            for topic, found in self.topics.items()
            for number, cut in found.partitions.items()
        ]

    def counts(self) -> dict[str, int]:
        """How many offsets of each topic: an upper bound of the rows, as compacted records, markers
        and aborted records have offsets, too."""
        return {
            topic: sum(cut.end - cut.start for cut in found.partitions.values())
            for topic, found in self.topics.items()
        }

    def diff(self, previous: Snapshot) -> list[PartitionChange]:
        """What became of each partition since `previous`, by topic and number."""
        before, after = previous._cuts(), self._cuts()
        return [_change(key, before.get(key), after.get(key)) for key in sorted({*before, *after})]

    def is_readable(
        self, *, bootstrap: str | None = None, conf: Mapping[str, str] | None = None
    ) -> Readability:
        """Whether all of it can still be read, as the cluster says now: true, or false with the
        `problems` of each partition. `warnings` name topics from which compaction may have removed
        records unseen. `conf` are options of the client under Kafka's names.

        Raises ConfigError, and NoBrokers where nobody answers.
        """
        options, _ = parse_range_options(conf or {}, bootstrap_servers=self._servers(bootstrap))
        return run_blocking(
            lambda: readability(
                options,
                self.ranges(),
                cluster_id=self.cluster_id,
                created_at_ms=self.created_at_ms,
            )
        )

    def read(
        self,
        spark: SparkSession,
        mode: str = "append",
        include_headers: bool = False,
        columns: str | Sequence[str] | None = None,
        min_partitions: int | None = None,
        max_bytes_per_partition: str = "128m",
        *,
        bootstrap: str | None = None,
        conf: Mapping[str, str] | None = None,
    ) -> DataFrame:
        """Its records as rows: `spark.read.format("pybroker")` with this document. `bootstrap` are
        the brokers to ask, if not those where the snapshot was taken; `conf` further options of
        the data source (failOnDataLoss, kafka.client.id, ...)."""
        names = columns if columns is None or isinstance(columns, str) else ",".join(columns)
        given: dict[str, object] = {
            "snapshot": self.to_json(),
            "kafka.bootstrap.servers": self._servers(bootstrap),
            "mode": mode,
            "columns": names,
            "includeHeaders": "true" if include_headers else None,
            "minPartitions": min_partitions,
            "maxBytesPerPartition": max_bytes_per_partition if mode == "append" else None,
        }
        reader = spark.read.format("pybroker")
        for name, value in {**given, **(conf or {})}.items():
            if value is not None:
                reader = reader.option(name, str(value))
        return reader.load()

    def _servers(self, given: str | None) -> str:
        if not given and not self.bootstrap:
            raise SnapshotError(
                f"snapshot {self.id} does not say where it was taken: give bootstrap='host:port'"
            )
        return given or self.bootstrap

    def _cuts(self) -> dict[TopicPartition, tuple[str, PartitionCut]]:
        return {
            TopicPartition(topic, number): (found.topic_id, cut)
            for topic, found in self.topics.items()
            for number, cut in found.partitions.items()
        }

    def to_json(self) -> str:
        """The document, in one line. The same snapshot gives the same text."""
        document = {
            "version": self.version,
            "id": self.id,
            "clusterId": self.cluster_id,
            "createdAtMs": self.created_at_ms,
            "isolation": self.isolation,
            "bootstrap": self.bootstrap,
            "parent": self.parent,
            "topics": {
                topic: {
                    "topicId": found.topic_id,
                    "partitions": {
                        str(number): {
                            "start": cut.start,
                            "end": cut.end,
                            "logStart": cut.log_start,
                            "leaderEpoch": cut.leader_epoch,
                        }
                        for number, cut in found.partitions.items()
                    },
                }
                for topic, found in self.topics.items()
            },
        }
        return json.dumps(document, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Snapshot:
        """Raises SnapshotError with every fault."""
        return parse_snapshot(text)

    def save(self, path: Path | str) -> None:
        """Write the document to a file, which is there as a whole or not at all. Raises
        SnapshotError."""
        target = Path(path)
        try:
            handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
            try:
                with os.fdopen(handle, "w", encoding="utf-8") as file:
                    file.write(self.to_json() + "\n")
                    file.flush()
                    os.fsync(file.fileno())
                Path(name).replace(target)
            except BaseException:
                with contextlib.suppress(OSError):
                    Path(name).unlink()
                raise
            _sync_folder(target.parent)
        except OSError as error:
            raise SnapshotError(
                f"the snapshot cannot be written to {target}: {error.strerror or error}"
            ) from error

    @classmethod
    def load(cls, path: Path | str) -> Snapshot:
        """The snapshot in a file. Raises SnapshotError."""
        try:
            text = Path(path).read_text("utf-8")
        except OSError as error:
            raise SnapshotError(
                f"the snapshot {path} cannot be read: {error.strerror or error}"
            ) from error
        except UnicodeDecodeError as error:
            raise SnapshotError(f"{path} is no snapshot: it is not UTF-8 text") from error
        try:
            return parse_snapshot(text)
        except SnapshotError as error:
            raise SnapshotError(f"{path}: {error}") from error


def _change(
    key: TopicPartition,
    before: tuple[str, PartitionCut] | None,
    after: tuple[str, PartitionCut] | None,
) -> PartitionChange:
    old, new = before and before[1], after and after[1]
    if before is None or old is None:
        assert new is not None
        return PartitionChange(key, Change.NEW, new.end - new.start, None, new)
    if after is None or new is None:
        return PartitionChange(key, Change.REMOVED, old.start - old.end, old, None)
    if before[0] and after[0] and before[0] != after[0]:
        return PartitionChange(key, Change.RECREATED, new.end - new.start, old, new)
    grown = new.end - old.end
    change = Change.GROWN if grown > 0 else Change.SHRUNK if grown < 0 else Change.SAME
    return PartitionChange(key, change, grown, old, new)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


# Reading the document


def parse_snapshot(text: str) -> Snapshot:
    """Raises SnapshotError with every fault."""
    try:
        document = json.loads(text, object_pairs_hook=_object)
    except (ValueError, RecursionError) as error:
        raise SnapshotError(f"the snapshot is not valid JSON: {error}") from error
    if not isinstance(document, dict):
        raise SnapshotError("the snapshot is no JSON object: write it with Snapshot.to_json()")
    version = document.get("version")
    if version != VERSION or isinstance(version, bool):
        raise SnapshotError(
            f"the snapshot has version {version!r}, this program knows {VERSION}: use the version"
            " of pybroker that wrote it, or a newer one"
        )
    reader = _Reader()
    snapshot = Snapshot(
        id=reader.text(document, "id", "the snapshot"),
        cluster_id=reader.text(document, "clusterId", "the snapshot", may_be_empty=True),
        created_at_ms=reader.number(document, "createdAtMs", "the snapshot", 0, OFFSET_MAX),
        isolation=reader.text(document, "isolation", "the snapshot"),
        topics=reader.topics(document),
        parent=None
        if document.get("parent") is None
        else reader.text(document, "parent", "the snapshot"),
        bootstrap=reader.text(document, "bootstrap", "the snapshot", may_be_empty=True),
    )
    if snapshot.isolation not in ("", *ISOLATION_LEVELS):
        reader.faults.append(
            f"isolation is {snapshot.isolation!r}, expected {' or '.join(ISOLATION_LEVELS)}"
        )
    reader.known(document, _KEYS, "the snapshot")
    if reader.faults:
        raise SnapshotError("; ".join(reader.faults))
    return snapshot


_NUMBER: Final = re.compile("0|[1-9][0-9]{0,9}")
_KEYS: Final = frozenset(
    {"version", "id", "clusterId", "createdAtMs", "isolation", "bootstrap", "parent", "topics"}
)
_TOPIC_KEYS: Final = frozenset({"topicId", "partitions"})
_CUT_KEYS: Final = frozenset({"start", "end", "logStart", "leaderEpoch"})


class _Reader:
    """Takes values out of objects; faults are collected, and stand-ins given for what is wrong."""

    def __init__(self) -> None:
        self.faults: list[str] = []

    def known(self, row: Mapping[str, object], keys: frozenset[str], where: str) -> None:
        unknown = row.keys() - keys
        if unknown:
            self.faults.append(f"unknown key {', '.join(sorted(unknown))} in {where}")

    def text(
        self, row: Mapping[str, object], key: str, where: str, *, may_be_empty: bool = False
    ) -> str:
        value = row.get(key, "" if may_be_empty else None)
        if isinstance(value, str) and (value or may_be_empty):
            return value
        self.faults.append(f"{key} of {where} is {_shown(value)}, expected text")
        return ""

    def number(self, row: Mapping[str, object], key: str, where: str, low: int, high: int) -> int:
        value = row.get(key)
        if isinstance(value, int) and not isinstance(value, bool) and low <= value <= high:
            return value
        self.faults.append(
            f"{key} of {where} is {_shown(value)}, expected a whole number from {low} to {high}"
        )
        return 0

    def rows(
        self, row: Mapping[str, object], key: str, where: str
    ) -> Iterator[tuple[str, Mapping[str, object]]]:
        """The objects in an object that must not be empty, by name."""
        value = row.get(key)
        if not isinstance(value, dict) or not value:
            self.faults.append(f"{key} of {where} is {_shown(value)}, expected an object with keys")
            return
        for name, inner in value.items():
            if isinstance(inner, dict):
                yield name, inner
            else:
                self.faults.append(f"{name} of {key} is {_shown(inner)}, expected an object")

    def topics(self, document: Mapping[str, object]) -> dict[str, TopicCut]:
        found = {}
        for topic, row in self.rows(document, "topics", "the snapshot"):
            fault = topic_name_fault(topic)
            if fault is not None:
                self.faults.append(fault)
            self.known(row, _TOPIC_KEYS, f"topic {topic}")
            topic_id = self.text(row, "topicId", f"topic {topic}", may_be_empty=True)
            if topic_id and not _is_uuid(topic_id):
                self.faults.append(f"topicId of topic {topic} is {topic_id!r}, expected a UUID")
            cuts = dict(self.partitions(topic, row))
            found[topic] = TopicCut(topic_id, dict(sorted(cuts.items())))
        return dict(sorted(found.items()))

    def partitions(
        self, topic: str, row: Mapping[str, object]
    ) -> Iterator[tuple[int, PartitionCut]]:
        for name, inner in self.rows(row, "partitions", f"topic {topic}"):
            if not _NUMBER.fullmatch(name) or int(name) > INT_MAX:
                self.faults.append(f"partition {name!r} of topic {topic} is not a number")
                continue
            where = f"{topic}-{name}"
            self.known(inner, _CUT_KEYS, where)
            start = self.number(inner, "start", where, 0, OFFSET_MAX)
            end = self.number(inner, "end", where, 0, OFFSET_MAX)
            if start > end:
                self.faults.append(f"{where} starts at {start}, behind its end {end}: swap them")
            yield (
                int(name),
                PartitionCut(
                    start,
                    end,
                    self.number(
                        {"logStart": NO_OFFSET, **inner}, "logStart", where, -1, OFFSET_MAX
                    ),
                    self.number(
                        {"leaderEpoch": NO_EPOCH, **inner}, "leaderEpoch", where, -1, INT_MAX
                    ),
                ),
            )


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Names may not repeat: readers of JSON differ in which of the values they take."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {twice!r} stands in an object more than once")
    return found


def _is_uuid(text: str) -> bool:
    try:
        return str(uuid.UUID(text)) == text
    except ValueError:
        return False


def _shown(value: object) -> str:
    text = "missing" if value is None else json.dumps(value)
    return text if len(text) <= 60 else f"{text[:60]}..."
