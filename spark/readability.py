"""Whether ranges that were cut earlier can still be read as they were, as the cluster says now.

What can be seen: a log that begins behind a range's start, another topic of the same name, a
partition that is gone, a history that an unclean election cut off. What cannot be asked for is what
compaction has removed: where a key was written again, records that the snapshot means may go, and
leave what any compacted record leaves. The topic's options tell whether that may have happened. Of
ranges whose records were counted, reading tells whether it has.
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
    """True where nothing is known to be missing. `problems` are what reading would fail with, or
    what kept a partition from being asked; `warnings` what may be missing without a trace. Both are
    one line each."""

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
    """Ask the leaders of all partitions. `cluster_id` and `created_at_ms` are those of the
    snapshot. Of topics that were counted it is not warned if they will be counted again. Raises
    ClientError where the cluster cannot be asked at all."""
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
                problems.append(f"{item.topic_partition} cannot be asked: {current}")
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
    """What reading the ranges whose records were counted would fail with. `options` are those of
    the client under Kafka's names. Raises ConfigError, and ClientErrors that say nothing of a
    range."""
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
    """What to say if this is not the cluster of that id; None if it is, or nobody knows."""
    here = cluster.view.cluster_id
    if not here or not cluster_id or here == cluster_id:
        return None
    where = ", ".join(format_address(*item) for item in cluster.options.bootstrap_servers)
    return (
        f"the cluster at {where} is {here}, the snapshot is of {cluster_id}: name the brokers of"
        " that cluster"
    )


class Compaction(NamedTuple):
    """What the options of a topic say of it."""

    is_compacted: bool
    lag_ms: int
    """How old a newer record of the same key is at least before an older one is removed."""


async def compactions(
    cluster: Cluster, topics: Iterable[str]
) -> dict[str, Compaction | ClientError]:
    """Of each topic what its options say, or why they are not told. Raises ClientError."""
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
    return f"{topic}: nobody knows whether it is compacted ({error})"


def _warning(topic: str, compaction: Compaction, age_ms: int, *, is_counted: bool) -> str:
    """For a topic of which compaction may have removed records that the snapshot means."""
    how = (
        "which is seen when they are read, as they were counted"
        if is_counted
        else "and reading cannot tell"
    )
    text = (
        f"{topic} is compacted: records that later ones of the same key replace may be gone, {how}"
    )
    if age_ms < compaction.lag_ms:
        return f"{text}; the last one of each key is there"
    return (
        f"{text}; also the last one of a key, where it was written again after the snapshot: keep"
        f" {COMPACTION_LAG} ({compaction.lag_ms}) above the time from taking a snapshot to having"
        f" read it ({age_ms} ms so far)"
    )


def _whole(text: str) -> int:
    return int(text) if text.isdecimal() else 0
