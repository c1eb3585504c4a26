"""Takes and loads snapshots of topics:

from pybroker.spark import snapshot

snap = snapshot.take("broker:9092", topics=["orders"])
snap.save("orders.json")
later = snapshot.take("broker:9092", since=snapshot.load("orders.json"))
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from pybroker.client.offset_lookup import EARLIEST, LATEST
from pybroker.spark.counting import COUNTS, Count, Progress, counted
from pybroker.spark.planning import CLIENT_ID, AtTime, Bounds, SnapshotSpec, plan_blocking
from pybroker.spark.snapshot_model import (
    Change,
    PartitionChange,
    PartitionCut,
    Snapshot,
    SnapshotError,
    TopicCut,
)

__all__ = [
    "Change",
    "PartitionChange",
    "PartitionCut",
    "Snapshot",
    "SnapshotError",
    "TopicCut",
    "load",
    "take",
]

Until = str | int | Mapping[str, Mapping[int, int]]
TIME_MAX_MS: Final = 2**63 - 1
WORDS: Final = {"earliest": EARLIEST, "latest": LATEST}


def take(
    bootstrap: str,
    topics: str | Iterable[str] = (),
    since: Snapshot | str | Path | None = None,
    until: Until = "latest",
    isolation: str | None = None,
    conf: Mapping[str, str] | None = None,
    count: Count = "compacted",
    progress: Progress | None = None,
) -> Snapshot:
    """Return a new snapshot: one range of offsets for each partition of the topics.

    `since` is an earlier snapshot, or its file's path. A range starts at the end of the earlier
    range, or else at the log start offset. `topics` and `isolation` default to those of `since`.

    `until` is the end of each range:

    - "latest": the last stable offset with read_committed, the high watermark with read_uncommitted
    - a time in ms since 1970: the first record with this timestamp or later
    - {topic: {partition: offset}} for every partition

    `isolation`: read_committed (default without `since`) or read_uncommitted. `conf`: client
    options with Kafka's names.

    `count` chooses the topics whose records are counted: "compacted" (topics with log compaction),
    "always" or "never". A later read of a counted range fails if compaction has removed records.
    `progress` receives the counted and the total number of offsets.

    Raises SnapshotError for an unusable argument, ConfigError for an invalid option, NoBrokers if
    no broker answers, RangeFailed if a range cannot be counted.
    """
    if count not in COUNTS:
        raise SnapshotError(f"count is {count!r}: give one of {', '.join(COUNTS)}")
    before = since if isinstance(since, Snapshot) or since is None else load(since)
    names: Sequence[str] = [topics] if isinstance(topics, str) else list(topics)
    if not names and before is not None:
        names = list(before.topics)
    spec = SnapshotSpec(
        topics=names,
        ends=_ends(until),
        since=before,
        isolation=isolation or (before.isolation if before else "read_committed"),
    )
    options = {"client.id": CLIENT_ID, **(conf or {}), "bootstrap.servers": bootstrap}
    return counted(plan_blocking(options, spec), options, count, progress or (lambda *_: None))


def load(path: Path | str) -> Snapshot:
    """Return the snapshot in a file. Raises SnapshotError."""
    return Snapshot.load(path)


def _ends(until: Until) -> Bounds:
    if isinstance(until, str):
        if until not in WORDS or until == "earliest":
            raise SnapshotError(
                f"until is {until!r}: give 'latest', a time in ms since 1970, or"
                " {topic: {partition: offset}}"
            )
        return LATEST
    if isinstance(until, int):
        if not 0 <= until <= TIME_MAX_MS or isinstance(until, bool):
            raise SnapshotError(f"until is {until}: give a time in ms since 1970")
        return AtTime(until)
    if not isinstance(until, Mapping) or not all(map(_are_offsets, until.values())):
        raise SnapshotError(
            f"until is {until!r}: give 'latest', a time in ms since 1970, or"
            " {topic: {partition: offset}} in whole numbers"
        )
    return dict(until)


def _are_offsets(ends: object) -> bool:
    return isinstance(ends, Mapping) and all(
        isinstance(number, int) and not isinstance(number, bool)
        for number in (*ends, *ends.values())
    )
