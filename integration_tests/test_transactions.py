"""Tests of transactions on three real brokers: a later producer fences an earlier one, and Java's
producer sends records in transactions."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, closing, suppress
from typing import Any, Final

import aiokafka
import confluent_kafka
import kafka
import pytest

from integration_tests.apache_tools import Tools
from integration_tests.kafka_python import polled
from integration_tests.ranges import make_topic
from integration_tests.wire_client import Connection
from pybroker.errors import ErrorCode
from pybroker.testing.cluster import Cluster
from pybroker.wire.messages.groups import FindCoordinatorRequest, FindCoordinatorResponse
from unit_tests.patience import PATIENCE_S, wait_until

pytestmark = pytest.mark.ours

END: Final = b"end"
GROUP_KEY: Final = 0
TRANSACTION_KEY: Final = 1
CLUSTER: Final = {
    "min.insync.replicas": 2,
    "transaction.state.log.replication.factor": 3,
    "transaction.state.log.min.isr": 2,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 1000,
}


def new_producer(bootstrap: str, transactional_id: str) -> confluent_kafka.Producer:
    """Return a new producer with this transactional id. Its start aborts the open transaction of
    the earlier producer."""
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": bootstrap,
            "transactional.id": transactional_id,
            "transaction.timeout.ms": 20_000,
            "log_level": 0,
        }
    )
    producer.init_transactions(PATIENCE_S)
    return producer


def produce(bootstrap: str, topic: str, values: dict[int, list[bytes]]) -> None:
    """Produce without transactions."""
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "linger.ms": 5})
    for partition, some in values.items():
        for value in some:
            producer.produce(topic, value, partition=partition)
    assert producer.flush(PATIENCE_S) == 0


def finish(bootstrap: str, topic: str, partitions: int) -> None:
    """Produce a last record to each partition, at which readers stop."""
    produce(bootstrap, topic, {number: [END] for number in range(partitions)})


def read(
    bootstrap: str, topic: str, partitions: int, isolation: str = "read_committed"
) -> dict[int, list[bytes]]:
    """Let kafka-python read each partition up to its last record. Return the values before it."""
    numbers = range(partitions)
    found: dict[int, list[bytes]] = {number: [] for number in numbers}
    options: dict[str, Any] = {"isolation_level": isolation, "auto_offset_reset": "earliest"}
    with closing(kafka.KafkaConsumer(bootstrap_servers=bootstrap, **options)) as consumer:
        consumer.assign([kafka.TopicPartition(topic, number) for number in numbers])
        deadline = time.monotonic() + PATIENCE_S
        while any(values[-1:] != [END] for values in found.values()):
            assert time.monotonic() < deadline, {n: len(values) for n, values in found.items()}
            for key, rows in polled(consumer).items():
                found[key.partition] += [row.value for row in rows]
    return {number: values[:-1] for number, values in found.items()}


def coordinator_of(bootstrap: str, name: str, kind: int) -> int:
    """Return the coordinator of a transactional id or a group, once there is one."""
    request = FindCoordinatorRequest(key=name, key_type=kind)
    found: list[int] = []

    def is_found() -> bool:
        answer = connection.ask(3, request, FindCoordinatorResponse)
        if answer.error_code == ErrorCode.NONE:
            found.append(answer.node_id)
        return bool(found)

    with Connection(bootstrap.split(",")[0]) as connection:
        wait_until(is_found, what=f"a coordinator of {name}")
    return found[0]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(3, config=CLUSTER) as running:
        yield running


def test_later_producer_fences_the_earlier_one(cluster: Cluster) -> None:
    bootstrap, topic = cluster.bootstrap, "fenced"
    make_topic(bootstrap, topic, replicas=3)
    earlier = new_producer(bootstrap, "same")
    earlier.begin_transaction()
    earlier.produce(topic, b"earlier", partition=0)
    assert earlier.flush(PATIENCE_S) == 0
    later = new_producer(bootstrap, "same")
    later.begin_transaction()
    later.produce(topic, b"later", partition=0)
    with pytest.raises(confluent_kafka.KafkaException) as raised:
        earlier.commit_transaction(PATIENCE_S)
    error = raised.value.args[0]
    assert error.code() == confluent_kafka.KafkaError._FENCED, error
    assert error.fatal()
    later.commit_transaction(PATIENCE_S)
    finish(bootstrap, topic, 1)
    assert read(bootstrap, topic, 1) == {0: [b"later"]}
    assert read(bootstrap, topic, 1, "read_uncommitted") == {0: [b"earlier", b"later"]}


def test_java_producer_commits_its_transactions(cluster: Cluster, jars: str) -> None:
    assert jars
    topic, count = "java", 2000
    make_topic(cluster.bootstrap, topic, replicas=3)
    with Tools(cluster.bootstrap) as tools:
        ran = tools.apache(
            *("producer-perf-test", "--topic", topic, "--num-records", str(count)),
            *("--record-size", "100", "--throughput", "2000"),
            *("--transactional-id", "java", "--transaction-duration-ms", "50"),
            *("--producer-props", f"bootstrap.servers={cluster.bootstrap}"),
        )
    assert ran.code == 0, ran
    finish(cluster.bootstrap, topic, 1)
    assert [len(value) for value in read(cluster.bootstrap, topic, 1)[0]] == [100] * count


def test_successor_takes_over_the_transactional_id_of_an_input_partition(cluster: Cluster) -> None:
    """aiokafka sends TxnOffsetCommit without the metadata of the group. So a zombie is fenced only
    if the next program takes over its transactional id."""
    bootstrap, count = cluster.bootstrap, 20
    for topic in ("aio-input", "aio-output"):
        make_topic(bootstrap, topic, replicas=3)
    values = [b"%d" % number for number in range(count)]
    produce(bootstrap, "aio-input", {0: values})
    asyncio.run(_take_over(bootstrap, values))
    finish(bootstrap, "aio-output", 1)
    assert read(bootstrap, "aio-output", 1) == {0: values}
    uncommitted = read(bootstrap, "aio-output", 1, "read_uncommitted")
    assert uncommitted == {0: values[:10] + values[5:]}


async def _take_over(bootstrap: str, values: Sequence[bytes]) -> None:
    """Copy five records, and leave a transaction with five more open. Then let a second producer
    with the same transactional id copy all records that are not committed. The first producer is
    then a zombie."""
    place = aiokafka.TopicPartition("aio-input", 0)

    async def copy(producer: aiokafka.AIOKafkaProducer, first: int, beyond: int) -> None:
        await producer.begin_transaction()
        for value in values[first:beyond]:
            await producer.send_and_wait("aio-output", value, partition=0)
        await producer.send_offsets_to_transaction({place: beyond}, "aio")

    async def committed() -> int | None:
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=bootstrap, group_id="aio", enable_auto_commit=False
        )
        await consumer.start()
        try:
            consumer.assign([place])
            offset: int | None = await consumer.committed(place)
            return offset
        finally:
            await consumer.stop()

    async with asyncio.timeout(PATIENCE_S), AsyncExitStack() as stack:
        zombie = _aio_producer(bootstrap)
        await zombie.start()
        stack.push_async_callback(_stop, zombie)
        await copy(zombie, 0, 5)
        await zombie.commit_transaction()
        await copy(zombie, 5, 10)
        successor = _aio_producer(bootstrap)
        await successor.start()
        stack.push_async_callback(successor.stop)
        assert await committed() == 5
        await copy(successor, 5, 10)
        with pytest.raises(aiokafka.errors.ProducerFenced):
            await zombie.commit_transaction()
        await successor.commit_transaction()
        await copy(successor, 10, len(values))
        await successor.commit_transaction()
        assert await committed() == len(values)


def _aio_producer(bootstrap: str) -> aiokafka.AIOKafkaProducer:
    return aiokafka.AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id="aio-input-0")


async def _stop(zombie: aiokafka.AIOKafkaProducer) -> None:
    """Stop a fenced producer, which may raise its error again."""
    with suppress(aiokafka.errors.KafkaError):
        await zombie.stop()
