"""Takes snapshots: asks the cluster for the start and end offsets of all partitions in one round,
and fixes the range of each partition.

A `SnapshotSpec` says what the snapshot holds. One SnapshotError names all its faults.
"""

from __future__ import annotations

import asyncio
import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from pybroker.client import defaults
from pybroker.client.addresses import format_address
from pybroker.client.backoff import Deadline
from pybroker.client.blocking import run_blocking
from pybroker.client.cluster import Cluster
from pybroker.client.epoch_lookup import EpochEnd, epoch_ends
from pybroker.client.metadata import ClusterView, TopicInfo
from pybroker.client.offset_lookup import (
    EARLIEST,
    ISOLATION_LEVELS,
    LATEST,
    OffsetAnswer,
    list_offsets,
)
from pybroker.client.options import ConsumerOptions
from pybroker.client.ranges.options import parse_range_options
from pybroker.client.ranges.validity import UNKNOWN_CODES, CurrentPartition, topic_id_text
from pybroker.client.ranges.validity import faults as range_faults
from pybroker.errors import ErrorCode
from pybroker.model import (
    NO_EPOCH,
    NO_OFFSET,
    NO_TOPIC_ID,
    TopicPartition,
    topic_name_fault,
)
from pybroker.ports import Clock, Rng
from pybroker.spark.readability import wrong_cluster
from pybroker.spark.snapshot_model import PartitionCut, Snapshot, SnapshotError, TopicCut

CLIENT_ID: Final = "pybroker-snapshot"
_LETTERS: Final = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
UNKNOWN_TOPIC_LIMIT_S: Final = 3.0
"""Planning waits this long for an unknown topic: a new topic reaches the brokers one by one."""
FAULTS_SHOWN: Final = 5


@dataclass(frozen=True, slots=True)
class AtTime:
    """The first record whose timestamp is `timestamp_ms` (since 1970) or later. If there is no such
    record: the log end with `or_latest`, else a fault."""

    timestamp_ms: int
    or_latest: bool = True


Bound = int | AtTime
"""An offset, EARLIEST (-2), LATEST (-1), or a time."""
Bounds = Bound | Mapping[str, Bound | Mapping[int, Bound]]
"""One bound for all partitions, one per topic, or one per partition. It must name all of them."""


@dataclass(frozen=True, slots=True)
class SnapshotSpec:
    """The content of a snapshot to take. Exactly one of these chooses the partitions: `topics` by
    name, `pattern` (a regular expression that is found in a topic's name), `partitions` by topic.
    With `since`, each partition starts at the end of that snapshot, and a partition that it does
    not hold starts at its log start offset; `starts` is then ignored."""

    topics: Sequence[str] = ()
    pattern: str | None = None
    partitions: Mapping[str, Sequence[int]] = field(default_factory=dict)
    starts: Bounds = EARLIEST
    ends: Bounds = LATEST
    since: Snapshot | None = None
    isolation: str = "read_committed"


async def plan(
    options: ConsumerOptions,
    spec: SnapshotSpec,
    *,
    clock: Clock | None = None,
    rng: Rng | None = None,
) -> Snapshot:
    """Take a snapshot now. Raises SnapshotError if the spec cannot be satisfied, and ClientError if
    the cluster does not answer."""
    _check(spec)
    clock = clock or defaults.make_clock()
    rng = rng or defaults.make_rng()
    cluster = Cluster(options, clock=clock, rng=rng)
    try:
        if spec.pattern is not None:
            cluster.watch_all(True)
        else:
            cluster.watch({*spec.topics, *spec.partitions})
        await cluster.start()
        created_at_ms = clock.wall_ms()
        other = wrong_cluster(cluster, spec.since.cluster_id) if spec.since else None
        if other is not None:
            raise SnapshotError(other)
        topics = await _topics(cluster, spec)
        keys = _keys(topics, spec)
        facts = await _ask(cluster, keys, spec)
        cuts = _cuts(topics, keys, spec, facts)
        return Snapshot(
            id=new_id(created_at_ms, rng),
            cluster_id=cluster.view.cluster_id or "",
            created_at_ms=created_at_ms,
            isolation=spec.isolation,
            topics=cuts,
            parent=spec.since.id if spec.since else None,
            bootstrap=",".join(format_address(*item) for item in options.bootstrap_servers),
        )
    finally:
        await cluster.close()


