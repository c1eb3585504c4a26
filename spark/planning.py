"""Takes snapshots: asks a cluster where partitions begin and end, all of them in one round, and
cuts each.

What is asked for is a `Wish`; everything that is wrong with it is told in one SnapshotError, a line
for each fault at most.
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
"""A topic that was made a moment ago is not known to every broker yet."""
FAULTS_SHOWN: Final = 5


@dataclass(frozen=True, slots=True)
class AtTime:
    """The first record whose timestamp is `timestamp_ms` (since 1970) or later. Where no record is
    that late: the end (`or_latest`), or a fault."""

    timestamp_ms: int
    or_latest: bool = True


Bound = int | AtTime
"""An offset, EARLIEST (-2), LATEST (-1), or a moment."""
Bounds = Bound | Mapping[str, Bound | Mapping[int, Bound]]
"""One for all partitions, or for each topic, or for each partition. All must be named."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What a snapshot shall hold. The topics are those named, those in whose name the regular
    expression `pattern` is found, or the partitions in `partitions` by topic: exactly one of them.
    With `since` each partition starts where that snapshot ended, and one that it did not know at
    its log's start; `starts` is not looked at then."""

    topics: Sequence[str] = ()
    pattern: str | None = None
    partitions: Mapping[str, Sequence[int]] = field(default_factory=dict)
    starts: Bounds = EARLIEST
    ends: Bounds = LATEST
    since: Snapshot | None = None
    isolation: str = "read_committed"


async def plan(
    options: ConsumerOptions, wish: Wish, *, clock: Clock | None = None, rng: Rng | None = None
) -> Snapshot:
    """The snapshot at this moment. Raises SnapshotError for what the wish asks for and cannot have,
    and ClientError where the cluster cannot be asked."""
    _check(wish)
    clock = clock or defaults.make_clock()
    rng = rng or defaults.make_rng()
    cluster = Cluster(options, clock=clock, rng=rng)
    try:
        if wish.pattern is not None:
            cluster.watch_all(True)
        else:
            cluster.watch({*wish.topics, *wish.partitions})
        await cluster.start()
        created_at_ms = clock.wall_ms()
        other = wrong_cluster(cluster, wish.since.cluster_id) if wish.since else None
        if other is not None:
            raise SnapshotError(other)
        topics = await _topics(cluster, wish)
        keys = _keys(topics, wish)
        facts = await _ask(cluster, keys, wish)
        cuts = _cuts(topics, keys, wish, facts)
        return Snapshot(
            id=new_id(created_at_ms, rng),
            cluster_id=cluster.view.cluster_id or "",
            created_at_ms=created_at_ms,
            isolation=wish.isolation,
            topics=cuts,
            parent=wish.since.id if wish.since else None,
            bootstrap=",".join(format_address(*item) for item in options.bootstrap_servers),
        )
    finally:
        await cluster.close()


def plan_blocking(options: Mapping[str, str], wish: Wish) -> Snapshot:
    """As `plan`, for blocking code. `options` are those of the client under Kafka's names, with or
    without `kafka.` before them. Raises ConfigError, too."""
    parsed, _ = parse_range_options({"client.id": CLIENT_ID, **options})
    return run_blocking(lambda: plan(parsed, wish))


def new_id(created_at_ms: int, rng: Rng) -> str:
    """An id that sorts by time: 26 letters and digits, of which the first 10 are the moment (a
    ULID)."""
    number = created_at_ms << 80 | int.from_bytes(rng.randbytes(10), "big")
    return "".join(_LETTERS[number >> shift & 31] for shift in range(125, -1, -5))


def _fail(faults: Iterable[str]) -> None:
    """Raises SnapshotError if there are any."""
    found = list(dict.fromkeys(faults))
    if not found:
        return
    more = len(found) - FAULTS_SHOWN
    text = "; ".join(found[:FAULTS_SHOWN])
    raise SnapshotError(f"{text}; and {more} more" if more > 0 else text)


