"""Topics that tests read by Spark, and the expected rows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row

from integration_tests.samples import Headers, Sample
from pybroker.client import Admin, NewTopic
from pybroker.model import TopicPartition
from pybroker.spark import snapshot
from unit_tests.patience import PATIENCE_S, wait_until

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class KafkaRow(NamedTuple):
    """A record as a row of Spark's Kafka source: timestamp in ms since 1970, headers None without
    headers.
    """

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    timestamp: int
    timestamp_type: int
    headers: Headers | None


def kafka_rows(frame: DataFrame) -> list[KafkaRow]:
    """Return all rows of a DataFrame with (or without) headers, sorted by topic, partition and
    offset.
    """
    return sorted((_kafka_row(row) for row in frame.collect()), key=lambda row: row[:3])


def _kafka_row(row: Row) -> KafkaRow:
    headers = getattr(row, "headers", None)
    since = row["timestamp"].astimezone(UTC) - _EPOCH
    return KafkaRow(
        row["topic"],
        row["partition"],
        row["offset"],
        _bytes(row["key"]),
        _bytes(row["value"]),
        since // timedelta(milliseconds=1),
        row["timestampType"],
        None if headers is None else tuple((h["key"], _bytes(h["value"])) for h in headers),
    )


def _bytes(value: bytearray | None) -> bytes | None:
    return None if value is None else bytes(value)


def expected_rows(topic: str, partition: int, samples: Sequence[Sample]) -> list[KafkaRow]:
    """Return the expected rows of a partition that has `samples` from offset 0 on."""
    return [
        KafkaRow(topic, partition, offset, s.key, s.value, s.timestamp, 0, s.headers or None)
        for offset, s in enumerate(samples)
    ]


def _wait_for(answers: Iterable[Future[Any]]) -> None:
    for answer in answers:
        answer.result(PATIENCE_S)


def _admin(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap})


def create(
    bootstrap: str,
    topic: str,
    partitions: int,
    *,
    replicas: int = 1,
    configs: Mapping[str, str] | None = None,
) -> None:
    """Create a topic by our client, because librdkafka's admin client waits a minute if it finds no
    controller at first.
    """
    wanted = NewTopic(topic, partitions, replicas, configs=dict(configs or {}))

    async def ask() -> None:
        async with Admin(bootstrap) as admin:
            for result in await admin.create_topics([wanted]):
                result.check()

    asyncio.run(ask())


def grow(bootstrap: str, topic: str, partitions: int) -> None:
    """Increase the topic to `partitions` partitions."""
    admin = _admin(bootstrap)
    _wait_for(admin.create_partitions([NewPartitions(topic, partitions)]).values())


def delete_records(bootstrap: str, topic: str, before: Mapping[int, int]) -> None:
    """Delete the records before these offsets, by partition, by our client, because librdkafka's
    admin client waits a minute for a leader that has just died.
    """
    wanted = {TopicPartition(topic, partition): offset for partition, offset in before.items()}

    async def ask() -> None:
        async with Admin(bootstrap) as admin:
            for key, result in (await admin.delete_records(wanted)).items():
                assert result.error is None, f"{key}: {result.error}"

    asyncio.run(ask())


def delete(bootstrap: str, topic: str) -> None:
    admin = _admin(bootstrap)
    _wait_for(admin.delete_topics([topic]).values())


def produce(
    bootstrap: str,
    topic: str,
    samples: Iterable[tuple[int, Sample]],
    *,
    codec: str = "none",
    linger_ms: int = 5_000,
) -> None:
    """Produce samples by partition, in order. Return when all are acknowledged. The samples of a
    partition are in one batch if they fit: flushing does not wait for `linger_ms`.
    """
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": bootstrap,
            "compression.type": codec,
            "enable.idempotence": True,
            "linger.ms": linger_ms,
            "log_level": 0,
        }
    )
    errors: list[object] = []
    for partition, sample in samples:
        producer.produce(
            topic,
            value=sample.value,
            key=sample.key,
            partition=partition,
            headers=list(sample.headers),
            timestamp=sample.timestamp,
            on_delivery=lambda error, _: errors.append(error) if error else None,
        )
        producer.poll(0)
    unsent = producer.flush(PATIENCE_S)
    assert not unsent and not errors, f"{unsent} unsent, errors: {errors[:3]}"


def numbered(numbers: Iterable[int], *, partitions: int) -> list[tuple[int, Sample]]:
    """Return small records whose values are the numbers, distributed over the partitions in
    turn.
    """
    return [
        (number % partitions, Sample(b"key-%d" % (number % 7), b"%d" % number))
        for number in numbers
    ]


def fault(read: Callable[[], object]) -> str:
    """Return the line of a failed read's error that pybroker wrote."""
    with pytest.raises(PySparkException) as caught:
        read()
    text = str(caught.value)
    assert "Traceback" not in text, text
    lines = [line for line in text.splitlines() if "pybroker." in line]
    assert len(lines) == 1, text
    return lines[0]


def transactional(bootstrap: str, transactional_id: str) -> confluent_kafka.Producer:
    """Return a producer for `begin`, which the caller lets commit or abort."""
    options = {"bootstrap.servers": bootstrap, "transactional.id": transactional_id}
    producer = confluent_kafka.Producer(options)
    producer.init_transactions(PATIENCE_S)
    return producer


def begin(
    producer: confluent_kafka.Producer, topic: str, values: Sequence[bytes], partitions: int
) -> None:
    """Begin a transaction and write values to all partitions in turn."""
    producer.begin_transaction()
    for number, value in enumerate(values):
        producer.produce(topic, value, partition=number % partitions)
    assert producer.flush(PATIENCE_S) == 0


def wait_until_decided(bootstrap: str, topic: str, offsets: int) -> None:
    """Wait until the last stable offsets of all partitions add up to `offsets`, because a commit
    returns before its markers are written.
    """

    def stable() -> int:
        return sum(each.end for each in snapshot.take(bootstrap, topics=[topic]).ranges())

    wait_until(lambda: stable() == offsets, what="the transactions have ended")
