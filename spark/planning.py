"""Takes snapshots: asks the leaders for the offsets of all partitions in one round of requests, and
fixes the range of each partition."""

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
"""The time in seconds to wait for a topic that the metadata does not have: brokers learn of a new
topic one after the other."""
FAULTS_SHOWN: Final = 5


@dataclass(frozen=True, slots=True)
class AtTime:
    """The first record with the timestamp `timestamp_ms` (since 1970) or later. If there is none:
    the latest offset (`or_latest`), or else an error."""

    timestamp_ms: int
    or_latest: bool = True


Bound = int | AtTime
"""The start or end of a range: an offset, EARLIEST (-2), LATEST (-1), or a time."""
Bounds = Bound | Mapping[str, Bound | Mapping[int, Bound]]
"""One bound for all partitions, or a bound for every topic, or a bound for every partition."""


@dataclass(frozen=True, slots=True)
class SnapshotSpec:
    """The snapshot to take. Exactly one field chooses the partitions: `topics`, `pattern` (matches
    a part of the name) or `partitions`.

    If `since` is set, `starts` is ignored. The range of a partition then starts at the partition's
    end offset in the snapshot `since`, or at the log start offset if `since` lacks the partition.
    """

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
    """Return a snapshot that is taken now. Raises SnapshotError with all faults of the spec, and
    ClientError if the cluster does not answer."""
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
        responses = await _ask(cluster, keys, spec)
        cuts = _cuts(topics, keys, spec, responses)
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
    """Call `plan` from blocking code, and return its snapshot. `options` are client options with
    Kafka's names, with or without the prefix `kafka.`. Raises ConfigError and the errors of
    `plan`."""
    parsed, _ = parse_range_options({"client.id": CLIENT_ID, **options})
    return run_blocking(lambda: plan(parsed, spec))


def new_id(created_at_ms: int, rng: Rng) -> str:
    """Return a new ULID, an id that sorts by time: 26 letters and digits, of which the first 10 are
    the time."""
    number = created_at_ms << 80 | int.from_bytes(rng.randbytes(10), "big")
    return "".join(_LETTERS[number >> shift & 31] for shift in range(125, -1, -5))


def _fail(faults: Iterable[str]) -> None:
    found = list(dict.fromkeys(faults))
    if not found:
        return
    more = len(found) - FAULTS_SHOWN
    text = "; ".join(found[:FAULTS_SHOWN])
    raise SnapshotError(f"{text}; and {more} more" if more > 0 else text)


# Topics and partitions


def _check(spec: SnapshotSpec) -> None:
    """Raise SnapshotError if the spec has faults that are known without a request to the
    brokers."""
    faults = []
    given = [bool(spec.topics), spec.pattern is not None, bool(spec.partitions)]
    if sum(given) != 1:
        faults.append(
            "the list of topics is empty: give at least one topic"
            if not any(given)
            else "topics, pattern and partitions exclude each other: give exactly one of them"
        )
    for topic in [*spec.topics, *spec.partitions]:
        fault = topic_name_fault(topic)
        if fault is not None:
            faults.append(f"{fault}: name an existing topic")
    faults += [
        f"the list of partitions of topic {topic} is empty: give at least one partition, or"
        " leave the topic out"
        for topic, numbers in spec.partitions.items()
        if not numbers
    ]
    if spec.isolation not in ISOLATION_LEVELS:
        faults.append(f"isolation is {spec.isolation!r}, expected {' or '.join(ISOLATION_LEVELS)}")
    elif spec.since is not None and spec.since.isolation != spec.isolation:
        faults.append(
            f"snapshot {spec.since.id} has isolation {spec.since.isolation}, and a snapshot"
            f" that continues it must have the same: use isolation={spec.since.isolation}"
        )
    try:
        re.compile(spec.pattern or "")
    except re.error as error:
        faults.append(f"{spec.pattern!r} is not a regular expression: {error}")
    _fail(faults)


