"""Splits the ranges of a snapshot into pieces, one for each task.

If the records of a range were counted part by part, pieces begin where parts begin, so that one
task can check the count of a part. Otherwise, pieces begin at a batch, so that no batch is fetched
twice.
"""

from __future__ import annotations

import asyncio
from bisect import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

from pybroker.client import defaults
from pybroker.client.admin.calls import Calls
from pybroker.client.admin.log_dirs import describe_log_dirs
from pybroker.client.backoff import Deadline
from pybroker.client.batch_lookup import Place, batch_starts
from pybroker.client.blocking import run_blocking
from pybroker.client.cluster import Cluster
from pybroker.client.offset_lookup import EARLIEST, LATEST, list_offsets
from pybroker.client.options import ConsumerOptions
from pybroker.client.range_reader import PartitionRange
from pybroker.client.ranges.options import parse_range_options
from pybroker.model import TopicPartition
from pybroker.spark.readability import wrong_cluster
from pybroker.spark.snapshot_model import SnapshotError

ALIGN_LIMIT_MS: Final = 30_000
"""The time limit for finding batch boundaries, in ms. A split whose boundary is not found in time
is not moved."""

SIZES_LIMIT_MS: Final = 10_000
"""The time limit for a broker's response with the sizes of its logs, in ms. The metadata may name a
dead broker as the leader for some seconds. The response of that broker is not needed: the other
replicas have the same logs."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits for splitting offset ranges into pieces. Each piece has at most `max_bytes` and
    `max_offsets`. All ranges together have at least `min_pieces` pieces. The limits are
    approximate: a batch is never divided, and short ranges have fewer pieces."""

    max_bytes: int | None = None
    max_offsets: int | None = None
    min_pieces: int | None = None


def split(
    ranges: Sequence[PartitionRange], limits: Limits, sizes: Mapping[TopicPartition, float]
) -> list[PartitionRange]:
    """Return the pieces of the ranges in order. Empty ranges have no pieces. `sizes` are bytes per
    offset. `max_bytes` has no effect on a partition whose size is unknown."""
    full = [item for item in ranges if item.offsets]
    counts = [_pieces(item, limits, sizes.get(item.topic_partition)) for item in full]
    if limits.min_pieces is not None and sum(counts) < limits.min_pieces:
        weights = [_weight(item, full, sizes) for item in full]
        total = sum(weights) or 1.0
        shares = [round(limits.min_pieces * weight / total) for weight in weights]
        counts = [max(pair) for pair in zip(counts, shares, strict=True)]
    return [
        piece
        for item, count in zip(full, counts, strict=True)
        for piece in _cut(item, _even_cuts(item, min(count, item.offsets)))
    ]


def align(pieces: Sequence[PartitionRange], starts: Mapping[Place, int]) -> list[PartitionRange]:
    """Move the first offsets of the pieces: `starts` maps (partition, first offset) to the new
    first offset. Return the new pieces. A piece ends where the next piece of its partition begins.
    If one of two neighbouring pieces would be empty, both become one piece."""
    found: list[PartitionRange] = []
    for piece in pieces:
        last = found[-1] if found else None
        if last is None or not _follows(last, piece):
            found.append(piece)
            continue
        cut = starts.get((piece.topic_partition, piece.start), piece.start)
        cut = min(cut, piece.end)
        if cut <= last.start or cut == piece.end:
            found[-1] = replace(last, end=piece.end)
        else:
            found[-1] = replace(last, end=cut)
            found.append(replace(piece, start=cut))
    return found


async def pieces_of(
    options: ConsumerOptions,
    ranges: Sequence[PartitionRange],
    limits: Limits,
    cluster_id: str = "",
) -> list[PartitionRange]:
    """Divide the ranges into pieces within `limits`. Raises SnapshotError if the cluster's id is
    not `cluster_id` ("": not checked), ClientError if the cluster does not answer."""
    full = [item for item in ranges if item.offsets]
    if not full or (limits == Limits() and not cluster_id):
        return full
    cluster = Cluster(options, clock=defaults.make_clock(), rng=defaults.make_rng())
    try:
        cluster.watch({item.topic for item in full})
        await cluster.start()
        other = wrong_cluster(cluster, cluster_id)
        if other is not None:
            raise SnapshotError(other)
        if limits == Limits():
            return full
        sizes = await bytes_per_offset(cluster, [item.topic_partition for item in full])
        pieces = split(full, limits, sizes)
        starts = counted_starts(full, pieces)
        inner = [
            place
            for last, piece in pairwise(pieces)
            if _follows(last, piece)
            and (place := (piece.topic_partition, piece.start)) not in starts
        ]
        deadline = Deadline(cluster.clock, ALIGN_LIMIT_MS)
        starts |= await batch_starts(cluster, inner, deadline=deadline)
        return with_counts(full, align(pieces, starts))
    finally:
        await cluster.close()


