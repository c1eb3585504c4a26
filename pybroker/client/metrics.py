"""The counters of producers and consumers, and their text for Prometheus.

A metric that Kafka's Java client also has gets the JMX exporter's name. The names of all other
metrics begin with `pybroker_`. The clients count once for each batch, request or response, never
for each record.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final, TypeVar

from pybroker.metrics import (
    Family,
    TimeMeter,
    counter,
    families_of,
    gauge,
    gauges_by,
    histogram,
)
from pybroker.metrics_text import Line, Number, family, histogram_lines, labels
from pybroker.model import TopicPartition

TopicT = TypeVar("TopicT", "ProducerTopicMetrics", "ConsumerTopicMetrics")

CLIENT: Final = ("client_id",)
TOPIC: Final = ("client_id", "topic")
PARTITION: Final = ("client_id", "topic", "partition")
_SENT: Final = "kafka_producer_producer_topic_metrics"
_PRODUCER: Final = "kafka_producer_producer_metrics"
_FETCHED: Final = "kafka_consumer_consumer_fetch_manager_metrics"
_GROUP: Final = "kafka_consumer_consumer_coordinator_metrics"


@dataclass(slots=True)
class ProducerTopicMetrics:
    """Counts what a producer has sent to one topic."""

    # fmt: off
    records: int = counter(f"{_SENT}_record_send_total", "Records that brokers have acknowledged; with acks=0, records that were sent. In Kafka record-send-total also counts a record again for each retry.", *TOPIC)
    bytes: int = counter(f"{_SENT}_byte_total", "Bytes of the acknowledged batches, as sent (compressed). Kafka: byte-total.", *TOPIC)
    failed_records: int = counter(f"{_SENT}_record_error_total", "Records whose delivery failed. Kafka: record-error-total.", *TOPIC)
    retried_records: int = counter(f"{_SENT}_record_retry_total", "Records that were put back to be sent again. A record counts once for each retry. Kafka: record-retry-total.", *TOPIC)
    batches: int = counter("pybroker_producer_batches_total", "Batches that brokers have acknowledged. For Kafka's batch-size-avg divide bytes by batches.", *TOPIC)
    uncompressed_bytes: int = counter("pybroker_producer_uncompressed_bytes_total", "Bytes of the acknowledged batches before compression. For Kafka's compression-rate-avg divide bytes by uncompressed_bytes.", *TOPIC)
    # fmt: on


@dataclass(slots=True)
class ConsumerTopicMetrics:
    """Counts what a consumer has read of one topic."""

    # fmt: off
    records: int = counter(f"{_FETCHED}_records_consumed_total", "Records that the application has got. Kafka: records-consumed-total.", *TOPIC)
    fetched_bytes: int = counter("pybroker_consumer_fetched_bytes_total", "Bytes of record batches in Fetch responses (compressed). In Kafka bytes-consumed-total counts the bytes after decompression.", *TOPIC)
    # fmt: on


@dataclass(slots=True)
class ProducerMetrics:
    """The metrics of a producer since it was created. `topics` has the counters of each topic."""

    client_id: str
    topics: defaultdict[str, ProducerTopicMetrics] = field(
        default_factory=lambda: defaultdict(ProducerTopicMetrics)
    )
    # fmt: off
    request_latency: TimeMeter = histogram("pybroker_producer_request_latency_seconds", "Time from a Produce request to its response. With acks=0 there are no responses. Kafka: request-latency-avg, -max.", *CLIENT)
    queue_time: TimeMeter = histogram("pybroker_producer_queue_time_seconds", "Time from the first record of a batch until the batch is first sent. Kafka: record-queue-time-avg, -max.", *CLIENT)
    failed_requests: int = counter("pybroker_producer_failed_requests_total", "Produce requests that failed: the connection was lost or the response was too late.", *CLIENT)
    throttle_ms: int = counter("pybroker_producer_throttle_ms_total", "Time in ms by which brokers have delayed this producer because of a quota. Kafka: produce-throttle-time-avg, -max.", *CLIENT)
    undelivered_records: int = gauge("pybroker_producer_undelivered_records", "Records that the producer has accepted and that have no outcome yet.", *CLIENT)
    requests_in_flight: int = gauge(f"{_PRODUCER}_requests_in_flight", "Produce requests that wait for their response. Kafka: requests-in-flight.", *CLIENT)
    buffer_total_bytes: int = gauge(f"{_PRODUCER}_buffer_total_bytes", "The option buffer.memory. Kafka: buffer-total-bytes.", *CLIENT)
    buffer_available_bytes: int = gauge(f"{_PRODUCER}_buffer_available_bytes", "The part of buffer.memory that is free. Kafka: buffer-available-bytes.", *CLIENT)
    waiting_sends: int = gauge(f"{_PRODUCER}_waiting_threads", "Calls of send that wait for memory. Kafka: waiting-threads.", *CLIENT)
    # fmt: on

    @property
    def total(self) -> ProducerTopicMetrics:
        """The sum of the counters of all topics."""
        return _sum(ProducerTopicMetrics, self.topics.values())

    def copy(self) -> ProducerMetrics:
        return copy.deepcopy(self)


@dataclass(slots=True)
class ConsumerMetrics:
    """The metrics of a consumer since it was created. `topics` has the counters of each topic.
    `lag` has the lag of each assigned partition, if known."""

    client_id: str
    topics: defaultdict[str, ConsumerTopicMetrics] = field(
        default_factory=lambda: defaultdict(ConsumerTopicMetrics)
    )
    # fmt: off
    lag: dict[TopicPartition, int] = gauges_by(f"{_FETCHED}_records_lag", "The high watermark (with read_committed, the last stable offset) of the last Fetch response minus the position. Kafka: records-lag.", *PARTITION)
    fetch_latency: TimeMeter = histogram("pybroker_consumer_fetch_latency_seconds", "Time from a Fetch request to its response. This includes the time for which a broker without data waits (fetch.max.wait.ms). Kafka: fetch-latency-avg, -max.", *CLIENT)
    failed_fetches: int = counter("pybroker_consumer_failed_fetches_total", "Fetch requests without a response, or with an error for the whole request.", *CLIENT)
    throttle_ms: int = counter("pybroker_consumer_throttle_ms_total", "Time in ms by which brokers have delayed this consumer because of a quota. Kafka: fetch-throttle-time-avg, -max.", *CLIENT)
    assigned_partitions: int = gauge(f"{_GROUP}_assigned_partitions", "Partitions that are assigned to the consumer. Kafka: assigned-partitions.", *CLIENT)
    rebalance_latency: TimeMeter = histogram("pybroker_consumer_rebalance_latency_seconds", "Time from the first JoinGroup request of a rebalance until the consumer knows its partitions. Kafka: rebalance-latency-avg, -max. The histogram's count is Kafka's rebalance-total.", *CLIENT)
    commit_latency: TimeMeter = histogram("pybroker_consumer_commit_latency_seconds", "Time from an OffsetCommit request to its response. Kafka: commit-latency-avg, -max. The histogram's count is Kafka's commit-total.", *CLIENT)
    failed_commits: int = counter("pybroker_consumer_failed_commits_total", "Failed attempts to commit offsets. An attempt also counts as failed if a partition's offset is refused.", *CLIENT)
    # fmt: on

    @property
    def total(self) -> ConsumerTopicMetrics:
        """The sum of the counters of all topics."""
        return _sum(ConsumerTopicMetrics, self.topics.values())

    def copy(self) -> ConsumerMetrics:
        return copy.deepcopy(self)


def _sum(kind: type[TopicT], counters: Iterable[TopicT]) -> TopicT:
    total = kind()
    names = list(families_of(kind))
    for each in counters:
        for name in names:
            setattr(total, name, getattr(total, name) + getattr(each, name))
    return total


FAMILIES: Final[tuple[Family, ...]] = tuple(
    row
    for table in (ProducerTopicMetrics, ProducerMetrics, ConsumerTopicMetrics, ConsumerMetrics)
    for row in families_of(table).values()
)


def prometheus_text(*metrics: ProducerMetrics | ConsumerMetrics) -> str:
    """Return the metrics in Prometheus' text format. Pass all clients in one call: the text must
    name each metric once. Values of clients with the same `client_id` are added."""
    found: dict[Family, dict[str, Number]] = {}
    for each in metrics:
        of_client = {"client_id": each.client_id}
        shown = [_shown(each, of_client)]
        shown += [
            _shown(table, {**of_client, "topic": name}) for name, table in each.topics.items()
        ]
        for of, more in chain(*shown):
            lines = found.setdefault(of, {})
            for where, value in more:
                lines[where] = lines.get(where, 0) + value
    return "".join(family(of, lines.items()) for of, lines in found.items())


def _shown(table: Any, where: Mapping[str, str]) -> Iterator[tuple[Family, list[Line]]]:
    """For each counter of `table`, yield its metric and the lines of this metric for Prometheus.
    All lines have the labels `where`."""
    for attribute, of in families_of(type(table)).items():
        value = getattr(table, attribute)
        if isinstance(value, TimeMeter):
            yield of, histogram_lines(where, value)
        elif isinstance(value, dict):
            rest = of.labels[len(where) :]
            yield (
                of,
                [
                    (labels({**where, **dict(zip(rest, map(str, key), strict=True))}), number)
                    for key, number in value.items()
                ],
            )
        else:
            yield of, [(labels(where), value)]