async def _topics(cluster: Cluster, spec: SnapshotSpec) -> dict[str, TopicInfo]:
    """Return the metadata of the chosen topics, sorted by name. Wait a short time for topics that
    the brokers do not know. Raises SnapshotError, ClientError."""
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
    """Raise a SnapshotError that lists the missing topics."""
    where = ", ".join(format_address(*item) for item in cluster.options.bootstrap_servers)
    if not missing:
        _fail([f"no topic of the cluster at {where} matches {spec.pattern!r}: change the pattern"])
    everything = await cluster.metadata(None, timeout_s=cluster.options.request_timeout_ms / 1_000)
    faults = []
    for name in sorted(missing):
        code = found[name].error
        if code in UNKNOWN_CODES:
            near = difflib.get_close_matches(name, everything.topics, n=1)
            hint = f"did you mean {near[0]}?" if near else "create it, or give another topic"
            faults.append(f"there is no topic {name} at {where}: {hint}")
        elif code:
            faults.append(f"the metadata of topic {name} cannot be read ({code.name}): {code.text}")
        else:
            faults.append(f"topic {name} has no partitions yet: try again in a few seconds")
    _fail(faults)


def _keys(topics: Mapping[str, TopicInfo], spec: SnapshotSpec) -> list[TopicPartition]:
    """Return the chosen partitions, sorted. Raises SnapshotError for a partition that does not
    exist."""
    if not spec.partitions:
        return [TopicPartition(name, n) for name in topics for n in sorted(topics[name].partitions)]
    keys = [TopicPartition(name, n) for name in topics for n in sorted({*spec.partitions[name]})]
    _fail(
        f"topic {key.topic} has no partition {key.partition}: choose partitions below"
        f" {len(topics[key.topic].partitions)}"
        for key in keys
        if key.partition not in topics[key.topic].partitions
    )
    return keys


# The cluster's answers


@dataclass(frozen=True, slots=True)
class _Responses:
    """The brokers' responses for each partition. `first`: log start offset. `last`: latest offset.
    `at_start`, `at_end`: offsets of AtTime bounds. `epoch_ends`: end offset of the leader epoch
    that the snapshot `since` recorded for the partition."""

    first: Mapping[TopicPartition, OffsetAnswer]
    last: Mapping[TopicPartition, OffsetAnswer]
    at_start: Mapping[TopicPartition, OffsetAnswer]
    at_end: Mapping[TopicPartition, OffsetAnswer]
    epoch_ends: Mapping[TopicPartition, EpochEnd]


async def _ask(cluster: Cluster, keys: Sequence[TopicPartition], spec: SnapshotSpec) -> _Responses:
    """Send all offset requests concurrently, and return the responses. Raises SnapshotError if a
    bound is invalid, or if an offset cannot be looked up."""
    deadline = Deadline(cluster.clock, cluster.options.default_api_timeout_ms)
    starts = {} if spec.since else _timestamps(keys, spec.starts, "start")
    ends = _timestamps(keys, spec.ends, "end")

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
        f"the start and end offsets of {key} cannot be looked up: {answer.error}"
        for answers in (first, last, at_start, at_end)
        for key, answer in answers.items()
        if answer.error is not None
    )
    return _Responses(first, last, at_start, at_end, ended)


