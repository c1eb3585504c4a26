"""Tests of fetch sessions (KIP-227) with real clients: each client reads all records in order, and
clients with sessions get only changed partitions in answers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import pytest

from integration_tests.broker import PybrokerProcess
from integration_tests.conftest import or_skip
from integration_tests.outside_clients import JavaClient
from integration_tests.process import free_port, wait_until
from integration_tests.python_clients import ConfluentKafka, KafkaPython, Pybroker
from integration_tests.site import Site
from integration_tests.wire_client import (
    Connection,
    batch_of,
    create_topic,
    produce,
    wait_for_leader,
)

PARTITIONS: Final = 50
RECORDS: Final = 600
SESSIONS: Final = "kafka_server_fetchsessioncache_numincrementalfetchsessions"
CACHED: Final = "kafka_server_fetchsessioncache_numincrementalfetchpartitionscached"
FETCHES: Final = "kafka_network_requestmetrics_requests_total"
ANSWERED: Final = "kafka_server_brokertopicmetrics_totalfetchrequests_total"

READERS: Final[dict[str, Callable[[str], JavaClient | KafkaPython | ConfluentKafka | Pybroker]]] = {
    "java": JavaClient,
    "kafka-python": KafkaPython,
    "pybroker": Pybroker,
    "confluent-kafka": ConfluentKafka,
}
WITHOUT_SESSIONS: Final = ("confluent-kafka",)


class Watched:
    """A broker and its fetch session metrics."""

    def __init__(self, folder: Path) -> None:
        self.site = Site(free_port())
        listener = f"127.0.0.1:{self.site.port}"
        self.broker = PybrokerProcess(
            folder / "data", overrides={"pybroker.http.listener": listener}
        )
        self.broker.start()

    def fetches(self, topic: str) -> tuple[float, float]:
        """Return the numbers of Fetch requests so far, and of answers for partitions of the
        topic.
        """
        asked = self.site.value(FETCHES, request="Fetch")
        return asked, self.site.value(ANSWERED, topic=topic)


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    made = Watched(tmp_path_factory.mktemp("watched"))
    yield made
    made.broker.close()


@pytest.mark.ours
@pytest.mark.parametrize("name", READERS)
def test_a_client_in_a_session_reads_every_record_in_order(
    watched: Watched, topic: str, name: str
) -> None:
    reader = or_skip(lambda: READERS[name](watched.broker.bootstrap))
    site = watched.site
    with Connection(watched.broker.bootstrap) as connection, ThreadPoolExecutor(1) as thread:
        create_topic(connection, topic, partitions=PARTITIONS)
        wait_for_leader(connection, topic)
        asked, given = watched.fetches(topic)
        left_over, left_over_partitions = site.value(SESSIONS), site.value(CACHED)
        reading = thread.submit(reader.read_all, topic, PARTITIONS, RECORDS)
        sessions, cached = left_over, left_over_partitions
        wait_until(lambda: watched.fetches(topic)[1] > given, what="the reader asks")
        for number in range(RECORDS):
            value = b"%d" % number
            produce(connection, topic, batch_of(value), partition=number * 7 % PARTITIONS)
            if number % 20 == 0:
                sessions = max(sessions, site.value(SESSIONS))
                cached = max(cached, site.value(CACHED))
        found = reading.result()
        asked_then, given_then = watched.fetches(topic)
    expected: dict[int, list[tuple[int, bytes]]] = {}
    for number in range(RECORDS):
        of_partition = expected.setdefault(number * 7 % PARTITIONS, [])
        of_partition.append((len(of_partition), b"%d" % number))
    read: dict[int, list[tuple[int, bytes]]] = {}
    for partition, offset, value in found:
        read.setdefault(partition, []).append((offset, value))
    assert read == expected
    rows = (given_then - given) / (asked_then - asked)
    begun = (sessions - left_over, cached - left_over_partitions)
    if name in WITHOUT_SESSIONS:
        assert begun == (0, 0) and rows > PARTITIONS / 2
    else:
        assert begun == (1, PARTITIONS)
        assert rows < PARTITIONS / 5, "every partition was answered each time"
    if isinstance(reader, JavaClient):
        reader.close()
