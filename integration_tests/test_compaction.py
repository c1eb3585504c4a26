"""Tests of the log cleaner of a real broker: it cleans while records are written and while the
broker is killed, and it cleans the topic of committed offsets."""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import Final

import confluent_kafka
import pytest

from integration_tests.broker import Broker
from integration_tests.conftest import BrokerMaker
from integration_tests.ranges import make_topic
from integration_tests.stored import partition_folder, segments
from pybroker.client import Admin, ConfigChange, ConfigResource
from unit_tests.patience import PATIENCE_S, WaitFailed, wait_until

pytestmark = pytest.mark.ours

TOPIC: Final = "prices"
CONFIGS: Final = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.01",
    "segment.bytes": "16384",
}
OVERRIDES: Final = {
    "log.cleaner.backoff.ms": "50",
    "offsets.storage": "kafka",
    "offsets.topic.num.partitions": "1",
    "offsets.topic.segment.bytes": "16384",
    "log.cleaner.min.cleanable.ratio": "0.01",
}
Table = dict[bytes, bytes | None]


def write(bootstrap: str, rng: random.Random, table: Table, count: int) -> None:
    """Write random keys and some tombstones, and note the last value of each key."""
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "linger.ms": 1,
            "batch.num.messages": 50,
        }
    )
    for number in range(count):
        key = b"k%d" % rng.randrange(100)
        value = None if rng.random() < 0.1 else b"%d %s" % (number, b"v" * 50)
        producer.produce(TOPIC, value, key, partition=0)
        table[key] = value
    assert producer.flush(PATIENCE_S) == 0


def read(bootstrap: str) -> tuple[int, Table]:
    """Return how many records the topic has, and the last value of each key."""
    options = {
        "bootstrap.servers": bootstrap,
        "group.id": "reader",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
    }
    table: Table = {}
    count = 0
    with closing(confluent_kafka.Consumer(options)) as consumer:
        consumer.assign([confluent_kafka.TopicPartition(TOPIC, 0, 0)])
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            for message in consumer.consume(1000, 0.2):
                error = message.error()
                if error is not None:
                    assert error.code() == confluent_kafka.KafkaError._PARTITION_EOF, error
                    return count, table
                key = message.key()
                assert isinstance(key, bytes)
                value = message.value()
                assert value is None or isinstance(value, bytes)
                table[key] = value
                count += 1
    raise WaitFailed(f"not read to the end within {PATIENCE_S} s: {count} records")


def without_tombstones(table: Table) -> Table:
    return {key: value for key, value in table.items() if value is not None}


def cleaned(broker: Broker) -> bool:
    return "log cleaned partition=prices-0" in broker.log_text


def test_last_values_survive_kills_during_compaction(new_broker: BrokerMaker) -> None:
    rng, table = random.Random(1), Table()
    broker = new_broker(overrides=OVERRIDES)
    broker.start()
    make_topic(broker.bootstrap, TOPIC, configs=CONFIGS)
    written = 0
    for _ in range(4):
        write(broker.bootstrap, rng, table, 3000)
        written += 3000
        broker.kill9()
        broker.start()
        _, found = read(broker.bootstrap)
        assert without_tombstones(found) == without_tombstones(table)
    wait_until(lambda: cleaned(broker), what="the log is cleaned")
    wait_until(lambda: read(broker.bootstrap)[0] < written / 4, what="most records are gone")
    assert without_tombstones(read(broker.bootstrap)[1]) == without_tombstones(table)
    assert broker.stop() == 0
    names = [path.name for path in partition_folder(broker.data, TOPIC).iterdir()]
    assert not [name for name in names if name.endswith((".cleaned", ".swap"))]


def alter(bootstrap: str, **changes: str) -> None:
    async def altered() -> None:
        async with Admin(bootstrap) as admin:
            resource = ConfigResource.topic(TOPIC)
            rows = [ConfigChange(name.replace("_", "."), value) for name, value in changes.items()]
            (await admin.alter_configs({resource: rows}))[resource].check()

    asyncio.run(altered())


def test_changed_policy_of_a_topic_takes_effect_at_once(new_broker: BrokerMaker) -> None:
    rng, table = random.Random(2), Table()
    broker = new_broker(overrides={**OVERRIDES, "log.retention.check.interval.ms": "50"})
    broker.start()
    make_topic(broker.bootstrap, TOPIC, configs={**CONFIGS, "cleanup.policy": "delete"})
    write(broker.bootstrap, rng, table, 2000)
    assert read(broker.bootstrap)[0] == 2000
    alter(broker.bootstrap, cleanup_policy="compact", retention_bytes="16384")
    wait_until(lambda: read(broker.bootstrap)[0] < 1000, what="most records are gone")
    assert without_tombstones(read(broker.bootstrap)[1]) == without_tombstones(table)
    alter(broker.bootstrap, cleanup_policy="delete")
    write(broker.bootstrap, rng, table, 2000)
    wait_until(
        lambda: len(segments(broker.data, TOPIC)) <= 3, what="retention leaves the last segments"
    )
    cleanings = broker.log_text.count("log cleaned partition=prices-0")
    write(broker.bootstrap, rng, table, 2000)
    wait_until(
        lambda: len(segments(broker.data, TOPIC)) <= 3, what="retention leaves the last segments"
    )
    assert broker.log_text.count("log cleaned partition=prices-0") == cleanings


def size_of_segments(data: Path, topic: str) -> int:
    """Return the size in bytes of the segments. A segment that is replaced meanwhile may be left
    out."""
    size = 0
    for path in segments(data, topic):
        with suppress(FileNotFoundError):
            size += path.stat().st_size
    return size


def test_committed_offsets_survive_the_compaction_of_their_topic(new_broker: BrokerMaker) -> None:
    broker = new_broker(overrides=OVERRIDES)
    broker.start()
    make_topic(broker.bootstrap, TOPIC)
    options = {"bootstrap.servers": broker.bootstrap, "group.id": "g", "enable.auto.commit": False}
    place = confluent_kafka.TopicPartition(TOPIC, 0)
    with closing(confluent_kafka.Consumer(options)) as consumer:
        for offset in range(600):
            place.offset = offset
            consumer.commit(offsets=[place], asynchronous=False)
    wait_until(
        lambda: (
            "log cleaned partition=__consumer_offsets-0" in broker.log_text
            # The cleaner may begin before the last commits, and then cleans again.
            and size_of_segments(broker.data, "__consumer_offsets") < 3 * 16384
        ),
        what="__consumer_offsets is cleaned",
    )
    broker.kill9()
    broker.start()
    with closing(confluent_kafka.Consumer(options)) as consumer:
        (found,) = consumer.committed([confluent_kafka.TopicPartition(TOPIC, 0)], PATIENCE_S)
    assert found.offset == 599
