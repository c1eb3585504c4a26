"""Checks whether the ranges of a snapshot still have the records that they had when the snapshot
was taken.

The brokers' responses do not show compaction. Compaction is found only by counting again, and only
if the snapshot has record counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from pybroker.client import defaults
from pybroker.client.addresses import format_address
from pybroker.client.admin.calls import Calls
from pybroker.client.admin.configs import ConfigResource, describe_configs
from pybroker.client.backoff import Deadline
from pybroker.client.cluster import Cluster
from pybroker.client.errors import ClientError
from pybroker.client.options import ConsumerOptions
from pybroker.client.range_reader import PartitionRange, RangeFailed, RangeReader
from pybroker.client.ranges.validity import current_partitions, faults
from pybroker.ports import Clock, Rng

CLEANUP_POLICY: Final = "cleanup.policy"
COMPACTION_LAG: Final = "min.compaction.lag.ms"


@dataclass(frozen=True, slots=True)
class Readability:
    """The result of a check; `bool()` is true if `problems` is empty.

    `problems`: errors that a read would raise, and partitions that could not be checked.
    `warnings`: topics from which compaction may have removed records.
    """

    problems: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return not self.problems


async def readability(
    options: ConsumerOptions,
    ranges: Sequence[PartitionRange],
    *,
    cluster_id: str,
    created_at_ms: int,
    will_recount: bool = False,
    clock: Clock | None = None,
    rng: Rng | None = None,
) -> Readability:
    """Ask all leaders whether the ranges can still be read. `cluster_id` and `created_at_ms` are
    those of the snapshot. `will_recount`: whether the caller will count the records again. If so, a
    topic with record counts gets no compaction warning. Raises ClientError if no broker answers."""
    clock = clock or defaults.make_clock()
    cluster = Cluster(options, clock=clock, rng=rng or defaults.make_rng())
    try:
        topics = sorted({item.topic for item in ranges})
        cluster.watch(topics)
        await cluster.start()
        other = wrong_cluster(cluster, cluster_id)
        if other is not None:
            return Readability((other,))
        deadline = Deadline(clock, options.default_api_timeout_ms)
        found = await current_partitions(cluster, ranges, deadline)
        problems: list[str] = []
        for item in ranges:
            current = found[item.topic_partition]
            if isinstance(current, ClientError):
                problems.append(f"{item.topic_partition} cannot be checked: {current}")
            else:
                problems += map(str, faults(item, item.start, current))
        age_ms = clock.wall_ms() - created_at_ms
        uncounted = {item.topic for item in ranges if item.offsets and not item.counts}
        warnings = [
            _not_told(topic, answer)
            if isinstance(answer, ClientError)
            else _warning(topic, answer, age_ms, is_counted=topic not in uncounted)
            for topic, answer in (await compactions(cluster, topics)).items()
            if isinstance(answer, ClientError) or answer.is_compacted
            if topic in uncounted or not will_recount
        ]
        return Readability(tuple(problems), tuple(warnings))
    finally:
        await cluster.close()


def recounted(
    options: Mapping[str, str], ranges: Iterable[PartitionRange], isolation: str
) -> Iterator[str]:
    """Count the records again in those ranges that have record counts. Yield the message of
    RangeFailed for each range that cannot be read or has changed. Raises ConfigError, and any
    ClientError but RangeFailed."""
    with RangeReader(options, isolation=isolation) as reader:
        for item in ranges:
            if not item.counts:
                continue
            try:
                for _ in reader.batches(item):
                    pass
            except RangeFailed as failed:
                yield str(failed)


def wrong_cluster(cluster: Cluster, cluster_id: str) -> str | None:
    """Return an error message if the cluster's id is not `cluster_id`, the cluster id in the
    snapshot. Return None if the two ids are equal, or if one of them is unknown."""
    here = cluster.view.cluster_id
    if not here or not cluster_id or here == cluster_id:
        return None
    where = ", ".join(format_address(*item) for item in cluster.options.bootstrap_servers)
    return (
        f"the brokers at {where} are of the cluster {here}, but the snapshot is of the"
        f" cluster {cluster_id}: give the brokers of that cluster"
    )


class Compaction(NamedTuple):
    """The options of a topic that control compaction."""

    is_compacted: bool
    lag_ms: int
    """min.compaction.lag.ms: a record younger than this does not yet remove older records with the
    same key."""


async def compactions(
    cluster: Cluster, topics: Iterable[str]
) -> dict[str, Compaction | ClientError]:
    """Return the compaction options of each topic. For a topic whose options cannot be read, the
    result has the error instead. Raises ClientError if the cluster does not answer."""
    calls = Calls(cluster)
    calls.opened = True
    described = await describe_configs(
        calls,
        [ConfigResource.topic(topic) for topic in topics],
        names=[CLEANUP_POLICY, COMPACTION_LAG],
        synonyms=False,
        documentation=False,
        timeout_ms=None,
    )
    found: dict[str, Compaction | ClientError] = {}
    for resource, description in described.items():
        if description.error is not None:
            found[resource.name] = description.error
            continue
        values = {entry.name: entry.value or "" for entry in description.entries}
        found[resource.name] = Compaction(
            "compact" in values.get(CLEANUP_POLICY, ""), _whole(values.get(COMPACTION_LAG, ""))
        )
    return found


def _not_told(topic: str, error: ClientError) -> str:
    return f"{topic} may be compacted, because its options cannot be read ({error})"


def _warning(topic: str, compaction: Compaction, age_ms: int, *, is_counted: bool) -> str:
    """Return the warning that compaction may have removed records of the snapshot. `age_ms` is the
    age of the snapshot."""
    how = (
        "and a read then fails, because the records were counted"
        if is_counted
        else "and a read does not detect this"
    )
    text = (
        f"{topic} is compacted: a record may be removed if a later record has the same key, {how}"
    )
    if age_ms < compaction.lag_ms:
        return f"{text}; the last record of each key in the snapshot exists"
    return (
        f"{text}; a key's last record in the snapshot may be removed, too, if the key was written"
        f" again after the snapshot: keep {COMPACTION_LAG} ({compaction.lag_ms}) above the time"
        f" from taking a snapshot to reading it ({age_ms} ms so far)"
    )


def _whole(text: str) -> int:
    return int(text) if text.isdecimal() else 0