def plan_blocking(options: Mapping[str, str], spec: SnapshotSpec) -> Snapshot:
    """Take a snapshot as `plan` does, from blocking code. `options` are client options with Kafka's
    names, with or without the prefix `kafka.`. Raises ConfigError as well."""
    parsed, _ = parse_range_options({"client.id": CLIENT_ID, **options})
    return run_blocking(lambda: plan(parsed, spec))


def new_id(created_at_ms: int, rng: Rng) -> str:
    """Return an id that sorts by time: a ULID, 26 letters and digits, the first 10 of them the
    time."""
    number = created_at_ms << 80 | int.from_bytes(rng.randbytes(10), "big")
    return "".join(_LETTERS[number >> shift & 31] for shift in range(125, -1, -5))


def _fail(faults: Iterable[str]) -> None:
    """Raise SnapshotError if there are faults."""
    found = list(dict.fromkeys(faults))
    if not found:
        return
    more = len(found) - FAULTS_SHOWN
    text = "; ".join(found[:FAULTS_SHOWN])
    raise SnapshotError(f"{text}; and {more} more" if more > 0 else text)


# Topics and partitions


def _check(spec: SnapshotSpec) -> None:
    """Check the spec without a request. Raises SnapshotError."""
    faults = []
    given = [bool(spec.topics), spec.pattern is not None, bool(spec.partitions)]
    if sum(given) != 1:
        faults.append(
            "no topic is named: name at least one"
            if not any(given)
            else "topics, a pattern and partitions exclude each other: give one of them"
        )
    for topic in [*spec.topics, *spec.partitions]:
        fault = topic_name_fault(topic)
        if fault is not None:
            faults.append(f"{fault}: name an existing topic")
    faults += [
        f"no partition of topic {topic} is named: name at least one, or leave the topic out"
        for topic, numbers in spec.partitions.items()
        if not numbers
    ]
    if spec.isolation not in ISOLATION_LEVELS:
        faults.append(f"isolation is {spec.isolation!r}, expected {' or '.join(ISOLATION_LEVELS)}")
    elif spec.since is not None and spec.since.isolation != spec.isolation:
        faults.append(
            f"snapshot {spec.since.id} is {spec.since.isolation}, and its successor must be the"
            f" same: take this one with isolation={spec.since.isolation}"
        )
    try:
        re.compile(spec.pattern or "")
    except re.error as error:
        faults.append(f"{spec.pattern!r} is not a regular expression: {error}")
    _fail(faults)


async def _topics(cluster: Cluster, spec: SnapshotSpec) -> dict[str, TopicInfo]:
    """Return the metadata of the chosen topics, sorted by name. Wait a moment for unknown topics.
    Raises SnapshotError, ClientError."""
    deadline = Deadline(cluster.clock, int(UNKNOWN_TOPIC_LIMIT_S * 1_000))
    while True:
        found = _chosen(cluster.view, spec)
        ready = {
            name: topic
            for name, topic in found.items()
            if topic.error == ErrorCode.NONE and topic.partitions
        }
        if (found and len(ready) == len(found)) or deadline.passed:
            break
        if any(not topic.error.retriable for topic in found.values() if topic.error):
            break
        await asyncio.sleep(cluster.pause_s(1))
        try:
            await cluster.refreshed(max(deadline.remaining_s(), 0.1))
        except TimeoutError:
            break
    missing = [name for name in found if name not in ready]
    if missing or not ready:
        await _explain(cluster, spec, found, missing)
    return dict(sorted(ready.items()))


def _chosen(view: ClusterView, spec: SnapshotSpec) -> dict[str, TopicInfo]:
    if spec.pattern is not None:
        pattern = re.compile(spec.pattern)
        return {
            name: topic
            for name, topic in view.topics.items()
            if not topic.internal and pattern.search(name)
        }
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return {
        name: view.topics.get(name) or TopicInfo(name, unknown, NO_TOPIC_ID, False, {})
        for name in {*spec.topics, *spec.partitions}
    }


