"""Tests of the guarantees of the project, one test for each, under load while the broker is killed.

All tests use one history: producers with acks=all and a consumer run while the broker is killed by
SIGKILL and started again several times. Then all records are read from the start.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from integration_tests.broker import PybrokerProcess
from integration_tests.wire_client import Connection, create_topic
from unit_tests.patience import PATIENCE_S, wait_until

pytestmark = pytest.mark.ours

TOPIC = "promises"
KILLS = 4
RECORDS_BETWEEN_KILLS = 1500
PRODUCERS = ("idempotent-a", "idempotent-b", "plain")


@dataclass
class History:
    """The observations of the clients. Values are `producer:number`. The application sends each
    value once.
    """

    acknowledged: dict[bytes, int] = field(default_factory=dict)
    """value -> offset"""
    delivered: list[int] = field(default_factory=list)
    """The offsets that the consumer received during the kills, in order."""
    final: list[tuple[int, bytes]] = field(default_factory=list)
    """(offset, value) of every record in the final read."""


class Load:
    """A producer that sends numbered values until it is stopped."""

    def __init__(self, name: str, bootstrap: str, history: History) -> None:
        self._name = name
        self._history = history
        self.acknowledged = 0
        self._stop = threading.Event()
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "acks": "all",
                "enable.idempotence": name.startswith("idempotent"),
                "linger.ms": 2,
                "reconnect.backoff.max.ms": 100,
                "retry.backoff.ms": 20,
                "delivery.timeout.ms": 120_000,
                "log_level": 0,
            }
        )
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def wait_for_more(self, count: int) -> None:
        """Wait until `count` more records are acknowledged."""
        wanted = self.acknowledged + count
        wait_until(lambda: self.acknowledged >= wanted, what=f"{self._name} goes on")

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        assert self._producer.flush(PATIENCE_S) == 0

    def _run(self) -> None:
        number = 0
        while not self._stop.is_set():
            value = b"%s:%d" % (self._name.encode(), number)
            try:
                self._producer.produce(TOPIC, value, partition=0, on_delivery=self._delivered)
                number += 1
            except BufferError:
                self._stop.wait(0.05)
            self._producer.poll(0)
            if number % 50 == 0:
                self._producer.poll(0.005)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            value, offset = message.value(), message.offset()
            assert value is not None and offset is not None
            self._history.acknowledged[bytes(value)] = offset
            self.acknowledged += 1


def consumer_of(bootstrap: str) -> Consumer:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "promises",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "fetch.wait.max.ms": 50,
            "reconnect.backoff.max.ms": 100,
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    return consumer


def read_on(consumer: Consumer, until: threading.Event, history: History) -> None:
    while not until.is_set():
        message = consumer.poll(0.05)
        if message is None:
            continue
        error = message.error()
        if error is None:
            offset = message.offset()
            assert offset is not None
            history.delivered.append(offset)
        elif not error.retriable() and error.code() not in (
            KafkaError._TRANSPORT,
            KafkaError._ALL_BROKERS_DOWN,
        ):
            raise KafkaException(error)
    consumer.close()


def read_all(bootstrap: str) -> list[tuple[int, bytes]]:
    consumer = consumer_of(bootstrap)
    _, end = consumer.get_watermark_offsets(TopicPartition(TOPIC, 0), timeout=PATIENCE_S)
    found: list[tuple[int, bytes]] = []
    while len(found) < end:
        messages = consumer.consume(min(1000, end - len(found)), PATIENCE_S)
        assert messages, f"{len(found)} of {end} records are read"
        for message in messages:
            assert message.error() is None
            offset, value = message.offset(), message.value()
            assert offset is not None and value is not None
            found.append((offset, bytes(value)))
    consumer.close()
    return found


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Iterator[History]:
    data: Path = tmp_path_factory.mktemp("promises") / "data"
    broker = PybrokerProcess(data, overrides={"log.segment.bytes": "65536"})
    history = History()
    try:
        broker.start()
        with Connection(broker.bootstrap) as connection:
            create_topic(connection, TOPIC)
        finished = threading.Event()
        reading = threading.Thread(
            target=read_on, args=(consumer_of(broker.bootstrap), finished, history)
        )
        reading.start()
        loads = [Load(name, broker.bootstrap, history) for name in PRODUCERS]
        for _ in range(KILLS):
            for load in loads:
                load.wait_for_more(RECORDS_BETWEEN_KILLS)
            broker.kill9()
            broker.start()
        for load in loads:
            load.stop()
        last = max(history.acknowledged.values())
        wait_until(
            lambda: bool(history.delivered) and history.delivered[-1] >= last,
            what="the consumer has caught up",
        )
        finished.set()
        reading.join()
        history.final = read_all(broker.bootstrap)
        yield history
    finally:
        broker.close()


def test_a_record_acknowledged_with_acks_all_is_readable_at_its_offset(history: History) -> None:
    at = dict(history.final)
    lost = {v: o for v, o in history.acknowledged.items() if at.get(o) != v}
    assert not lost
    assert len(history.acknowledged) >= KILLS * RECORDS_BETWEEN_KILLS * len(PRODUCERS)


def test_records_of_a_partition_are_read_in_the_order_in_which_they_were_appended(
    history: History,
) -> None:
    for producer in PRODUCERS:
        if not producer.startswith("idempotent"):
            continue
        numbers = [
            int(value.partition(b":")[2])
            for _, value in history.final
            if value.startswith(producer.encode() + b":")
        ]
        assert numbers == sorted(numbers)


def test_retries_of_an_idempotent_producer_are_stored_once(history: History) -> None:
    values = [value for _, value in history.final if value.startswith(b"idempotent")]
    assert len(values) == len(set(values))


def test_a_consumer_never_sees_an_offset_go_back_nor_a_hole(history: History) -> None:
    assert history.delivered == list(range(len(history.delivered)))
    assert [offset for offset, _ in history.final] == list(range(len(history.final)))
