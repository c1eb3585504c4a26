"""Tests of committed offsets on real brokers, in both offset stores: third-party clients commit and
fetch them, tools show and edit them, and no offset is lost or decreases when the store changes,
after an Apache broker, or when the coordinator dies or is paused.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import confluent_kafka
import kafka
import pytest
from kafka.structs import OffsetAndMetadata

from integration_tests.apache import ApacheKafka, ApacheZooKeeper, session_at
from integration_tests.broker import PybrokerProcess
from integration_tests.committer import (
    COMMIT_VERSION,
    Committer,
    commit_request,
    only_code,
)
from integration_tests.wire_client import Connection, create, create_topic
from pybroker.errors import ErrorCode
from pybroker.testing.cluster import Cluster
from pybroker.wire.messages.offsets import OffsetCommitResponse
from pybroker.wire.messages.topics import CreatableTopic, DeleteTopicsRequest, DeleteTopicsResponse
from unit_tests.patience import PATIENCE_S, wait_until

pytestmark = pytest.mark.ours

STORAGES = ("zookeeper", "kafka")
CONFIG = {"offsets.topic.num.partitions": 2}
ALONE = {"zookeeper.session.timeout.ms": 18_000}
"""A session timeout in ms so long that it does not expire on a slow machine. No test waits for
it.
"""
Starter = Callable[..., Cluster]


@pytest.fixture
def start() -> Iterator[Starter]:
    """Return a function that starts a cluster, which is closed after the test."""
    started: list[Cluster] = []

    def start(brokers: int, **config: object) -> Cluster:
        patience = ALONE if brokers == 1 else {}
        cluster = Cluster(brokers, config={**CONFIG, **patience, **config})
        started.append(cluster)
        cluster.start()
        with Connection(cluster.address(cluster.controller())) as connection:
            wanted = CreatableTopic(name="t", num_partitions=3, replication_factor=brokers)
            assert create(connection, wanted).error_code == ErrorCode.NONE
        return cluster

    yield start
    for cluster in started:
        cluster.close()


def committer(cluster: Cluster, group: str = "g") -> Any:
    return closing(Committer(cluster.bootstrap, group, "t"))


def shell(cluster: Cluster, *words: str) -> str:
    """Run zookeeper-shell, and return the last line that it prints."""
    command = [sys.executable, "-m", "pybroker", "zookeeper-shell", cluster.zookeeper, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    return done.stdout.strip().splitlines()[-1]


def tree(connect: str, path: str) -> dict[str, bytes]:
    """Return the nodes at and below `path` with their content."""
    with session_at(connect) as client:

        def below(path: str) -> dict[str, bytes]:
            found = {path: client.get(path)[0]}
            for name in client.get_children(path):
                found |= below(f"{path}/{name}")
            return found

        return below(path) if client.exists(path) else {}


@pytest.mark.parametrize("storage", STORAGES)
def test_a_commit_of_one_client_is_fetched_by_others(start: Starter, storage: str) -> None:
    cluster = start(1, **{"offsets.storage": storage})
    options = {"bootstrap_servers": cluster.bootstrap, "group_id": "g", "enable_auto_commit": False}
    with closing(kafka.KafkaConsumer(**options)) as consumer:
        key = kafka.TopicPartition("t", 0)
        consumer.assign([key])
        consumer.commit({key: OffsetAndMetadata(17, "from kafka-python", -1)})
    reader = confluent_kafka.Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "g"})
    wanted = [confluent_kafka.TopicPartition("t", number) for number in range(2)]
    try:
        # Not their metadata: librdkafka's copy is not terminated, so it reads beyond its end.
        found = reader.committed(wanted, timeout=PATIENCE_S)
        assert [each.offset for each in found] == [17, confluent_kafka.OFFSET_INVALID]
        reader.commit(offsets=[confluent_kafka.TopicPartition("t", 1, 23)], asynchronous=False)
    finally:
        reader.close()
    with closing(kafka.KafkaConsumer(**options)) as consumer:
        assert consumer.committed(kafka.TopicPartition("t", 1)) == 23
        assert consumer.committed(key, metadata=True).metadata == "from kafka-python"


def test_the_classic_nodes_are_read_and_edited_with_zookeeper_shell(start: Starter) -> None:
    cluster = start(1)
    with committer(cluster, "a/b") as client:
        client.commit({0: 5})
        path = "/consumers/a%2Fb/offsets/t/0"
        assert shell(cluster, "get", path) == "5"
        shell(cluster, "set", path, "3")
        assert client.fetch_with_text(0, 1) == {0: (3, ""), 1: (-1, "")}
        client.commit({0: 6})
        assert client.fetch_with_text(0) == {0: (6, "at 6")}
        shell(cluster, "delete", path)
        assert client.fetch(0) == {0: -1}
        client.commit({0: 7})
        assert shell(cluster, "get", path) == "7"


def test_switching_the_storage_both_ways(start: Starter) -> None:
    cluster = start(1)
    expected: dict[int, int] = {}
    for turn, storage in enumerate(["zookeeper", "kafka", "kafka", "zookeeper", "kafka"]):
        if turn:
            cluster.restart(1, config={**CONFIG, "offsets.storage": storage})
        with committer(cluster) as client, committer(cluster, "quiet") as quiet:
            for partition, offset in expected.items():
                assert client.fetch_with_text(partition) == {partition: (offset, f"at {offset}")}
                assert quiet.fetch(0) == {0: 100}
            if not turn:
                quiet.commit({0: 100})
            expected[turn % 3] = 10 + turn
            client.commit({turn % 3: 10 + turn})


@pytest.mark.parametrize("storage", STORAGES)
def test_the_offsets_of_an_apache_broker_are_taken_over(
    zookeeper: ApacheZooKeeper, tmp_path: Path, storage: str
) -> None:
    apache = ApacheKafka(tmp_path / "apache", zookeeper=zookeeper.connect, heap_mib=512)
    with closing(apache):
        apache.start()
        with Connection(apache.bootstrap) as connection:
            create_topic(connection, "t", partitions=3)
        options = {"bootstrap_servers": apache.bootstrap, "auto_offset_reset": "earliest"}
        with closing(kafka.KafkaProducer(bootstrap_servers=apache.bootstrap)) as producer:
            for number in range(30):
                producer.send("t", b"value", partition=number % 3)
            producer.flush()
        with closing(kafka.KafkaConsumer("t", group_id="members", **options)) as consumer:
            read = 0
            while read < 30:
                read += sum(map(len, consumer.poll(1000).values()))
            consumer.commit()
        with closing(Committer(apache.bootstrap, "simple", "t")) as client:
            client.commit({0: 3, 1: 4})
            client.commit({0: 5})
        apache.stop()
    ours = PybrokerProcess(
        tmp_path / "ours",
        zookeeper=zookeeper.connect,
        overrides={
            "broker.id": "0",
            "log.dirs": str(apache.data),
            "offsets.storage": storage,
            "offsets.topic.replication.factor": "1",
        },
    )
    with closing(ours):
        ours.start()
        with closing(Committer(ours.bootstrap, "simple", "t")) as client:
            found = client.fetch_with_text(0, 1, 2)
            assert found == {0: (5, "at 5"), 1: (4, "at 4"), 2: (-1, "")}
        with closing(Committer(ours.bootstrap, "members", "t")) as client:
            assert client.fetch(0, 1, 2) == {0: 10, 1: 10, 2: 10}
            client.commit({0: 10, 1: 10, 2: 10})
        nodes = tree(zookeeper.connect, "/consumers/members/offsets/t")
        assert (nodes.get("/consumers/members/offsets/t/2") == b"10") is (storage == "zookeeper")


@pytest.mark.parametrize("storage", STORAGES)
def test_a_coordinator_killed_in_mid_commit(start: Starter, storage: str) -> None:
    cluster = start(3, **{"offsets.storage": storage})
    with committer(cluster) as client, committer(cluster) as other:
        offset = 0
        for _ in range(2):
            offset = answered = offset + 1
            client.commit({0: offset, 1: offset})  # a coordinator is ready
            for _ in range(200):
                offset += 1
                if client.try_commit({0: offset, 1: offset}) is ErrorCode.NONE:
                    answered = offset
            coordinator, address = client.coordinator()
            with Connection(address) as connection:
                offset += 1  # under way when it dies
                connection.send(COMMIT_VERSION, commit_request("g", "t", {0: offset, 1: offset}))
                cluster.kill(coordinator)
            found = other.fetch(0, 1)
            assert answered <= found[0] == found[1] <= offset
            cluster.restart(coordinator)
            cluster.wait_until_in_sync("__consumer_offsets")


@pytest.mark.parametrize("storage", STORAGES)
def test_a_resumed_old_coordinator_commits_nothing(start: Starter, storage: str) -> None:
    cluster = start(3, **{"offsets.storage": storage})
    with committer(cluster) as client:
        client.commit({0: 100})
        coordinator, address = client.coordinator()
        with Connection(address) as late:
            cluster.pause(coordinator)
            late.set_timeout(PATIENCE_S)
            sent = late.send(COMMIT_VERSION, commit_request("g", "t", {0: 1, 2: 1}))
            client.close()
            rest = ",".join(cluster.address(each) for each in cluster.ids if each != coordinator)
            with closing(Committer(rest, "g", "t")) as successor:
                wait_until(
                    lambda: successor.coordinator()[0] != coordinator, what="another coordinator"
                )
                successor.commit({0: 200})
                cluster.resume(coordinator)
                code = only_code(late.receive(COMMIT_VERSION, OffsetCommitResponse, sent))
                assert code in (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE)
                assert successor.fetch(0, 2) == {0: 200, 2: -1}


@pytest.mark.parametrize("storage", STORAGES)
def test_the_offsets_of_a_deleted_topic_are_removed(start: Starter, storage: str) -> None:
    cluster = start(1, **{"offsets.storage": storage})
    with committer(cluster) as client, Connection(cluster.address(1)) as connection:
        create_topic(connection, "other")
        client.commit({0: 5, 1: 6})
        with closing(Committer(cluster.bootstrap, "g", "other")) as second:
            second.commit({0: 7})
            request = DeleteTopicsRequest(topic_names=["t"], timeout_ms=30_000)
            answer = connection.ask(4, request, DeleteTopicsResponse)
            assert [each.error_code for each in answer.responses] == [ErrorCode.NONE]
            wait_until(lambda: client.fetch(0, 1) == {0: -1, 1: -1}, what="the offsets are gone")
            assert second.fetch(0) == {0: 7}
        wait_until(  # the parents of the nodes are removed after them
            lambda: not tree(cluster.zookeeper, "/consumers/g/offsets/t"), what="no node is left"
        )
        create_topic(connection, "t", partitions=3)
        assert client.fetch(0) == {0: -1}


def test_zookeeper_stops_during_a_commit(start: Starter) -> None:
    cluster = start(1)
    with committer(cluster) as client:
        client.commit({0: 1})
        cluster.pause_zookeeper()
        try:
            assert client.try_commit({0: 2, 1: 2}) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        finally:
            cluster.resume_zookeeper()
        assert client.fetch(0)[0] in (1, 2)
        client.commit({0: 3})
        assert client.fetch(0) == {0: 3}
        cluster.kill_zookeeper()
        client.commit({0: 4})  # it is started again at once
        assert client.fetch(0) == {0: 4}