# What is asked for


def _check(wish: Wish) -> None:
    """What can be found wrong without asking anybody. Raises SnapshotError."""
    faults = []
    given = [bool(wish.topics), wish.pattern is not None, bool(wish.partitions)]
    if sum(given) != 1:
        faults.append(
            "no topic is named: name at least one"
            if not any(given)
            else "topics, a pattern and partitions exclude each other: give one of them"
        )
    for topic in [*wish.topics, *wish.partitions]:
        fault = topic_name_fault(topic)
        if fault is not None:
            faults.append(f"{fault}: name an existing topic")
    faults += [
        f"no partition of topic {topic} is named: name at least one, or leave the topic out"
        for topic, numbers in wish.partitions.items()
        if not numbers
    ]
    if wish.isolation not in ISOLATION_LEVELS:
        faults.append(f"isolation is {wish.isolation!r}, expected {' or '.join(ISOLATION_LEVELS)}")
    elif wish.since is not None and wish.since.isolation != wish.isolation:
        faults.append(
            f"snapshot {wish.since.id} is {wish.since.isolation}, and one that goes on from it has"
            f" to be, too: take this one with isolation={wish.since.isolation}"
        )
    try:
        re.compile(wish.pattern or "")
    except re.error as error:
        faults.append(f"{wish.pattern!r} is no regular expression: {error}")
    _fail(faults)


async def _topics(cluster: Cluster, wish: Wish) -> dict[str, TopicInfo]:
    """What is known of the topics, sorted by name. Raises SnapshotError, ClientError."""
    deadline = Deadline(cluster.clock, int(UNKNOWN_TOPIC_LIMIT_S * 1_000))
    while True:
        found = _chosen(cluster.view, wish)
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
        await _explain(cluster, wish, found, missing)
    return dict(sorted(ready.items()))


def _chosen(view: ClusterView, wish: Wish) -> dict[str, TopicInfo]:
    if wish.pattern is not None:
        pattern = re.compile(wish.pattern)
        return {
            name: topic
            for name, topic in view.topics.items()
            if not topic.internal and pattern.search(name)
        }
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return {
        name: view.topics.get(name) or TopicInfo(name, unknown, NO_TOPIC_ID, False, {})
        for name in {*wish.topics, *wish.partitions}
    }


async def _explain(
    cluster: Cluster, wish: Wish, found: Mapping[str, TopicInfo], missing: Sequence[str]
) -> None:
    """Raises SnapshotError that says why there is no such topic."""
    where = ", ".join(format_address(*item) for item in cluster.options.bootstrap_servers)
    if not missing:
        _fail([f"no topic at {where} has a name that {wish.pattern!r} matches: change the pattern"])
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


def _keys(topics: Mapping[str, TopicInfo], wish: Wish) -> list[TopicPartition]:
    """The partitions meant, sorted. Raises SnapshotError."""
    if not wish.partitions:
        return [TopicPartition(name, n) for name in topics for n in sorted(topics[name].partitions)]
    keys = [TopicPartition(name, n) for name in topics for n in sorted({*wish.partitions[name]})]
    _fail(
        f"topic {key.topic} has no partition {key.partition}, it has"
        f" {len(topics[key.topic].partitions)} of them: name others"
        for key in keys
        if key.partition not in topics[key.topic].partitions
    )
    return keys


# What the cluster says


@dataclass(frozen=True, slots=True)
class _Facts:
    """One answer a partition. `moments` are those of AtTime bounds; `epoch_ends` say where the
    leader epochs of the earlier snapshot end now."""

    first: Mapping[TopicPartition, OffsetAnswer]
    last: Mapping[TopicPartition, OffsetAnswer]
    at_start: Mapping[TopicPartition, OffsetAnswer]
    at_end: Mapping[TopicPartition, OffsetAnswer]
    epoch_ends: Mapping[TopicPartition, EpochEnd]


