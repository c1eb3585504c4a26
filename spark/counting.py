"""Counts the records of a snapshot, so that a later reader detects compaction.

The offset range of a partition has at most 64 parts, each with a record count and a digest of the
offsets. Parts end at batch boundaries. A compacted batch is decoded, because its header does not
show the remaining offsets.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import Final, Literal

from pybroker.client import defaults
from pybroker.client.blocking import run_blocking
from pybroker.client.cluster import Cluster
from pybroker.client.errors import ClientError, UnsupportedByBroker
from pybroker.client.options import ConsumerOptions
from pybroker.client.range_reader import RangeReader
from pybroker.client.ranges.counts import Tally
from pybroker.client.ranges.model import (
    DIGEST_END,
    Counted,
    PartitionRange,
    RangeFailed,
    RangeFault,
)
from pybroker.client.ranges.options import parse_range_options
from pybroker.errors import BrokerError, CorruptionError
from pybroker.ports import Buffer
from pybroker.records.batch import BatchHeader
from pybroker.spark.cuts import TopicCut
from pybroker.spark.readability import compactions
from pybroker.spark.snapshot_model import Snapshot

log = logging.getLogger(__name__)

Count = Literal["compacted", "always", "never"]
COUNTS: Final[tuple[Count, ...]] = ("compacted", "always", "never")
"""The choices for counting records: in compacted topics only, in all topics, in no topic."""
Progress = Callable[[int, int], None]
"""A callback that receives the number of counted offsets and the total number of offsets."""

PARTS_MAX: Final = 64
"""The largest number of parts of a range. Above it, neighboring parts are joined in
pairs."""
PART_BYTES: Final = 2**20
PART_RECORDS: Final = 16_384
"""The limits of a part in bytes and records: the batch that reaches a limit ends the part.
The limits double each time that parts are joined."""


def counted(
    snapshot: Snapshot,
    options: Mapping[str, str],
    count: Count,
    progress: Progress = lambda done, total: None,
) -> Snapshot:
    """Return the snapshot with record counts for the topics that `count` chooses. The choice
    "compacted" includes topics with an unreadable cleanup.policy. `options` have Kafka's names.

    Raises ConfigError for invalid `options`, RangeFailed if a range cannot be read (deletion by
    retention is no error), another ClientError if a request fails.
    """
    if count == "never":
        return snapshot
    topics = set(snapshot.topics)
    if count == "compacted":
        parsed, _ = parse_range_options(options)
        topics = run_blocking(lambda: _compacted(parsed, snapshot.topics))
    ranges = [item for item in snapshot.ranges() if item.topic in topics and item.offsets]
    if not ranges:
        return snapshot
    done, total = 0, sum(item.offsets for item in ranges)
    found = {name: dict(cut.partitions) for name, cut in snapshot.topics.items()}
    with RangeReader(options, isolation=snapshot.isolation, fail_on_data_loss=False) as reader:
        for item in ranges:
            counts = count_range(reader, item, partial(_tell, progress, done - item.start, total))
            done += item.offsets
            progress(done, total)
            cut = found[item.topic][item.partition]
            found[item.topic][item.partition] = replace(cut, counts=counts)
    cuts = {name: TopicCut(cut.topic_id, found[name]) for name, cut in snapshot.topics.items()}
    return replace(snapshot, topics=cuts)


def _tell(progress: Progress, moved: int, total: int, offset: int) -> None:
    progress(moved + offset, total)


def count_range(
    reader: RangeReader, item: PartitionRange, report: Callable[[int], None] = lambda offset: None
) -> tuple[Counted, ...]:
    """Count the records of the range, which must not be empty. Return the counts of consecutive
    parts that cover the range. `report` receives the next offset to count. Raises the errors of
    `RangeReader.batches`."""
    parts = CountedParts(item.start, item.end)
    for header, batch in reader.batches(item):
        try:
            parts.add(header, batch, reader.first_offset)
        except (CorruptionError, BrokerError) as error:
            text = (
                f"the batch cannot be decoded: {error}; take a snapshot that ends before the batch"
            )
            raise RangeFailed(
                item.topic_partition, header.base_offset, RangeFault.CORRUPT, text
            ) from None
        report(min(header.next_offset, item.end))
    return parts.finish()


class CountedParts:
    """Divides an offset range into consecutive parts, and counts the records of each part. Batches
    must be added in offset order."""

    def __init__(
        self,
        start: int,
        end: int,
        *,
        part_bytes: int = PART_BYTES,
        part_records: int = PART_RECORDS,
        parts_max: int = PARTS_MAX,
    ) -> None:
        self._start = start
        self._end = end
        self._bytes_max = part_bytes
        self._records_max = part_records
        self._parts_max = parts_max
        self._found: list[Counted] = []
        self._bytes = 0
        self._tally = Tally()
        """`_bytes` and `_tally` count the batches since the end of the last complete part."""

    def add(self, header: BatchHeader, batch: Buffer, first_offset: int) -> None:
        """Count the records of a batch. Records below `first_offset`, and records outside the
        range, are not counted. Raises the errors of `Tally.add`."""
        self._bytes += header.size
        self._tally.add(header, batch, max(first_offset, self._start), self._end)
        if self._bytes >= self._bytes_max or self._tally.records >= self._records_max:
            self._close(min(header.next_offset, self._end))

    def finish(self) -> tuple[Counted, ...]:
        """Return the parts, which together cover the whole range."""
        if self._place < self._end:
            self._close(self._end)
        return tuple(self._found)

    @property
    def _place(self) -> int:
        return self._found[-1].beyond if self._found else self._start

    def _close(self, beyond: int) -> None:
        records, digest = self._tally.take()
        self._found.append(Counted(self._place, beyond, records, digest))
        self._bytes = 0
        if len(self._found) > self._parts_max:
            self._found = thinned(self._found)
            self._bytes_max *= 2
            self._records_max *= 2


def thinned(parts: list[Counted]) -> list[Counted]:
    """Return half as many parts: each pair of neighbors becomes one part. If the number of parts is
    odd, the last one stays."""
    found = []
    for first, second in zip(parts[::2], parts[1::2], strict=False):
        digest = (first.digest + second.digest) % DIGEST_END
        records = first.records + second.records
        found.append(Counted(first.first, second.beyond, records, digest))
    return found + parts[len(found) * 2 :]


async def _compacted(options: ConsumerOptions, topics: Collection[str]) -> set[str]:
    """Return the topics that are compacted, or whose cleanup.policy cannot be read."""
    cluster = Cluster(options, clock=defaults.make_clock(), rng=defaults.make_rng())
    try:
        cluster.watch(topics)
        await cluster.start()
        try:
            found = await compactions(cluster, topics)
        except UnsupportedByBroker as error:
            found = dict.fromkeys(topics, error)
    finally:
        await cluster.close()
    for topic, answer in found.items():
        if isinstance(answer, ClientError):
            log.warning(
                "cleanup policy unknown topic=%s treated_as=compacted reason=%s",
                topic,
                answer,
            )
    return {
        topic
        for topic, answer in found.items()
        if isinstance(answer, ClientError) or answer.is_compacted
    }