async def _explain(
    cluster: Cluster, spec: SnapshotSpec, found: Mapping[str, TopicInfo], missing: Sequence[str]
) -> None:
    """Raise a SnapshotError that explains the missing topics."""
    where = ", ".join(format_address(*item) for item in cluster.options.bootstrap_servers)
    if not missing:
        _fail([f"no topic at {where} has a name that {spec.pattern!r} matches: change the pattern"])
    everything = await cluster.metadata(None, timeout_s=cluster.options.request_timeout_ms / 1_000)
    faults = []
    for name in sorted(missing):
        code = found[name].error
        if code in UNKNOWN_CODES:
            near = difflib.get_close_matches(name, everything.topics, n=1)
            hint = f"did you mean {near[0]}?" if near else "create it, or name another"
            faults.append(f"there is no topic {name} at {where}: {hint}")
        elif code:
            faults.append(f"topic {name} cannot be read ({code.name}): {code.text}")
        else:
            faults.append(f"topic {name} has no partitions yet: try again in a moment")
    _fail(faults)


def _keys(topics: Mapping[str, TopicInfo], spec: SnapshotSpec) -> list[TopicPartition]:
    """Return the chosen partitions, sorted. Raises SnapshotError."""
    if not spec.partitions:
        return [TopicPartition(name, n) for name in topics for n in sorted(topics[name].partitions)]
    keys = [TopicPartition(name, n) for name in topics for n in sorted({*spec.partitions[name]})]
    _fail(
        f"topic {key.topic} has no partition {key.partition}, it has"
        f" {len(topics[key.topic].partitions)} of them: name others"
        for key in keys
        if key.partition not in topics[key.topic].partitions
    )
    return keys


# The cluster's answers


@dataclass(frozen=True, slots=True)
class _Facts:
    """The cluster's answers by partition. `first` and `last` are the log start and end offsets,
    `at_start` and `at_end` the offsets for AtTime bounds. `epoch_ends` holds the present end of the
    leader epoch that the earlier snapshot recorded."""

    first: Mapping[TopicPartition, OffsetAnswer]
    last: Mapping[TopicPartition, OffsetAnswer]
    at_start: Mapping[TopicPartition, OffsetAnswer]
    at_end: Mapping[TopicPartition, OffsetAnswer]
    epoch_ends: Mapping[TopicPartition, EpochEnd]


async def _ask(cluster: Cluster, keys: Sequence[TopicPartition], spec: SnapshotSpec) -> _Facts:
    """Send all requests in one round. Raises SnapshotError if a partition gives an error."""
    deadline = Deadline(cluster.clock, cluster.options.default_api_timeout_ms)
    starts = {} if spec.since else _moments(keys, spec.starts, "start")
    ends = _moments(keys, spec.ends, "end")

    async def look_up(
        moments: Mapping[TopicPartition, int],
    ) -> Mapping[TopicPartition, OffsetAnswer]:
        return await list_offsets(
            cluster, moments, isolation_level=spec.isolation, deadline=deadline
        )

    known = {
        item.topic_partition: item.leader_epoch
        for item in (spec.since.ranges() if spec.since else ())
        if item.leader_epoch >= 0
    }
    epochs = {key: known[key] for key in keys if key in known}
    first, last, at_start, at_end, ended = await asyncio.gather(
        look_up(dict.fromkeys(keys, EARLIEST)),
        look_up(dict.fromkeys(keys, LATEST)),
        look_up(starts),
        look_up(ends),
        epoch_ends(cluster, epochs, deadline=deadline),
    )
    _fail(
        f"the start and end of {key} cannot be looked up: {answer.error}"
        for answers in (first, last, at_start, at_end)
        for key, answer in answers.items()
        if answer.error is not None
    )
    return _Facts(first, last, at_start, at_end, ended)


def _moments(
    keys: Sequence[TopicPartition], bounds: Bounds, side: str
) -> dict[TopicPartition, int]:
    """Return the timestamps to look up. Raises SnapshotError for a partition that the bounds omit,
    and for a named partition that is not read."""
    found = {key: _bound(bounds, key) for key in keys}
    faults = [
        f"{key} is missing from the {side} offsets: name every partition (-2 earliest, -1 latest)"
        for key, bound in found.items()
        if bound is None
    ]
    faults += [
        f"the {side} offset of {key} is {bound}: give 0 or more (or -2 earliest, -1 latest)"
        for key, bound in found.items()
        if isinstance(bound, int) and bound < EARLIEST
    ]
    known = set(keys)
    for topic, row in bounds.items() if isinstance(bounds, Mapping) else ():
        named = row if isinstance(row, Mapping) else ()
        for key in [TopicPartition(topic, number) for number in named]:
            if key not in known:
                faults.append(f"{key} in the {side} offsets is not read: leave it out")
        if not any(key.topic == topic for key in known):
            faults.append(f"topic {topic} in the {side} offsets is not read: leave it out")
    _fail(faults)
    return {key: bound.timestamp_ms for key, bound in found.items() if isinstance(bound, AtTime)}


