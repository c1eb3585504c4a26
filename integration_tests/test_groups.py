"""Tests of group members of three third-party clients as processes: they share partitions, leave,
die and restart, and their coordinator is killed.
"""

from __future__ import annotations

import contextlib
import json
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Final

import confluent_kafka
import pytest
from confluent_kafka import admin as confluent_admin

from integration_tests.apache_tools import ApacheTools, OurTools
from integration_tests.broker import Broker
from integration_tests.conftest import BrokerMaker
from integration_tests.process import ChildProcess
from integration_tests.stored import partition_folder
from pybroker.coordinator.groups.records import (
    GroupKey,
    RecordedGroup,
    decode_group_value,
    decode_key,
)
from pybroker.testing import Cluster
from unit_tests.patience import PATIENCE_S, wait_until

CLIENTS: Final = ("confluent-kafka", "kafka-python", "aiokafka")
PARTITIONS: Final = 4
ALL: Final = frozenset(range(PARTITIONS))
LONG_MS: Final = 60_000
"""A session timeout in ms longer than the restart of a broker or of a static member."""
OPTIONS: Final = {
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "group.initial.rebalance.delay.ms": "500",
}
BROKER_OVERRIDES: Final = OPTIONS


class Member:
    """A member as a separate process; see `group_member`."""

    def __init__(
        self,
        client: str,
        bootstrap: str,
        group: str,
        topic: str,
        *,
        session_ms: int,
        instance: str = "",
    ) -> None:
        words = [
            client,
            bootstrap,
            group,
            topic,
            str(session_ms),
            *([instance] if instance else []),
        ]
        self.process = ChildProcess(
            [sys.executable, "-m", "integration_tests.group_member", *words]
        )

    def events(self) -> list[dict[str, list[int]]]:
        lines = [line for line in self.process.output.splitlines() if line.startswith("{")]
        found: list[dict[str, list[int]]] = []
        for line in lines:
            with contextlib.suppress(json.JSONDecodeError):  # an incomplete line
                found.append(json.loads(line))
        return found

    @property
    def rebalances(self) -> list[dict[str, list[int]]]:
        return [event for event in self.events() if "assigned" in event or "revoked" in event]

    @property
    def owns(self) -> frozenset[int]:
        """Return the current assignment; empty while the member has none."""
        owned: frozenset[int] = frozenset()
        for event in self.rebalances:
            owned = frozenset(event.get("assigned", ()))
        return owned

    @property
    def read(self) -> set[tuple[int, int]]:
        """Return (partition, offset) of the records that the member has read and committed."""
        return {(event["read"][0], event["read"][1]) for event in self.events() if "read" in event}


