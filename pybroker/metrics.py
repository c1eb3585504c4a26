"""Plain counters: code that runs for each request counts events here instead of logging them. The
page `/metrics` shows the fields declared by `counter`, `gauge` or a similar function. Fields are
incremented in place, on the event loop only unless the class says otherwise."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final, NamedTuple, TypeVar

T = TypeVar("T")
KeyT = TypeVar("KeyT")

SUB_BUCKETS: Final = 8
"""The number of buckets between a duration and its double. With eight, the error of a quantile is
at most one eighth."""
_FINEST: Final = 2 * SUB_BUCKETS
_NOTHING: Final = -1024
API_KEYS: Final = 256
"""The number of request meters: one for each value of the low byte of an API key, even for values
that no API has."""

COUNTER: Final = "counter"
GAUGE: Final = "gauge"
SUMMARY: Final = "summary"
HISTOGRAM: Final = "histogram"


class Family(NamedTuple):
    """The declaration of a metric: its name, its kind, the names of its labels, and a
    description."""

    name: str
    kind: str
    labels: tuple[str, ...]
    meaning: str


def counter(name: str, meaning: str, *labels: str) -> int:
    """Return a field that declares a metric: a number that only grows."""
    return _row(Family(name, COUNTER, labels, meaning), int)


def counters_by(label: str, name: str, meaning: str) -> dict[str, int]:
    """Return a field that declares a metric with one number for each value of `label`. The numbers
    only grow. The values of `label` are a few fixed words."""
    return _row(Family(name, COUNTER, (label,), meaning), dict)


def gauge(name: str, meaning: str, *labels: str) -> int:
    """Return a field that declares a metric: a number that grows and shrinks."""
    return _row(Family(name, GAUGE, labels, meaning), int)


def gauges_by(name: str, meaning: str, *labels: str) -> dict[KeyT, int]:
    """Return a field that declares a metric: several numbers that grow and shrink. The field is a
    dict: key -> number. A key is a tuple with the values of the labels. The first labels are left
    out of the key if their values are the same for the whole dict."""
    return _row(Family(name, GAUGE, labels, meaning), dict)


def histogram(name: str, meaning: str, *labels: str) -> TimeMeter:
    """Return a field that declares a metric: durations in seconds, shown as the number of durations
    up to each limit in `metrics_text.LIMITS_S`."""
    return _row(Family(name, HISTOGRAM, labels, meaning), TimeMeter)


def summary(name: str, meaning: str, make: Callable[[], T]) -> T:
    """Return a field that declares a metric of durations, shown in ms. `make` creates the object
    that counts the durations."""
    return _row(Family(name, SUMMARY, (), meaning), make)


def _row(family: Family, make: Callable[[], T]) -> T:
    made: T = field(default_factory=make, metadata={"family": family})
    return made


def families_of(table: type[Any]) -> dict[str, Family]:
    """Return field name -> declaration, for each field of the dataclass `table` that has a
    declaration, in the order of the fields."""
    return {
        item.name: item.metadata["family"] for item in fields(table) if "family" in item.metadata
    }


@dataclass(slots=True)
class TopicCounters:
    """Counts the reads and writes of clients in one topic since the broker started."""

    # fmt: off
    messages_in: int = counter("kafka_server_brokertopicmetrics_messagesin_total", "Records that producers wrote. In this metric and in the next six metrics, the line without a topic label is the sum over all topics.", "topic")
    bytes_in: int = counter("kafka_server_brokertopicmetrics_bytesin_total", "Bytes of record batches that producers wrote. A compressed batch counts with its compressed size.", "topic")
    bytes_out: int = counter("kafka_server_brokertopicmetrics_bytesout_total", "Bytes of record batches that were sent to consumers.", "topic")
    produce_requests: int = counter("kafka_server_brokertopicmetrics_totalproducerequests_total", "Partitions in Produce requests. A refused partition is counted, too.", "topic")
    failed_produce_requests: int = counter("kafka_server_brokertopicmetrics_failedproducerequests_total", "Partitions in Produce requests whose records the broker refused.", "topic")
    fetch_requests: int = counter("kafka_server_brokertopicmetrics_totalfetchrequests_total", "Partitions in Fetch responses. A partition without records or with an error is counted, too.", "topic")
    failed_fetch_requests: int = counter("kafka_server_brokertopicmetrics_failedfetchrequests_total", "Partitions that have an error in a Fetch response.", "topic")
    # fmt: on

    def add(self, other: TopicCounters) -> None:
        for name in COUNTER_NAMES:
            setattr(self, name, getattr(self, name) + getattr(other, name))


COUNTER_NAMES: Final = tuple(item.name for item in fields(TopicCounters))


@dataclass(slots=True)
class FetchSessionCounters:
    """Counts the fetch sessions that a broker caches (KIP-227)."""

    # fmt: off
    sessions: int = gauge("kafka_server_fetchsessioncache_numincrementalfetchsessions", "Fetch sessions in the cache, of consumers and followers.")
    partitions: int = gauge("kafka_server_fetchsessioncache_numincrementalfetchpartitionscached", "Partitions in all cached fetch sessions.")
    evictions: int = counter("kafka_server_fetchsessioncache_incrementalfetchsessionevictions_total", "Fetch sessions that were evicted to make room for others.")
    # fmt: on


class TimeMeter:
    """A set of durations: their number, their sum, and their distribution.

    `buckets` maps the number of a bucket (`bucket_of`) to the number of durations in it.
    """

    __slots__ = ("buckets", "count", "total_s")

    def __init__(self) -> None:
        self.count = 0
        self.total_s = 0.0
        self.buckets: dict[int, int] = {}

    def add(self, seconds: float, weight: int = 1) -> None:
        """Count a duration (s) `weight` times. If only one of N durations is measured, its weight
        is N."""
        self.count += weight
        self.total_s += seconds * weight
        bucket = bucket_of(seconds)
        self.buckets[bucket] = self.buckets.get(bucket, 0) + weight

    def quantile_s(self, share: float) -> float:
        """Return the quantile `share` (0 to 1) of the durations, in seconds; 0 without durations.
        The result is at most one eighth too large."""
        return quantile_s(self.buckets, share)


class SharedTimeMeter(TimeMeter):
    """A TimeMeter to which several threads may add durations."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()

    def add(self, seconds: float, weight: int = 1) -> None:
        with self._lock:
            super().add(seconds, weight)


