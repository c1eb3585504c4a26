"""Test with real data: three producers write it record by record, and it is read back unchanged
after kill -9.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Final

import confluent_kafka
import pytest

from integration_tests.broker import Broker, pybroker_command
from integration_tests.conftest import BrokerMaker
from integration_tests.wire_client import Connection, create_topic, wait_for_leader
from unit_tests.patience import PATIENCE_S

FLIGHTS: Final = 200_000


def lines_of(path: Path) -> list[bytes]:
    return [line for line in path.read_bytes().replace(b"\r\n", b"\n").split(b"\n") if line]


def objects_of(path: Path) -> list[bytes]:
    """Return the elements of a JSON array of flat objects, each as its original text."""
    return re.findall(rb"\{[^{}]*\}", path.read_bytes())


@pytest.fixture(scope="module")
def records(datasets: Path) -> dict[str, list[bytes]]:
    found = {
        "flights": objects_of(datasets / "flights-200k.json"),
        "stocks": lines_of(datasets / "stocks.csv"),
        "birdstrikes": lines_of(datasets / "birdstrikes.csv"),
    }
    assert len(found["flights"]) == FLIGHTS
    assert (len(found["stocks"]), len(found["birdstrikes"])) == (561, 10_001)
    return found


Produce = Callable[[str, str, list[bytes]], None]
Consume = Callable[[str, str, int], list[bytes]]


def run(command: list[str], text: bytes = b"") -> bytes:
    done = subprocess.run(command, input=text, capture_output=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    return done.stdout


def produce_with_kcat(bootstrap: str, topic: str, values: list[bytes]) -> None:
    run(["kcat", "-P", "-b", bootstrap, "-t", topic, "-X", "acks=all"], b"\n".join(values) + b"\n")


def consume_with_kcat(bootstrap: str, topic: str, count: int) -> list[bytes]:
    printed = run(["kcat", "-C", "-q", "-e", "-b", bootstrap, "-t", topic, "-o", "beginning"])
    return printed.split(b"\n")[:-1]


def produce_with_console_producer(bootstrap: str, topic: str, values: list[bytes]) -> None:
    tool = pybroker_command("console-producer", "--bootstrap-server", bootstrap, "--topic", topic)
    run(tool, b"\n".join(values) + b"\n")


def consume_with_console_consumer(bootstrap: str, topic: str, count: int) -> list[bytes]:
    tool = pybroker_command("console-consumer", "--bootstrap-server", bootstrap, "--topic", topic)
    where = ["--partition", "0", "--offset", "earliest", "--max-messages", str(count)]
    return run([*tool, *where]).split(b"\n")[:-1]


def produce_with_confluent(bootstrap: str, topic: str, values: list[bytes]) -> None:
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "compression.type": "lz4",
            "queue.buffering.max.messages": FLIGHTS + 1,
        }
    )
    errors: list[object] = []
    for value in values:
        producer.produce(
            topic, value, on_delivery=lambda error, _: errors.append(error) if error else None
        )
    assert producer.flush(PATIENCE_S) == 0 and not errors


def consume_with_confluent(bootstrap: str, topic: str, count: int) -> list[bytes]:
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "never-joined", "enable.auto.commit": False}
    )
    try:
        consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
        found: list[bytes] = []
        while len(found) < count:
            messages = consumer.consume(min(10_000, count - len(found)), timeout=PATIENCE_S)
            assert messages, f"read only {len(found)} of {count}"
            for message in messages:
                value = message.value()
                assert message.error() is None and isinstance(value, bytes)
                found.append(value)
        return found
    finally:
        consumer.close()


WAYS: Final[dict[str, tuple[Produce, Consume]]] = {
    "kcat": (produce_with_kcat, consume_with_kcat),
    "console-producer": (produce_with_console_producer, consume_with_console_consumer),
    "confluent-kafka": (produce_with_confluent, consume_with_confluent),
}


@pytest.mark.parametrize("way", WAYS)
def test_real_records_survive_kill_9(
    new_broker: BrokerMaker,
    records: dict[str, list[bytes]],
    way: str,
    request: pytest.FixtureRequest,
) -> None:
    if way == "kcat":
        request.getfixturevalue("kcat_program")
    produce, consume = WAYS[way]
    broker = new_broker()
    broker.start()
    create_topics(broker, records)
    for topic, values in records.items():
        produce(broker.bootstrap, topic, values)
    broker.kill9()
    broker.start()
    with Connection(broker.bootstrap) as connection:
        for topic in records:
            wait_for_leader(connection, topic)
    for topic, values in records.items():
        found = consume(broker.bootstrap, topic, len(values))
        assert len(found) == len(values)
        assert found == values, f"{topic} differs"


def create_topics(broker: Broker, records: dict[str, list[bytes]]) -> None:
    with Connection(broker.bootstrap) as connection:
        for topic in records:
            create_topic(connection, topic)