class Group:
    """One group on one topic, and its members."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.name = f"readers-{uuid.uuid4().hex[:8]}"
        self.topic = f"load-{uuid.uuid4().hex[:8]}"
        self._produced: dict[int, int] = dict.fromkeys(range(PARTITIONS), 0)
        self._stack = ExitStack()

    def make_topic(self, *, replicas: int = 1) -> None:
        admin = confluent_admin.AdminClient({"bootstrap.servers": self.bootstrap})
        wanted = confluent_admin.NewTopic(self.topic, PARTITIONS, replicas)  # type: ignore[attr-defined]
        for answer in admin.create_topics([wanted]).values():
            answer.result(PATIENCE_S)

    def join(self, client: str, instance: str = "", *, session_ms: int = LONG_MS) -> Member:
        member = Member(
            *(client, self.bootstrap, self.name, self.topic),
            session_ms=session_ms,
            instance=instance,
        )
        self._stack.callback(member.process.close)
        return member

    def produce(self) -> set[tuple[int, int]]:
        """Write a record to every partition. Return the positions of the records."""
        producer = confluent_kafka.Producer(
            {"bootstrap.servers": self.bootstrap, "acks": "all", "message.timeout.ms": 60_000}
        )
        for partition in range(PARTITIONS):
            producer.produce(self.topic, value=b"x", partition=partition)
        assert producer.flush(PATIENCE_S) == 0
        found = {(partition, offset) for partition, offset in self._produced.items()}
        for partition in self._produced:
            self._produced[partition] += 1
        return found

    def records(self) -> list[RecordedGroup | None]:
        """Return all records of the group in `__consumer_offsets`, in order."""
        consumer = confluent_kafka.Consumer(
            {"bootstrap.servers": self.bootstrap, "group.id": "nobody", "enable.auto.commit": False}
        )
        topic = confluent_kafka.TopicPartition("__consumer_offsets", 0, 0)
        consumer.assign([topic])
        _, end = consumer.get_watermark_offsets(topic, timeout=PATIENCE_S)
        found: list[RecordedGroup | None] = []
        position = 0
        while position < end:
            message = consumer.poll(PATIENCE_S)
            assert message is not None and message.error() is None
            position = (message.offset() or 0) + 1
            if decode_key(message.key() or b"") == GroupKey(self.name):
                value = message.value()
                found.append(None if value is None else decode_group_value(value))
        consumer.close()
        return found

    def close(self) -> None:
        self._stack.close()


Groups = Callable[[str], Group]


@pytest.fixture
def groups() -> Iterator[Groups]:
    with ExitStack() as stack:

        def make(bootstrap: str) -> Group:
            group = Group(bootstrap)
            stack.callback(group.close)
            return group

        yield make


def wait_for(what: str, condition: Callable[[], object], *members: Member) -> None:
    try:
        wait_until(condition, what=what)
    except AssertionError as error:
        said = "\n".join(f"--- {member.process.output[-3000:]}" for member in members)
        raise AssertionError(f"{error}\n{said}") from error


def wait_until_shared(*members: Member) -> None:
    """Wait until every partition has exactly one owner, and the members own about the same number
    of partitions.
    """

    def shared() -> bool:
        owned = [partition for member in members for partition in member.owns]
        fair = {len(member.owns) for member in members} == {PARTITIONS // len(members)}
        return fair and sorted(owned) == sorted(ALL)

    wait_for("the partitions are shared", shared, *members)


def wait_until_read(records: set[tuple[int, int]], *members: Member) -> None:
    wait_for(
        f"{records} are read",
        lambda: records <= set().union(*(member.read for member in members)),
        *members,
    )


@pytest.mark.parametrize("client", CLIENTS)
def test_a_static_member_rejoins_without_a_rebalance(
    client: str, broker: Broker, groups: Groups
) -> None:
    group = groups(broker.bootstrap)
    group.make_topic()
    first, second = group.join(client, "one"), group.join(client, "two")
    wait_until_shared(first, second)
    wait_until_read(group.produce(), first, second)
    before, owned = first.rebalances, second.owns
    stable = group.records()[-1]

    second.process.kill9()
    again = group.join(client, "two")
    wait_for("the member has its partitions again", lambda: again.owns == owned, again)
    wait_until_read(group.produce(), first, again)
    assert first.rebalances == before
    now = group.records()[-1]
    assert stable is not None and now is not None
    assert now.generation == stable.generation
    assert {m.group_instance_id: m.assignment for m in now.members} == {
        m.group_instance_id: m.assignment for m in stable.members
    }
    assert {m.member_id for m in now.members} != {m.member_id for m in stable.members}


@pytest.mark.parametrize("client", CLIENTS)
def test_a_killed_coordinator_causes_no_rebalance(client: str, groups: Groups) -> None:
    options = {**OPTIONS, "offsets.topic.replication.factor": "3"}
    with Cluster(3, config=options) as cluster:
        group = groups(cluster.bootstrap)
        group.make_topic(replicas=3)
        first = group.join(client)
        wait_until_shared(first)
        second = group.join(client)
        wait_until_shared(first, second)
        wait_until_read(group.produce(), first, second)
        before = (first.rebalances, second.rebalances)
        stable = group.records()[-1]

        coordinator = cluster.leader("__consumer_offsets", 0)
        cluster.kill(coordinator)
        for _ in range(3):
            wait_until_read(group.produce(), first, second)
        assert cluster.leader("__consumer_offsets", 0) != coordinator
        assert (first.rebalances, second.rebalances) == before
        assert group.records()[-1] == stable

        cluster.restart(coordinator)
        wait_until_read(group.produce(), first, second)
        assert (first.rebalances, second.rebalances) == before


def test_a_restarted_broker_loads_its_groups(new_broker: BrokerMaker, groups: Groups) -> None:
    broker = new_broker(overrides=OPTIONS)
    broker.start()
    group = groups(broker.bootstrap)
    group.make_topic()
    first, second = group.join("confluent-kafka"), group.join("confluent-kafka")
    wait_until_shared(first, second)
    before = (first.rebalances, second.rebalances)
    broker.kill9()
    broker.start()
    wait_until_read(group.produce(), first, second)
    assert (first.rebalances, second.rebalances) == before


def test_the_dump_tools_read_the_records_of_groups(
    new_broker: BrokerMaker, groups: Groups, jars: str
) -> None:
    broker = new_broker(overrides=OPTIONS)
    broker.start()
    group = groups(broker.bootstrap)
    group.make_topic()
    member = group.join("confluent-kafka", "one")
    wait_until_shared(member)
    wait_until_read(group.produce(), member)
    broker.stop()
    with closing(ApacheTools()) as apache:
        files = sorted(partition_folder(broker.data, "__consumer_offsets").glob("*.log"))
        words = ("--offsets-decoder", "--files", ",".join(str(file) for file in files))
        ran = apache("dump-log", *words)
    assert OurTools()("dump-log", *words).out == ran.out
    assert ran.code == 0, ran.complaint
    assert f'"group":"{group.name}"' in ran.out
    assert '"groupInstanceId":"one"' in ran.out and '"protocolType":"consumer"' in ran.out