class RequestMeter:
    """The number of requests of one API, and the durations of the requests that were measured."""

    __slots__ = ("count", "times")

    def __init__(self) -> None:
        self.count = 0
        self.times = TimeMeter()


def bucket_of(seconds: float) -> int:
    """Return the number that identifies the bucket of a duration. All durations below a nanosecond
    are in the same bucket."""
    if seconds < 1e-9:
        return _NOTHING
    fraction, exponent = math.frexp(seconds)
    return exponent * SUB_BUCKETS + int(fraction * _FINEST) - SUB_BUCKETS


def bucket_end_s(bucket: int) -> float:
    """Return the upper end (s) of a bucket: all its durations are shorter."""
    if bucket == _NOTHING:
        return 0.0
    exponent, part = divmod(bucket, SUB_BUCKETS)
    return math.ldexp((part + SUB_BUCKETS + 1) / _FINEST, exponent)


def quantile_s(buckets: Mapping[int, int], share: float) -> float:
    """Return the quantile `share` (0 to 1), in seconds, of the durations in the buckets of a
    TimeMeter. Return 0 if there are no durations."""
    total = sum(buckets.values())
    seen = 0
    for bucket in sorted(buckets):
        seen += buckets[bucket]
        if seen >= share * total:
            return bucket_end_s(bucket)
    return 0.0


@dataclass(slots=True)
class FetcherCounters:
    """Counts what this broker, as a follower, has fetched from one leader since the broker
    started."""

    # fmt: off
    requests: int = counter("kafka_server_fetcherstats_requests_total", "Fetch requests to each leader.", "broker")
    failures: int = 0
    """Requests that got no response, or an error for the whole request."""
    bytes: int = counter("kafka_server_fetcherstats_bytes_total", "Bytes of record batches that were fetched from each leader.", "broker")
    # fmt: on


@dataclass(slots=True)
class GroupCounters:
    """The number of completed rebalances, since the broker started, in the groups that the broker
    coordinates."""

    # fmt: off
    completed_rebalances: int = gauge("kafka_server_group_coordinator_metrics_group_completed_rebalance_count", "Rebalances since the broker's start that were completed by an assignment of the group's leader.")
    # fmt: on


@dataclass(slots=True)
class CleanerCounters:
    """The work of the log cleaner."""

    # fmt: off
    uncleanable: int = gauge("kafka_log_logcleanermanager_uncleanable_partitions_count", "Compacted logs that the log cleaner could not clean. The cleaner tries them again later.")
    dirty_percent: int = gauge("kafka_log_logcleanermanager_max_dirty_percent", "The largest share of uncleaned bytes, in percent, among the logs that are due for cleaning.")
    due_logs: int = gauge("pybroker_log_cleaner_due_logs", "Compacted logs that are due for cleaning and wait for the log cleaner.")
    due_bytes: int = gauge("pybroker_log_cleaner_due_bytes", "Uncleaned bytes in the logs that are due for cleaning and wait for the log cleaner.")
    running_bytes: int = gauge("pybroker_log_cleaner_running_bytes", "Bytes of the segments that the log cleaner cleans now. It reads the dirty segments twice, so pybroker_log_cleaner_read_bytes_total grows by more than the value of this metric.")
    read_bytes: int = counter("pybroker_log_cleaner_read_bytes_total", "Bytes that the log cleaner has read.")
    recopy_percent: int = gauge("kafka_log_logcleaner_cleaner_recopy_percent", "The size of the last cleaned log after the cleaner's pass, in percent of the log's size before the pass.")
    last_clean_seconds: int = gauge("kafka_log_logcleaner_max_clean_time_secs", "The time, in seconds, that the last pass over a log took.")
    passes: int = counter("pybroker_log_cleaner_passes_total", "Passes of the log cleaner over a log.")
    removed_bytes: int = counter("pybroker_log_cleaner_removed_bytes_total", "Bytes by which the log cleaner has made logs smaller.")
    # fmt: on


