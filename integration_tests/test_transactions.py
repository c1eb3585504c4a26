"""Tests of transactions on three real brokers: a program with librdkafka consumes, transforms and
produces while brokers are killed, a later producer fences an earlier one, and Java's producer sends
records in transactions."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any, Final

import confluent_kafka
import kafka
import pytest

from integration_tests.apache_tools import Tools
from integration_tests.kafka_python import polled
from integration_tests.ranges import make_topic
from integration_tests.test_offsets import tree
from integration_tests.wire_client import Connection
from pybroker.errors import ErrorCode
from pybroker.testing.cluster import Cluster
from pybroker.wire.messages.groups import FindCoordinatorRequest, FindCoordinatorResponse
from unit_tests.patience import PATIENCE_S, wait_until

pytestmark = pytest.mark.ours

INPUT: Final = "input"
GROUP: Final = "transformers"
PARTITIONS: Final = 2
RECORDS: Final = 600
"""Input records of each partition."""
PER_TRANSACTION: Final = 10
ABORT_ONE_IN: Final = 4
ABORTED: Final = b"aborted "
END: Final = b"end"
TRANSACTION_KEY: Final = 1
CLUSTER: Final = {
    "min.insync.replicas": 2,
    "transaction.state.log.replication.factor": 3,
    "transaction.state.log.min.isr": 2,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 1000,
}


def new_producer(bootstrap: str, transactional_id: str) -> confluent_kafka.Producer:
    """Return a producer that has ended the open transaction of the earlier producers with this
    id."""
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


class Transformer:
    """A program that copies each input record to the partition of the output with the same number,
    some records at a time, each time in a transaction with their offsets. One transaction in
    ABORT_ONE_IN is aborted and its records are read again. After any error the program continues as
    if it was started again: with a new producer and a new consumer."""

    def __init__(self, bootstrap: str, output: str) -> None:
        self._bootstrap = bootstrap
        self._output = output
        self._numbers = itertools.count(1)
        self._positions: dict[int, int] = {}
        self.aborted = 0
        self.errors: list[str] = []

    @property
    def done(self) -> int:
        """Return how many input records belong to committed transactions."""
        return sum(self._positions.values())

    def run(self) -> None:
        """Return when the transactions of all input records are committed."""
        deadline = time.monotonic() + PATIENCE_S
        while self.done < PARTITIONS * RECORDS:
            assert time.monotonic() < deadline, self.errors
            try:
                self._work(deadline)
            except confluent_kafka.KafkaException as error:
                self.errors.append(str(error))

    def _work(self, deadline: float) -> None:
        producer = new_producer(self._bootstrap, "transformer")
        options = {
            "bootstrap.servers": self._bootstrap,
            "group.id": GROUP,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "log_level": 0,
        }
        with closing(confluent_kafka.Consumer(options)) as consumer:
            partitions = [confluent_kafka.TopicPartition(INPUT, n) for n in range(PARTITIONS)]
            for each in consumer.committed(partitions, PATIENCE_S):
                if each.error is not None:
                    raise confluent_kafka.KafkaException(each.error)
                self._positions[each.partition] = max(each.offset, 0)
            consumer.subscribe([INPUT])
            while self.done < PARTITIONS * RECORDS and time.monotonic() < deadline:
                messages = consumer.consume(PER_TRANSACTION, 0.1)
                records = [message for message in messages if message.error() is None]
                if records:
                    self._transform(producer, consumer, records)

    def _transform(
        self,
        producer: confluent_kafka.Producer,
        consumer: confluent_kafka.Consumer,
        records: Sequence[confluent_kafka.Message],
    ) -> None:
        is_aborted = next(self._numbers) % ABORT_ONE_IN == 0
        first: dict[int, int] = {}
        beyond: dict[int, int] = {}
        producer.begin_transaction()
        for message in records:
            number, offset = _place(message)
            first.setdefault(number, offset)
            beyond[number] = offset + 1
            value = (ABORTED if is_aborted else b"") + (message.value() or b"")
            producer.produce(self._output, value, partition=number)
        offsets = [confluent_kafka.TopicPartition(INPUT, n, at) for n, at in beyond.items()]
        producer.send_offsets_to_transaction(
            offsets, consumer.consumer_group_metadata(), PATIENCE_S
        )
        if is_aborted:
            producer.flush(PATIENCE_S)
            producer.abort_transaction(PATIENCE_S)
            self.aborted += 1
            for number, offset in first.items():
                consumer.seek(confluent_kafka.TopicPartition(INPUT, number, offset))
        else:
            producer.commit_transaction(PATIENCE_S)
            self._positions |= beyond


def _place(message: confluent_kafka.Message) -> tuple[int, int]:
    """Return the partition and the offset of a record that was read."""
    partition, offset = message.partition(), message.offset()
    assert partition is not None and offset is not None
    return partition, offset


def input_values(partition: int) -> list[bytes]:
    return [b"%d:%d" % (partition, number) for number in range(RECORDS)]


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


def coordinator_of(bootstrap: str, transactional_id: str) -> int:
    with Connection(bootstrap) as connection:
        request = FindCoordinatorRequest(key=transactional_id, key_type=TRANSACTION_KEY)
        answer = connection.ask(3, request, FindCoordinatorResponse)
    assert answer.error_code == ErrorCode.NONE
    return answer.node_id


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(3, config=CLUSTER) as running:
        yield running


def test_each_record_is_transformed_once_while_brokers_are_killed(cluster: Cluster) -> None:
    bootstrap, output = cluster.bootstrap, "output"
    for topic in (INPUT, output):
        make_topic(bootstrap, topic, PARTITIONS, replicas=3)
    values = {number: input_values(number) for number in range(PARTITIONS)}
    produce(bootstrap, INPUT, values)
    transformer = Transformer(bootstrap, output)

    def wait_for(share: float) -> None:
        count = PARTITIONS * RECORDS * share
        wait_until(lambda: transformer.done >= count or work.done(), what=f"{count} records")
        assert not work.done(), work.exception()

    def kill(broker: int) -> None:
        cluster.kill(broker)
        wait_for(transformer.done / (PARTITIONS * RECORDS) + 0.01)
        cluster.restart(broker)
        cluster.wait_until_in_sync()

    with ThreadPoolExecutor(1) as pool:
        work = pool.submit(transformer.run)
        wait_for(0.15)
        kill(coordinator_of(cluster.address(cluster.running[0]), "transformer"))
        wait_for(0.5)
        kill(cluster.leader(output, 0))
        work.result(PATIENCE_S)
    assert transformer.aborted > 10
    finish(bootstrap, output, PARTITIONS)
    assert read(bootstrap, output, PARTITIONS) == values
    uncommitted = read(bootstrap, output, PARTITIONS, "read_uncommitted")
    assert any(value.startswith(ABORTED) for value in uncommitted[0] + uncommitted[1])
    folder = f"/consumers/{GROUP}/offsets/{INPUT}"
    ends = {f"{folder}/{number}": b"%d" % RECORDS for number in range(PARTITIONS)}
    wait_until(
        lambda: ends.items() <= tree(cluster.zookeeper, folder).items(),
        what="the last transaction's offsets are in ZooKeeper",
    )


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
