"""A snapshot: the offset ranges of partitions, as one frozen value with a JSON form. There is no
common point in time for all partitions.

The form of the document:

    {"version": 1, "id": "01J...", "clusterId": "...", "createdAtMs": 1780000000000,
     "isolation": "read_committed", "bootstrap": "broker:9092", "parent": null,
     "topics": {"orders": {"topicId": "...", "partitions":
         {"0": {"start": 100, "end": 250, "logStart": 0, "leaderEpoch": 7}}}}}

If records were counted, the version is 2, and older programs refuse the document. A counted range
is divided into consecutive parts. The field "counts" of the partition, such as [[180, 75, 6117254],
[250, 70, 8192903]], has for each part: the end offset (exclusive), the number of records, and the
digest of the records' offsets.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pybroker.client.blocking import run_blocking
from pybroker.client.offset_lookup import ISOLATION_LEVELS
from pybroker.client.range_reader import PartitionRange
from pybroker.client.ranges.options import parse_range_options
from pybroker.model import TopicPartition
from pybroker.spark.cuts import (
    Change,
    PartitionChange,
    PartitionCut,
    SnapshotError,
    TopicCut,
    compare,
)
from pybroker.spark.readability import Readability, readability, recounted
from pybroker.spark.snapshot_document import (
    KEYS,
    OFFSET_MAX,
    DocumentReader,
    cut_document,
    object_of,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = [
    "Change",
    "PartitionChange",
    "PartitionCut",
    "Snapshot",
    "SnapshotError",
    "TopicCut",
    "parse_snapshot",
]

VERSION: Final = 1
VERSION_WITH_COUNTS: Final = 2


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Topics sorted by name, with their ranges. `created_at_ms` is in ms since 1970. `isolation` is
    read_committed or read_uncommitted. `parent` is the id of the earlier snapshot that this
    snapshot continues."""

    id: str
    cluster_id: str
    created_at_ms: int
    isolation: str
    topics: Mapping[str, TopicCut] = field(hash=False)
    parent: str | None = None
    bootstrap: str = ""

    @property
    def version(self) -> int:
        """The version of the document: 2 if records were counted, otherwise 1."""
        has_counts = any(cut.counts for _, cut in self._cuts().values())
        return VERSION_WITH_COUNTS if has_counts else VERSION

    def ranges(self) -> list[PartitionRange]:
        """Return the ranges of all partitions, including empty ones, sorted by topic and number."""
        return [
            PartitionRange(
                topic,
                number,
                cut.start,
                cut.end,
                found.topic_id,
                cut.leader_epoch,
                cut.log_start,
                cut.counts,
            )
            for topic, found in self.topics.items()
            for number, cut in found.partitions.items()
        ]

    def counts(self) -> dict[str, int]:
        """Return the number of offsets in the ranges of each topic. The number of rows may be
        smaller: compacted records, transaction markers and aborted records have offsets, too."""
        return {
            topic: sum(cut.end - cut.start for cut in found.partitions.values())
            for topic, found in self.topics.items()
        }

    def records(self) -> dict[str, int | None]:
        """Return the number of records of each topic when the snapshot was taken. The number is
        None if a partition of the topic was not counted."""
        found: dict[str, int | None] = {}
        for topic, cut in self.topics.items():
            numbers = [part.records for part in cut.partitions.values()]
            known = [number for number in numbers if number is not None]
            found[topic] = sum(known) if len(known) == len(numbers) else None
        return found

    def diff(self, previous: Snapshot) -> list[PartitionChange]:
        """Return the change of each partition since the snapshot `previous`, sorted by topic and
        partition number."""
        before, after = previous._cuts(), self._cuts()
        return [compare(key, before.get(key), after.get(key)) for key in sorted({*before, *after})]

    def is_readable(
        self,
        *,
        bootstrap: str | None = None,
        conf: Mapping[str, str] | None = None,
        recount: bool = False,
    ) -> Readability:
        """Ask the brokers whether the whole snapshot can still be read. If the brokers show no
        problem, `recount` also counts the records again in all ranges that have record counts.

        `conf`: client options with Kafka's names. Raises ConfigError if an option is invalid,
        NoBrokers if no broker answers.
        """
        given = {**(conf or {}), "bootstrap.servers": self._servers(bootstrap)}
        options, _ = parse_range_options(given)
        found = run_blocking(
            lambda: readability(
                options,
                self.ranges(),
                cluster_id=self.cluster_id,
                created_at_ms=self.created_at_ms,
                will_recount=recount,
            )
        )
        if not recount or not found:
            return found
        return replace(found, problems=tuple(recounted(given, self.ranges(), self.isolation)))

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
        """Return the records as rows, by `spark.read.format("pybroker")`. `bootstrap` defaults to
        the snapshot's brokers. The other arguments are options of the data source; `conf` has
        further options (failOnDataLoss, kafka.client.id, ...)."""
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
                f"snapshot {self.id} contains no broker addresses: give bootstrap='host:port'"
            )
        return given or self.bootstrap

    def _cuts(self) -> dict[TopicPartition, tuple[str, PartitionCut]]:
        return {
            TopicPartition(topic, number): (found.topic_id, cut)
            for topic, found in self.topics.items()
            for number, cut in found.partitions.items()
        }

    def to_json(self) -> str:
        """Return the document in one line. Equal snapshots give equal texts."""
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
                        str(number): cut_document(cut) for number, cut in found.partitions.items()
                    },
                }
                for topic, found in self.topics.items()
            },
        }
        return json.dumps(document, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Snapshot:
        """Return the snapshot in a document. Raises SnapshotError, which names all faults at
        once."""
        return parse_snapshot(text)

    def save(self, path: Path | str) -> None:
        """Write the document to a file atomically. Raises SnapshotError."""
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
        """Return the snapshot in a file. Raises SnapshotError."""
        try:
            text = Path(path).read_text("utf-8")
        except OSError as error:
            raise SnapshotError(
                f"the snapshot {path} cannot be read: {error.strerror or error}"
            ) from error
        except UnicodeDecodeError as error:
            raise SnapshotError(f"{path} is not a snapshot: it is not UTF-8 text") from error
        try:
            return parse_snapshot(text)
        except SnapshotError as error:
            raise SnapshotError(f"{path}: {error}") from error


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


# Reading the document


def parse_snapshot(text: str) -> Snapshot:
    """Return the snapshot in a document. Raises one SnapshotError that lists all faults."""
    try:
        document = json.loads(text, object_pairs_hook=object_of)
    except (ValueError, RecursionError) as error:
        raise SnapshotError(f"the snapshot is not valid JSON: {error}") from error
    if not isinstance(document, dict):
        raise SnapshotError("the snapshot is not a JSON object: write it with Snapshot.to_json()")
    version = document.get("version")
    if version not in (VERSION, VERSION_WITH_COUNTS) or isinstance(version, bool):
        raise SnapshotError(
            f"the snapshot has version {version!r}, but this program supports only {VERSION} and"
            f" {VERSION_WITH_COUNTS}: use the version of pybroker that wrote the snapshot, or a"
            " newer version"
        )
    reader = DocumentReader(may_have_counts=version == VERSION_WITH_COUNTS)
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
    reader.known(document, KEYS, "the snapshot")
    if reader.faults:
        raise SnapshotError("; ".join(reader.faults))
    return snapshot