@dataclass(slots=True)
class Metrics:
    """All counters of one broker."""

    topics: dict[str, TopicCounters] = field(default_factory=dict)
    """Topic name -> its counters, for the topics that have a replica on this broker. `topic` adds a
    topic."""
    gone: TopicCounters = field(default_factory=TopicCounters)
    """The sum of the counters of deleted topics. Requests for topics that this broker does not have
    are counted here, too."""
    requests: list[RequestMeter] = field(
        default_factory=lambda: [RequestMeter() for _ in range(API_KEYS)]
    )
    """The request meters; the index is the low byte of the API key."""
    fetchers: dict[int, FetcherCounters] = field(default_factory=dict)
    """Broker id of a leader -> the counters of what this broker has fetched from it."""
    fetch_sessions: FetchSessionCounters = field(default_factory=FetchSessionCounters)
    groups: GroupCounters = field(default_factory=GroupCounters)
    cleaner: CleanerCounters = field(default_factory=CleanerCounters)
    # fmt: off
    closed: dict[str, int] = counters_by("reason", "pybroker_connections_closed_total", "Connections that were closed. The reasons are peer (the other side closed it), idle, slow (a request arrived too slowly), limit (too many connections), malformed (an invalid request), refused (a request that the broker does not serve), fault (an unexpected error of the broker) and shutdown.")
    accepted: dict[str, int] = counters_by("listener", "pybroker_connections_accepted_total", "Connections that were accepted.")
    syncs: SharedTimeMeter = summary("kafka_log_logflushstats_logflushrateandtimems", "Time of an fsync of a log's file, in ms.", SharedTimeMeter)
    coordination: TimeMeter = summary("kafka_server_zookeeperclientmetrics_zookeeperrequestlatencyms", "Time of a ZooKeeper request until its answer, in ms.", TimeMeter)
    elections: TimeMeter = summary("kafka_controller_controllerstats_leaderelectionrateandtimems", "Time, in ms, that the controller needs to elect leaders and store them in ZooKeeper after brokers have joined or left.", TimeMeter)
    replication_bytes_out: int = counter("kafka_server_brokertopicmetrics_replicationbytesout_total", "Bytes of record batches that were sent to followers. The topic metrics do not include these bytes.")
    isr_shrinks: int = counter("kafka_server_replicamanager_isrshrinks_total", "Replicas that left an ISR.")
    isr_expands: int = counter("kafka_server_replicamanager_isrexpands_total", "Replicas that joined an ISR again.")
    verification_failures: int = counter("kafka_server_addpartitionstotxnmanager_verificationfailurerate_total", "Partitions whose leader refused the first batch of a transaction, because the coordinator did not confirm that the transaction includes the partition (KIP-890).")
    verifications: TimeMeter = summary("kafka_server_addpartitionstotxnmanager_verificationtimems", "Time of a leader's request that asks the transaction coordinator whether a transaction includes a partition (KIP-890), in ms.", TimeMeter)
    isr_update_failures: int = counter("kafka_server_replicamanager_failedisrupdates_total", "Changes of an ISR that the leader could not write to ZooKeeper.")
    # fmt: on

    def topic(self, name: str) -> TopicCounters:
        """Return the counters of a topic with a replica on this broker, creating them if need
        be."""
        found = self.topics.get(name)
        if found is None:
            found = self.topics[name] = TopicCounters()
        return found

    def counters(self, name: str) -> TopicCounters:
        """Return the topic's counters. All topics without a replica here share the counters `gone`,
        so that the topic names in clients' requests cannot fill the memory."""
        return self.topics.get(name, self.gone)

    def forget_topic(self, name: str) -> None:
        """Remove the counters of a deleted topic, and add their values to `gone`."""
        found = self.topics.pop(name, None)
        if found is not None:
            self.gone.add(found)

    def all_topics(self) -> TopicCounters:
        """Return the sum of the counters of all topics, including deleted topics."""
        total = TopicCounters()
        for counters in [self.gone, *self.topics.values()]:
            total.add(counters)
        return total

    def connection_closed(self, reason: str) -> None:
        """Count a closed connection. `reason` must be one of a few fixed words."""
        self.closed[reason] = self.closed.get(reason, 0) + 1