def counted_starts(
    ranges: Sequence[PartitionRange], pieces: Sequence[PartitionRange]
) -> dict[Place, int]:
    """Return a new first offset for each piece, as the argument `starts` of `align`. A record count
    in `ranges` covers one part of a range. The new first offset is the first offset of the part
    that contains the old one. Pieces of partitions without record counts are omitted."""
    edges = {
        item.topic_partition: [item.start, *(each.beyond for each in item.counts)]
        for item in ranges
        if item.counts
    }
    found = {}
    for piece in pieces:
        known = edges.get(piece.topic_partition)
        if known is not None:
            place = known[bisect(known, piece.start) - 1]
            found[(piece.topic_partition, piece.start)] = place
    return found


def with_counts(
    ranges: Sequence[PartitionRange], pieces: Sequence[PartitionRange]
) -> list[PartitionRange]:
    """Return the pieces with the record counts of `ranges`. A piece gets only those counts whose
    offset ranges lie within the piece."""
    counted = {item.topic_partition: item for item in ranges if item.counts}
    return [
        counted[piece.topic_partition].part(piece.start, piece.end)
        if piece.topic_partition in counted
        else piece
        for piece in pieces
    ]


def pieces_blocking(
    options: Mapping[str, str],
    ranges: Sequence[PartitionRange],
    limits: Limits,
    cluster_id: str = "",
) -> list[PartitionRange]:
    """Return the pieces as `pieces_of` does, from blocking code. `options` are client options with
    Kafka's names. Raises ConfigError and the errors of `pieces_of`."""
    parsed, _ = parse_range_options(options)
    return run_blocking(lambda: pieces_of(parsed, ranges, limits, cluster_id))


async def bytes_per_offset(
    cluster: Cluster, partitions: Sequence[TopicPartition]
) -> dict[TopicPartition, float]:
    """Return the average bytes per offset in the log of each partition's leader. Partitions of
    unknown size are left out."""
    calls = Calls(cluster)
    calls.opened = True
    deadline = Deadline(cluster.clock, cluster.options.default_api_timeout_ms)
    dirs, first, last = await asyncio.gather(
        describe_log_dirs(calls, None, partitions, timeout_ms=SIZES_LIMIT_MS),
        list_offsets(
            cluster,
            dict.fromkeys(partitions, EARLIEST),
            isolation_level="read_uncommitted",
            deadline=deadline,
        ),
        list_offsets(
            cluster,
            dict.fromkeys(partitions, LATEST),
            isolation_level="read_uncommitted",
            deadline=deadline,
        ),
    )
    found = {}
    for key in partitions:
        leader = cluster.view.leader(key)
        answer = dirs.get(leader) if leader is not None else None
        logs = [
            place.replicas[key]
            for place in (answer.dirs if answer else ())
            if key in place.replicas and not place.replicas[key].future
        ]
        offsets = last[key].offset - first[key].offset
        if logs and offsets > 0:
            found[key] = logs[0].size / offsets
    return found


def _pieces(item: PartitionRange, limits: Limits, size: float | None) -> int:
    count = 1
    if limits.max_bytes is not None and size is not None:
        count = max(count, -int(-item.offsets * size // limits.max_bytes))
    if limits.max_offsets is not None:
        count = max(count, -(-item.offsets // limits.max_offsets))
    return count


def _weight(
    item: PartitionRange, ranges: Sequence[PartitionRange], sizes: Mapping[TopicPartition, float]
) -> float:
    """Return the size of a range: in bytes if the sizes of all ranges are known, else in
    offsets."""
    if all(each.topic_partition in sizes for each in ranges):
        return item.offsets * sizes[item.topic_partition]
    return item.offsets


def _even_cuts(item: PartitionRange, count: int) -> list[int]:
    return [item.start + item.offsets * number // count for number in range(1, count)]


def _cut(item: PartitionRange, cuts: Sequence[int]) -> list[PartitionRange]:
    edges = [item.start, *cuts, item.end]
    return [replace(item, start=start, end=end) for start, end in pairwise(edges) if start < end]


def _follows(last: PartitionRange, piece: PartitionRange) -> bool:
    return last.topic_partition == piece.topic_partition and last.end == piece.start
