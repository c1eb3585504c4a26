"""Tests of leader elections on request, automatically, and because a broker stops, on three
brokers. Requests come from Apache's tool, our tool and third-party clients.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

import confluent_kafka
import kafka
import pytest
from confluent_kafka import ElectionType as ConfluentElectionType
from confluent_kafka import TopicPartition as ConfluentPartition
from confluent_kafka.admin import AdminClient as ConfluentAdmin

from integration_tests.apache_tools import Tools
from pybroker.client.admin.admin import Admin
from pybroker.client.admin.elections import ElectionType
from pybroker.client.admin.topics import NewTopic
from pybroker.client.errors import ClientError, ResponseError
from pybroker.errors import ErrorCode
from pybroker.model import TopicPartition
from pybroker.testing.cluster import Cluster
from unit_tests.patience import PATIENCE_S, wait_until

pytestmark = pytest.mark.ours

ALL: Final = (1, 2, 3)
PREFERRED: Final = 0
PARTITIONS_MANY: Final = 1_000
LONG_SESSIONS: Final = {"zookeeper.session.timeout.ms": "18000"}
"""A long session timeout in ms: a stopping broker ends its session itself, and a slow broker must
stay leader.
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    config = {"auto.leader.rebalance.enable": "false", **LONG_SESSIONS}
    with Cluster(data=tmp_path_factory.mktemp("cluster"), config=config) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def tools(jars: str, cluster: Cluster) -> Iterator[Tools]:
    with Tools(cluster.bootstrap) as tools:
        yield tools


def patient_admin(cluster: Cluster) -> Admin:
    """Yield an admin client with timeouts long enough to create and delete a thousand partitions
    while a broker opens them.
    """
    limit_ms = int(2_000 * PATIENCE_S)
    return Admin(cluster.bootstrap, request_timeout_ms=limit_ms, default_api_timeout_ms=limit_ms)


def create(cluster: Cluster, name: str, assignment: Mapping[int, tuple[int, ...]]) -> None:
    async def work() -> None:
        async with patient_admin(cluster) as admin:
            for result in await admin.create_topics([NewTopic(name, assignments=assignment)]):
                result.check()

    asyncio.run(work())
    cluster.wait_until_in_sync(name)


def delete(cluster: Cluster, name: str) -> None:
    async def work() -> None:
        async with patient_admin(cluster) as admin:
            for result in await admin.delete_topics([name]):
                result.check()

    asyncio.run(work())


def leaders(cluster: Cluster, name: str, count: int) -> list[int]:
    states = [cluster.partition(name, number) for number in range(count)]
    return [-1 if state is None else state.leader for state in states]


def displaced(cluster: Cluster, name: str, count: int) -> None:
    """Return a topic in which broker 1 is the preferred leader and in sync, but leads no partition.
    Broker 1 then does not lead the topics of earlier tests either.
    """
    create(cluster, name, {n: (1, 2 + n % 2, 3 - n % 2) for n in range(count)})
    cluster.terminate(1)
    cluster.restart(1)
    cluster.wait_until_in_sync()
    assert 1 not in leaders(cluster, name, count)


def elect(
    cluster: Cluster, kind: ElectionType, *keys: TopicPartition
) -> dict[TopicPartition, ClientError | None]:
    async def work() -> dict[TopicPartition, ClientError | None]:
        async with Admin(cluster.bootstrap) as admin:
            return await admin.elect_leaders(kind, keys or None)

    return asyncio.run(work())


def code(error: ClientError | None) -> ErrorCode:
    assert error is None or isinstance(error, ResponseError)
    return ErrorCode.NONE if error is None else error.code