def _timestamps(
    keys: Sequence[TopicPartition], bounds: Bounds, side: str
) -> dict[TopicPartition, int]:
    """Return the timestamp to look up for each partition whose `side` (start or end) is an AtTime.
    Raises SnapshotError if `bounds` do not fit the chosen partitions, or have an invalid offset."""
    found = {key: _bound(bounds, key) for key in keys}
    faults = [
        f"{key} is missing from the {side} offsets: give an offset for every partition (-2"
        " earliest, -1 latest)"
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
                faults.append(
                    f"{key} in the {side} offsets is not a chosen partition: leave it out"
                )
        if not any(key.topic == topic for key in known):
            faults.append(
                f"topic {topic} in the {side} offsets is not a chosen topic: leave it out"
            )
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
    responses: _Responses,
) -> dict[str, TopicCut]:
    """Return topic -> the offset range of the snapshot in each partition. Raises SnapshotError."""
    faults: list[str] = []
    before = _earlier_ends(topics, spec, responses, faults)
    cuts: dict[str, dict[int, PartitionCut]] = {name: {} for name in topics}
    for key in keys:
        first, last = responses.first[key].offset, responses.last[key]
        end = _offset_of(_bound(spec.ends, key), responses, key, responses.at_end, "end", faults)
        if spec.since is not None:
            start = before.get(key, first)
        else:
            start = _offset_of(
                _bound(spec.starts, key), responses, key, responses.at_start, "start", faults
            )
        if start > end and not faults:
            faults.append(_reversed(key, start, end, spec))
        info = topics[key.topic].partitions[key.partition]
        epoch = last.leader_epoch if last.leader_epoch >= 0 else info.leader_epoch
        cuts[key.topic][key.partition] = PartitionCut(start, end, first, epoch)
    _fail(faults)
    return {name: TopicCut(topic_id_text(topics[name]), rows) for name, rows in cuts.items()}


def _offset_of(
    bound: Bound | None,
    responses: _Responses,
    key: TopicPartition,
    at_time: Mapping[TopicPartition, OffsetAnswer],
    side: str,
    faults: list[str],
) -> int:
    """Return the offset of `bound`. None means the latest offset. Add a fault if `bound` is above
    the latest offset, or if no record matches an AtTime whose `or_latest` is false."""
    first, last = responses.first[key].offset, responses.last[key].offset
    if isinstance(bound, AtTime):
        offset = at_time[key].offset
        if offset < 0 and not bound.or_latest:
            faults.append(
                f"{key} has no record with the timestamp {bound.timestamp_ms} or later "
                f"for its {side}: give an earlier time, or allow the log end offset "
                "in place of the missing record"
            )
        return last if offset < 0 else min(offset, last)
    if bound == EARLIEST:
        return first
    if bound == LATEST or bound is None:
        return last
    if bound > last:
        faults.append(
            f"{key} ends at offset {last}, so its {side} offset {bound} does not exist yet:"
            f" give {last} or less, or wait"
        )
    return bound


def _reversed(key: TopicPartition, start: int, end: int, spec: SnapshotSpec) -> str:
    if spec.since is None:
        return (
            f"the range of {key} starts at offset {start}, after its end {end}: give an"
            " end after the start"
        )
    return (
        f"the range of {key} would end at offset {end}, before offset {start}, where the range"
        f" in snapshot {spec.since.id} ends: choose a later end, or an earlier snapshot for since"
    )


def _earlier_ends(
    topics: Mapping[str, TopicInfo], spec: SnapshotSpec, responses: _Responses, faults: list[str]
) -> dict[TopicPartition, int]:
    """Return each partition's end in `spec.since`, where the new range starts. Add a fault if a
    range cannot start there. Deletion by retention is no fault."""
    if spec.since is None:
        return {}
    found = {}
    advice = "take a snapshot without since"
    for item in spec.since.ranges():
        key = item.topic_partition
        if key.topic not in topics:
            if not spec.partitions:
                faults.append(
                    f"topic {key.topic} of snapshot {spec.since.id} is not chosen: add it, or"
                    f" {advice}"
                )
            continue
        known = key.partition in topics[key.topic].partitions
        ended = responses.epoch_ends.get(key)
        if known and key not in responses.first:
            continue  # the spec does not choose this partition
        current = CurrentPartition(
            known,
            topic_id_text(topics[key.topic]),
            responses.last[key].leader_epoch if known else NO_EPOCH,
            epoch_end=ended.end_offset if ended and not ended.error else NO_OFFSET,
        )
        damage = [str(fault) for fault in range_faults(item, item.end, current)]
        if known and not damage and responses.last[key].offset < item.end:
            damage.append(
                f"{key} now ends at offset {responses.last[key].offset}, before the end of"
                f" snapshot {spec.since.id} ({item.end}), so records were lost: {advice}"
            )
        faults += damage
        found[key] = item.end
    return found
