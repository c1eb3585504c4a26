"""Tests with the same data directory and the same ZooKeeper, used by Apache Kafka and by pybroker
in turn.

They show that files and nodes have Kafka's formats: neither broker finds anything to repair, and an
idempotent producer continues its sequence.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from integration_tests.apache import ApacheKafka, ApacheZooKeeper
from integration_tests.broker import PybrokerProcess
from integration_tests.wire_client import Connection, create_topic, metadata, wait_for_leader
from unit_tests.patience import PATIENCE_S

pytestmark = pytest.mark.ours

TOPIC = "handed-over"
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


def write(bootstrap: str, tag: str) -> list[bytes]:
    """Write some records in each codec by an idempotent producer. Return their values."""
    values = []
    for codec in CODECS:
        producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "compression.type": codec,
                "log_level": 0,
            }
        )
        for number in range(200):
            value = f"{tag}-{codec}-{number}".encode()
            producer.produce(TOPIC, value, key=str(number), partition=0)
            values.append(value)
        assert producer.flush(PATIENCE_S) == 0
    return values


def read(bootstrap: str) -> list[bytes]:
    """Read all values from offset 0 on, and check that their offsets are consecutive."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )
    wanted = TopicPartition(TOPIC, 0, 0)
    consumer.assign([wanted])
    _, end = consumer.get_watermark_offsets(wanted, timeout=PATIENCE_S)
    values: list[bytes] = []
    while len(values) < end:
        for message in consumer.consume(1000, 10):
            assert message.error() is None
            assert message.offset() == len(values)
            value = message.value()
            assert value is not None
            values.append(bytes(value))
    consumer.close()
    return values


@pytest.fixture
def apache(jars: str, tmp_path: Path) -> Iterator[ApacheKafka]:
    zookeeper = ApacheZooKeeper(tmp_path / "zookeeper")
    zookeeper.start()
    (tmp_path / "apache").mkdir()
    kafka = ApacheKafka(tmp_path / "apache", zookeeper=zookeeper.connect, heap_mib=512)
    try:
        yield kafka
    finally:
        kafka.close()
        zookeeper.close()


@pytest.fixture
def ours(apache: ApacheKafka) -> Iterator[PybrokerProcess]:
    broker = PybrokerProcess(
        apache.data, zookeeper=apache.zookeeper_connect, overrides={"broker.id": "0"}
    )
    try:
        yield broker
    finally:
        broker.close()


def test_pybroker_opens_the_data_of_a_stopped_apache_broker_and_vice_versa(
    apache: ApacheKafka, ours: PybrokerProcess
) -> None:
    apache.start()
    with Connection(apache.bootstrap) as connection:
        create_topic(connection, TOPIC, configs={"segment.bytes": "65536"})
        topic_id = metadata(connection, TOPIC).topics[0].topic_id
    written = write(apache.bootstrap, "apache")
    apache.stop()

    ours.start()
    assert read(ours.bootstrap) == written
    with Connection(ours.bootstrap) as connection:
        assert metadata(connection, TOPIC).topics[0].topic_id == topic_id
    written += write(ours.bootstrap, "ours")
    assert read(ours.bootstrap) == written
    assert ours.stop() == 0

    apache.start()
    with Connection(apache.bootstrap) as connection:
        wait_for_leader(connection, TOPIC)  # Apache prints that it has started before it leads
    assert read(apache.bootstrap) == written
    written += write(apache.bootstrap, "again")
    assert read(apache.bootstrap) == written
    complaints = [line for line in apache.log_text.splitlines() if "orrupt" in line]
    assert not complaints


def test_pybroker_recovers_a_log_of_a_killed_apache_broker(
    apache: ApacheKafka, ours: PybrokerProcess
) -> None:
    apache.start()
    with Connection(apache.bootstrap) as connection:
        create_topic(connection, TOPIC, configs={"segment.bytes": "65536"})
    written = write(apache.bootstrap, "apache")
    apache.process.kill9()
    ours.start()
    assert read(ours.bootstrap) == written