def test_our_client_elects(cluster: Cluster, topic: str) -> None:
    displaced(cluster, topic, 3)
    first, second, third = (TopicPartition(topic, number) for number in range(3))
    unknown = TopicPartition(topic, 9)
    results = elect(cluster, ElectionType.PREFERRED, first, unknown)
    assert {key: code(error) for key, error in results.items()} == {
        first: ErrorCode.NONE,
        unknown: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert leaders(cluster, topic, 3).count(1) == 1
    again = elect(cluster, ElectionType.PREFERRED, first)
    assert code(again[first]) is ErrorCode.ELECTION_NOT_NEEDED
    everywhere = elect(cluster, ElectionType.PREFERRED)
    assert set(everywhere.values()) == {None}
    assert {key for key in everywhere if key.topic == topic} == {second, third}
    assert elect(cluster, ElectionType.PREFERRED) == {}
    needless = elect(cluster, ElectionType.UNCLEAN, first)
    assert code(needless[first]) is ErrorCode.ELECTION_NOT_NEEDED


def test_confluent_kafka_elects(cluster: Cluster, topic: str) -> None:
    displaced(cluster, topic, 2)
    admin = ConfluentAdmin({"bootstrap.servers": cluster.bootstrap})
    asked = [ConfluentPartition(topic, 0), ConfluentPartition(topic, 9)]
    results = admin.elect_leaders(ConfluentElectionType.PREFERRED, asked).result()
    assert results[ConfluentPartition(topic, 0)] is None
    error = results[ConfluentPartition(topic, 9)]
    assert error.code() == confluent_kafka.KafkaError.UNKNOWN_TOPIC_OR_PART
    admin.elect_leaders(ConfluentElectionType.PREFERRED).result()
    assert leaders(cluster, topic, 2) == [1, 1]


def test_kafka_python_elects(cluster: Cluster, topic: str) -> None:
    displaced(cluster, topic, 2)
    admin = kafka.KafkaAdminClient(bootstrap_servers=cluster.bootstrap)
    answer = admin.elect_leaders(PREFERRED, {topic: [0, 9]}, raise_errors=False)
    assert {
        row.partition_id: row.error_code
        for found in answer.replica_election_results
        for row in found.partition_result
    } == {0: ErrorCode.NONE, 9: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    admin.elect_leaders(PREFERRED)
    admin.close()
    assert leaders(cluster, topic, 2) == [1, 1]


def test_our_tool_elects_like_apaches_tool(
    cluster: Cluster, tools: Tools, topic: str, tmp_path: Path
) -> None:
    displaced(cluster, topic, 3)
    mine = f"{topic}-ours"
    create(cluster, mine, {0: (1, 2, 3)})
    file = tmp_path / "partitions.json"
    rows = [{"topic": topic, "partition": number} for number in (2, 1, 7)]
    file.write_text(json.dumps({"partitions": rows}))
    preferred = ["--election-type", "preferred"]
    for words in (
        [*preferred, "--topic", mine, "--partition", "0"],
        ["--election-type", "unclean", "--topic", mine, "--partition", "0"],
        ["--election-type", "UNCLEAN", "--topic", mine, "--partition", "0"],
    ):
        tools.same("leader-election", *words)
    theirs = tools.apache("leader-election", *preferred, "--path-to-json-file", str(file))
    assert theirs.code == 1
    assert leaders(cluster, topic, 3)[1:] == [1, 1]
    tools.same(
        *("leader-election", *preferred, "--path-to-json-file", str(file)),
        says=["Valid replica already elected for partitions", "1 replica(s) could not be elected"],
        allow=["order of elected partitions", "errors of elections"],
    )
    ours = tools.ours("leader-election", *preferred, "--all-topic-partitions")
    (line,) = ours.lines
    assert line.startswith("Successfully completed leader election (PREFERRED) for partitions ")
    assert f"{topic}-0" in line
    assert f"{topic}-1" not in line
    tools.same("leader-election", *preferred, "--all-topic-partitions")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--election-type preferred --all-topic-partitions --topic a", "One and only one of"),
        ("--election-type preferred", "One and only one of the following options is required"),
        ("--all-topic-partitions", "Missing required option(s): election-type"),
        ("--election-type preferred --topic a", "Missing required option(s): partition"),
        (
            "--election-type preferred --all-topic-partitions --partition 1",
            "Option partition is only allowed if topic is used",
        ),
    ],
)
def test_our_tool_reports_the_errors_of_apaches_tool(tools: Tools, words: str, says: str) -> None:
    tools.same("leader-election", *words.split(), says=says)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "Replica election data is empty"),
        ("{}", 'Replica election data is missing "partitions" field'),
        (
            json.dumps({"partitions": [{"topic": "a", "partition": 0}] * 2}),
            "Replica election data contains duplicate partitions: ",
        ),
    ],
)
def test_both_tools_refuse_invalid_files(
    tools: Tools, content: str, says: str, tmp_path: Path
) -> None:
    file = tmp_path / "partitions.json"
    file.write_text(content)
    words = ["--election-type", "preferred", "--path-to-json-file", str(file)]
    tools.same("leader-election", *words, says=says)