def _bound(bounds: Bounds, key: TopicPartition) -> Bound | None:
    if not isinstance(bounds, Mapping):
        return bounds
    row = bounds.get(key.topic)
    return row.get(key.partition) if isinstance(row, Mapping) else row


# Cutting


def _cuts(
    topics: Mapping[str, TopicInfo],
    keys: Sequence[TopicPartition],
    spec: SnapshotSpec,
    facts: _Facts,
) -> dict[str, TopicCut]:
    """Return the range of each partition. Raises SnapshotError."""
    faults: list[str] = []
    before = _before(topics, spec, facts, faults)
    cuts: dict[str, dict[int, PartitionCut]] = {name: {} for name in topics}
    for key in keys:
        first, last = facts.first[key].offset, facts.last[key]
        end = _resolved(_bound(spec.ends, key), facts, key, facts.at_end, "end", faults)
        if spec.since is not None:
            start = before.get(key, first)
        else:
            start = _resolved(_bound(spec.starts, key), facts, key, facts.at_start, "start", faults)
        if start > end and not faults:
            faults.append(_reversed(key, start, end, spec))
        info = topics[key.topic].partitions[key.partition]
        epoch = last.leader_epoch if last.leader_epoch >= 0 else info.leader_epoch
        cuts[key.topic][key.partition] = PartitionCut(start, end, first, epoch)
    _fail(faults)
    return {name: TopicCut(topic_id_text(topics[name]), rows) for name, rows in cuts.items()}


def _resolved(
    bound: Bound | None,
    facts: _Facts,
    key: TopicPartition,
    at_time: Mapping[TopicPartition, OffsetAnswer],
    side: str,
    faults: list[str],
) -> int:
    """Return the offset of a bound. Add to `faults` if there is none."""
    first, last = facts.first[key].offset, facts.last[key].offset
    if isinstance(bound, AtTime):
        offset = at_time[key].offset
        if offset < 0 and not bound.or_latest:
            faults.append(
                f"{key} has no record of {bound.timestamp_ms} or later for its {side}: give an"
                " earlier time, or allow the end of the partition instead"
            )
        return last if offset < 0 else min(offset, last)
    if bound == EARLIEST:
        return first
    if bound == LATEST or bound is None:
        return last
    if bound > last:
        faults.append(
            f"{key} ends at {last}, its {side} offset {bound} does not exist yet: give {last} or"
            " less, or wait"
        )
    return bound


def _reversed(key: TopicPartition, start: int, end: int, spec: SnapshotSpec) -> str:
    if spec.since is None:
        return f"the range of {key} is reversed, from {start} to {end}: give an end after its start"
    return (
        f"{key} would end at {end}, before the end of snapshot {spec.since.id} ({start}): choose a"
        " later end, or an earlier snapshot for since"
    )


def _before(
    topics: Mapping[str, TopicInfo], spec: SnapshotSpec, facts: _Facts, faults: list[str]
) -> dict[TopicPartition, int]:
    """Return the end of the earlier snapshot in each partition. Add to `faults` what makes it
    impossible to continue from there. Records deleted by retention are no fault here: the reader
    decides about them."""
    if spec.since is None:
        return {}
    found = {}
    advice = "take a snapshot without since"
    for item in spec.since.ranges():
        key = item.topic_partition
        if key.topic not in topics:
            if not spec.partitions:
                faults.append(
                    f"topic {key.topic} of snapshot {spec.since.id} is not read: name it, or"
                    f" {advice}"
                )
            continue
        known = key.partition in topics[key.topic].partitions
        ended = facts.epoch_ends.get(key)
        if known and key not in facts.first:
            continue  # only some partitions are wanted
        current = CurrentPartition(
            known,
            topic_id_text(topics[key.topic]),
            facts.last[key].leader_epoch if known else NO_EPOCH,
            epoch_end=ended.end_offset if ended and not ended.error else NO_OFFSET,
        )
        damage = [str(fault) for fault in range_faults(item, item.end, current)]
        if known and not damage and facts.last[key].offset < item.end:
            damage.append(
                f"{key} now ends at {facts.last[key].offset}, before the end of snapshot"
                f" {spec.since.id} ({item.end}), so records were lost: {advice}"
            )
        faults += damage
        found[key] = item.end
    return found
