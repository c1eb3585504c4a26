"""Plain counters. Hot paths count here instead of logging; what the numbers are called outside is
said in `pybroker/admin/`.

Attributes are raised in place (`counters.bytes_in += size`), from the event loop only, except where
a class says otherwise. Nothing here reads a clock.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Final

SUB_BUCKETS: Final = 8
"""Buckets between a duration and its double: a quantile is right to an eighth."""
_FINEST: Final = 2 * SUB_BUCKETS
_NOTHING: Final = -1024
API_KEYS: Final = 256
"""One meter for each value of the low byte of an API key, known or not."""


@dataclass(slots=True)
class TopicCounters:
    """What clients did with one topic since the start. Every partition of the topic has the same
    one at hand."""

    messages_in: int = 0
    """Records that were appended."""
    bytes_in: int = 0
    """Bytes of record batches that were appended, as they came."""
    bytes_out: int = 0
    """Bytes of record batches in answers to fetches."""
    produce_requests: int = 0
    """Batches for a partition, taken or not."""
    failed_produce_requests: int = 0
    fetch_requests: int = 0
    """Reads of a partition that were answered."""
    failed_fetch_requests: int = 0

    def add(self, other: TopicCounters) -> None:
        for name in COUNTER_NAMES:
            setattr(self, name, getattr(self, name) + getattr(other, name))


COUNTER_NAMES: Final = tuple(item.name for item in fields(TopicCounters))


@dataclass(slots=True)
class FetchSessionCounters:
    """The incremental fetch sessions that a broker remembers (KIP-227)."""

    sessions: int = 0
    partitions: int = 0
    """In all sessions together."""
    evictions: int = 0
    """Sessions that had to make room for others."""


class TimeMeter:
    """How long something took: how often, how long together, and how the durations are spread.

    `buckets` is bucket -> count; `bucket_of` and `bucket_end_s` say which durations a bucket holds.
    """

    __slots__ = ("buckets", "count", "total_s")

    def __init__(self) -> None:
        self.count = 0
        self.total_s = 0.0
        self.buckets: dict[int, int] = {}

    def add(self, seconds: float, weight: int = 1) -> None:
        """Count a duration, as `weight` ones where it stands for others that were not taken."""
        self.count += weight
        self.total_s += seconds * weight
        bucket = bucket_of(seconds)
        self.buckets[bucket] = self.buckets.get(bucket, 0) + weight


class SharedTimeMeter(TimeMeter):
    """A meter that several threads add to."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()

    def add(self, seconds: float, weight: int = 1) -> None:
        with self._lock:
            super().add(seconds, weight)


class RequestMeter:
    """The requests of one API: all are counted, and the time of some is taken."""

    __slots__ = ("count", "times")

    def __init__(self) -> None:
        self.count = 0
        self.times = TimeMeter()


def bucket_of(seconds: float) -> int:
    """The bucket of a duration; those below a nanosecond share one."""
    if seconds < 1e-9:
        return _NOTHING
    fraction, exponent = math.frexp(seconds)
    return exponent * SUB_BUCKETS + int(fraction * _FINEST) - SUB_BUCKETS


def bucket_end_s(bucket: int) -> float:
    """The duration above every one in the bucket."""
    if bucket == _NOTHING:
        return 0.0
    exponent, part = divmod(bucket, SUB_BUCKETS)
    return math.ldexp((part + SUB_BUCKETS + 1) / _FINEST, exponent)


def quantile_s(buckets: Mapping[int, int], share: float) -> float:
    """The duration that `share` (0 to 1) of the counted ones do not exceed; 0 if none is
    counted."""
    total = sum(buckets.values())
    seen = 0
    for bucket in sorted(buckets):
        seen += buckets[bucket]
        if seen >= share * total:
            return bucket_end_s(bucket)
    return 0.0


@dataclass(slots=True)
class FetcherCounters:
    """What this broker has copied from another one since the start."""

    requests: int = 0
    failures: int = 0
    """Requests that got no answer, or that were refused as a whole."""
    bytes: int = 0
    """Bytes of record batches that were appended."""


@dataclass(slots=True)
class GroupCounters:
    """What happened in the groups that this broker coordinates, since the start."""

    completed_rebalances: int = 0
    """Generations whose leader handed over an assignment."""


@dataclass(slots=True)
class Metrics:
    """All that one broker counts."""

    topics: dict[str, TopicCounters] = field(default_factory=dict)
    """Topics that this broker holds partitions of. `topic` adds one."""
    gone: TopicCounters = field(default_factory=TopicCounters)
    """What was counted for topics that were deleted, and for names that are no topics here."""
    requests: list[RequestMeter] = field(
        default_factory=lambda: [RequestMeter() for _ in range(API_KEYS)]
    )
    """By API key."""
    closed: dict[str, int] = field(default_factory=dict)
    """Connections that this broker ended or refused: reason (one of a few words) -> count."""
    accepted: dict[str, int] = field(default_factory=dict)
    """Connections that were accepted: listener -> count."""
    syncs: SharedTimeMeter = field(default_factory=SharedTimeMeter)
    """Times of making the file of a log durable; added to by several threads."""
    coordination: TimeMeter = field(default_factory=TimeMeter)
    """Times of requests to ZooKeeper that were answered."""
    elections: TimeMeter = field(default_factory=TimeMeter)
    """Times in which this broker's controller found leaders after brokers had come or gone."""
    fetchers: dict[int, FetcherCounters] = field(default_factory=dict)
    """By the broker that is copied from."""
    replication_bytes_out: int = 0
    """Bytes of record batches in answers to followers."""
    isr_shrinks: int = 0
    isr_expands: int = 0
    isr_update_failures: int = 0
    """Changes of in-sync replicas that were not stored as proposed."""
    fetch_sessions: FetchSessionCounters = field(default_factory=FetchSessionCounters)
    groups: GroupCounters = field(default_factory=GroupCounters)

    def topic(self, name: str) -> TopicCounters:
        """The counters of a topic that exists here; made at the first call."""
        found = self.topics.get(name)
        if found is None:
            found = self.topics[name] = TopicCounters()
        return found

    def counters(self, name: str) -> TopicCounters:
        """The counters of a topic that a client named: `gone` if there is none here, so that no
        client can fill the memory with names."""
        return self.topics.get(name, self.gone)

    def forget_topic(self, name: str) -> None:
        """The topic is gone; what it counted stays in the sum."""
        found = self.topics.pop(name, None)
        if found is not None:
            self.gone.add(found)

    def all_topics(self) -> TopicCounters:
        """The sum over all topics, also over those that are gone."""
        total = TopicCounters()
        for counters in [self.gone, *self.topics.values()]:
            total.add(counters)
        return total

    def connection_closed(self, reason: str) -> None:
        """`reason` must be one of a few fixed words."""
        self.closed[reason] = self.closed.get(reason, 0) + 1