def test_a_stop_hands_a_thousand_partitions_over(cluster: Cluster, topic: str) -> None:
    create(cluster, topic, dict.fromkeys(range(PARTITIONS_MANY), (2, 3, 1)))
    done = "INFO controlled shutdown done"  # each attempt has a line of its own
    told = cluster.log_text(2).count(done)
    cluster.terminate(2, seconds=PATIENCE_S)
    assert cluster.log_text(2).count(done) == told + 1
    assert set(leaders(cluster, topic, PARTITIONS_MANY)) == {3}
    cluster.restart(2)
    delete(cluster, topic)


class Load:
    """An idempotent producer that writes continuously, and the outcome of each record."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        self._topic = topic
        self.acknowledged: dict[int, tuple[int, int]] = {}
        self.failed: list[str] = []
        self._producer = confluent_kafka.Producer(
            {"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True, "linger.ms": 5}
        )
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def wait_for_progress(self, before: int) -> None:
        """Wait until more than `before` records were acknowledged."""
        wait_until(lambda: len(self.acknowledged) > before, what="progress")

    def _run(self) -> None:
        number = 0
        while not self._over.is_set():
            self._producer.produce(self._topic, str(number), on_delivery=self._done(number))
            number += 1
            self._producer.poll(0.002)
        self._producer.flush(PATIENCE_S)

    def _done(
        self, number: int
    ) -> Callable[[confluent_kafka.KafkaError | None, confluent_kafka.Message], None]:
        def done(
            error: confluent_kafka.KafkaError | None, message: confluent_kafka.Message
        ) -> None:
            if error is not None:
                self.failed.append(str(error))
            else:
                partition, offset = message.partition(), message.offset()
                assert partition is not None
                assert offset is not None
                self.acknowledged[number] = partition, offset

        return done


def read_all(cluster: Cluster, topic: str, partitions: int) -> dict[int, tuple[int, int]]:
    """Read all records. Return value -> its position. Each value must occur once."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "reader",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    found: dict[int, tuple[int, int]] = {}
    ends = {
        number: consumer.get_watermark_offsets(
            ConfluentPartition(topic, number), timeout=PATIENCE_S
        )[1]
        for number in range(partitions)
    }
    consumer.assign([ConfluentPartition(topic, number, 0) for number in range(partitions)])
    while left := sum(ends.values()) - len(found):
        messages = consumer.consume(min(500, left), timeout=PATIENCE_S)
        assert messages, f"{left} records are not read"
        for message in messages:
            assert message.error() is None
            value, partition, offset = message.value(), message.partition(), message.offset()
            assert value is not None and partition is not None and offset is not None
            assert int(value) not in found
            found[int(value)] = partition, offset
    consumer.close()
    return found


def test_a_rolling_restart_costs_a_client_only_retries(cluster: Cluster, topic: str) -> None:
    assignment = {
        number: (1 + number % 3, 1 + (number + 1) % 3, 1 + (number + 2) % 3) for number in range(6)
    }
    create(cluster, topic, assignment)
    with Load(cluster, topic) as load:
        for broker in ALL:
            before = len(load.acknowledged)
            assert cluster.terminate(broker) == 0
            cluster.restart(broker)
            cluster.wait_until_in_sync(topic)
            load.wait_for_progress(before)
    assert load.failed == []
    assert read_all(cluster, topic, 6) == load.acknowledged


def test_the_preferred_replica_leads_again_by_itself(tmp_path: Path, topic: str) -> None:
    config = {"leader.imbalance.check.interval.seconds": "1", **LONG_SESSIONS}
    with Cluster(data=tmp_path, config=config) as cluster:
        assignment = dict.fromkeys(range(3), (1, 2, 3))
        create(cluster, topic, assignment)
        cluster.terminate(1)
        assert 1 not in leaders(cluster, topic, 3)
        cluster.restart(1)
        wait_until(lambda: leaders(cluster, topic, 3) == [1, 1, 1], what="leaders")
