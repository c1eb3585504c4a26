"""Tests of Kafka Connect in distributed mode on three brokers: a source with exactly-once
support copies a growing file into a topic while its worker and the brokers that it needs are
killed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import kafka
import pytest

from integration_tests import maven
from integration_tests.conftest import or_skip
from integration_tests.connect import TOPICS, Worker
from integration_tests.kafka_python import polled
from integration_tests.ranges import make_topic
from integration_tests.test_streams import CLUSTER, coordinator_with_transactions
from pybroker.testing.cluster import Cluster
from unit_tests.patience import wait_until

pytestmark = pytest.mark.ours

TOPIC: Final = "lines"
CONNECTOR: Final = "file"
PART: Final = 500
"""The number of lines that the test appends to the file at a time."""


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(3, config=CLUSTER) as running:
        yield running


class Lines:
    """The committed lines of the topic, as kafka-python reads them."""

    def __init__(self, bootstrap: str) -> None:
        options: dict[str, Any] = {
            "isolation_level": "read_committed",
            "auto_offset_reset": "earliest",
        }
        self._consumer = kafka.KafkaConsumer(bootstrap_servers=bootstrap, **options)
        self._consumer.assign([kafka.TopicPartition(TOPIC, 0)])
        self.read: list[bytes] = []

    def count(self) -> int:
        for rows in polled(self._consumer).values():
            self.read += [row.value for row in rows]
        return len(self.read)

    def close(self) -> None:
        self._consumer.close()


def test_source_copies_each_line_once(cluster: Cluster, tmp_path: Path) -> None:
    or_skip(lambda: maven.class_path(maven.CONNECT))
    bootstrap = cluster.bootstrap
    make_topic(bootstrap, TOPIC, replicas=3)
    file = tmp_path / "lines.txt"
    file.touch()
    expected: list[bytes] = []

    def append() -> None:
        lines = [b"line %d" % (len(expected) + n) for n in range(PART)]
        with file.open("ab") as stream:
            stream.writelines(line + b"\n" for line in lines)
        expected.extend(lines)

    workers = [Worker(bootstrap, tmp_path / str(n)) for n in range(2)]
    try:
        for worker in workers:
            worker.wait_until_serving()
        config = {
            "connector.class": "org.apache.kafka.connect.file.FileStreamSourceConnector",
            "exactly.once.support": "required",
            "transaction.boundary": "poll",
            "tasks.max": "1",
            "file": str(file),
            "topic": TOPIC,
        }
        workers[0].create(CONNECTOR, config)
        with closing(Lines(bootstrap)) as lines:

            def wait_for_all() -> None:
                wait_until(lambda: lines.count() >= len(expected), what=f"{len(expected)} lines")
                assert lines.read == expected

            def kill_broker(choose: Callable[[], int]) -> None:
                broker = choose()
                append()
                cluster.kill(broker)
                append()
                wait_for_all()
                cluster.restart(broker)
                cluster.wait_until_in_sync()

            append()
            wait_for_all()
            kill_broker(lambda: cluster.leader(TOPIC, 0))
            kill_broker(lambda: coordinator_with_transactions(cluster))
            kill_broker(lambda: cluster.leader(TOPICS["offset.storage.topic"], 0))
            name = workers[0].worker_of(CONNECTOR)
            (busy,) = (worker for worker in workers if worker.name == name)
            append()
            busy.process.kill9()
            append()
            wait_for_all()
    finally:
        for worker in workers:
            worker.process.close()