async def _ask(cluster: Cluster, keys: Sequence[TopicPartition], wish: Wish) -> _Facts:
    """All in one round. Raises SnapshotError where a partition cannot be asked."""
    deadline = Deadline(cluster.clock, cluster.options.default_api_timeout_ms)
    starts = {} if wish.since else _moments(keys, wish.starts, "start")
    ends = _moments(keys, wish.ends, "end")

    async def look_up(
        moments: Mapping[TopicPartition, int],
    ) -> Mapping[TopicPartition, OffsetAnswer]:
        return await list_offsets(
            cluster, moments, isolation_level=wish.isolation, deadline=deadline
        )

    known = {
        item.topic_partition: item.leader_epoch
        for item in (wish.since.ranges() if wish.since else ())
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
        f"{key} cannot be asked where it begins and ends: {answer.error}"
        for answers in (first, last, at_start, at_end)
        for key, answer in answers.items()
        if answer.error is not None
    )
    return _Facts(first, last, at_start, at_end, ended)


def _moments(
    keys: Sequence[TopicPartition], bounds: Bounds, side: str
) -> dict[TopicPartition, int]:
    """The times that have to be looked up. Raises SnapshotError for partitions that the bounds do
    not name, and for those that they name and that are not there."""
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
    topics: Mapping[str, TopicInfo], keys: Sequence[TopicPartition], wish: Wish, facts: _Facts
) -> dict[str, TopicCut]:
    """Raises SnapshotError."""
    faults: list[str] = []
    before = _before(topics, wish, facts, faults)
    cuts: dict[str, dict[int, PartitionCut]] = {name: {} for name in topics}
    for key in keys:
        first, last = facts.first[key].offset, facts.last[key]
        end = _resolved(_bound(wish.ends, key), facts, key, facts.at_end, "end", faults)
        if wish.since is not None:
            start = before.get(key, first)
        else:
            start = _resolved(_bound(wish.starts, key), facts, key, facts.at_start, "start", faults)
        if start > end and not faults:
            faults.append(_reversed(key, start, end, wish))
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
    """The offset that a bound means."""
    first, last = facts.first[key].offset, facts.last[key].offset
    if isinstance(bound, AtTime):
        offset = at_time[key].offset
        if offset < 0 and not bound.or_latest:
            faults.append(
                f"{key} has no record of {bound.timestamp_ms} or later for its {side}: give an"
                " earlier time, or take the end of the partition then"
            )
        return last if offset < 0 else min(offset, last)
    if bound == EARLIEST:
        return first
    if bound == LATEST or bound is None:
        return last
    if bound > last:
        faults.append(
            f"{key} ends at {last}, its {side} offset {bound} lies in the future: give {last} or"
            " less, or wait"
        )
    return bound


def _reversed(key: TopicPartition, start: int, end: int, wish: Wish) -> str:
    if wish.since is None:
        return f"the range of {key} is reversed, from {start} to {end}: give an end after its start"
    return (
        f"{key} would end at {end}, before snapshot {wish.since.id} ended ({start}): choose a later"
        " end, or an earlier snapshot to go on from"
    )


def _before(
    topics: Mapping[str, TopicInfo], wish: Wish, facts: _Facts, faults: list[str]
) -> dict[TopicPartition, int]:
    """Where the earlier snapshot ended in each partition. Faults are what makes it impossible to go
    on from there; that records have aged out since is for whoever reads to decide."""
    if wish.since is None:
        return {}
    found = {}
    advice = "take a snapshot without an earlier one to go on from"
    for item in wish.since.ranges():
        key = item.topic_partition
        if key.topic not in topics:
            if not wish.partitions:
                faults.append(
                    f"topic {key.topic} of snapshot {wish.since.id} is not read: name it, or"
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
                f"{key} ends at {facts.last[key].offset} now, before snapshot {wish.since.id} did"
                f" ({item.end}), so that records were lost: {advice}"
            )
        faults += damage
        found[key] = item.end
    return found
