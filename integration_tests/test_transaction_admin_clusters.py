"""Tests with a cluster of three Apache brokers and one of three pybroker brokers, which have the
same topics and transactions. Apache's kafka-transactions prints the same on both clusters, and so
does `transactions`. Both tools print the same on each cluster."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from typing import Final

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from integration_tests.apache import ApacheKafka, ApacheZooKeeper
from integration_tests.apache_tools import ApacheTools, OurTools, Ran, Tools, assert_same
from integration_tests.broker import STARTED, PybrokerProcess
from integration_tests.test_transaction_admin import ORDER, REASONS
from integration_tests.transaction_requests import (
    Producer,
    add,
    end,
    settled,
    started,
    state_of,
    write,
)
from integration_tests.transactions import UNVERIFIED
from integration_tests.wire_client import Connection, metadata
from pybroker.coordinator.runtime.partitioning import partition_of
from pybroker.errors import ErrorCode
from pybroker.wire.messages.groups import FindCoordinatorRequest, FindCoordinatorResponse
from unit_tests.patience import PATIENCE_S, wait_until

BROKERS: Final = 3
ASSIGNMENT: Final = [[0, 1, 2], [1, 2, 0], [2, 0, 1]]
"""Broker n leads partition n of each topic."""
SHARED: Final = "shared"
"""The topic of the transactions with a coordinator."""
HUNG: Final = ("hung-a", "hung-b")
"""The topics with transactions that no coordinator knows: Apache's tool aborts those of the first
topic, and ours those of the second."""
FIRST_HUNG: Final = 70_001
INTERNAL: Final = {"cleanup.policy": "compact", "min.insync.replicas": "2"}
TOPICS: Final[Mapping[str, Mapping[str, str]]] = {
    "__consumer_offsets": INTERNAL,
    "__transaction_state": INTERNAL,
    SHARED: {},
    **{name: {} for name in HUNG},
}
NAMES: Final = [f"{kind}-{number}" for kind in ("idle", "orders") for number in range(10)]
"""Group ids and transactional ids. Java's hashes of those that begin with "idle" are negative."""
Tool = ApacheTools | OurTools
OVERRIDES: Final = {
    **UNVERIFIED,
    "auto.create.topics.enable": "false",
    "offsets.topic.num.partitions": str(BROKERS),
    "offsets.topic.replication.factor": str(BROKERS),
    "transaction.state.log.num.partitions": str(BROKERS),
    "transaction.state.log.replication.factor": str(BROKERS),
}
START: Final = r"\d{13} *"
"""A time in ms since 1970."""
DURATION: Final = r"(?<=#\t)\d+ *"
"""The column after a masked START."""
MINUTES: Final = r"\d+ *\t$"


def names_of(state: str) -> list[str]:
    """Return three transactional ids. Broker n coordinates the nth."""
    found: dict[int, str] = {}
    for number in range(100):
        name = f"{state}-{number}"
        found.setdefault(partition_of(name, BROKERS), name)
    return [found[number] for number in range(BROKERS)]


class Side:
    """One of the two clusters. `name` is shown when a test fails."""

    def __init__(self, name: str, brokers: Sequence[ApacheKafka | PybrokerProcess]) -> None:
        self.name = name
        self.brokers = brokers
        self.bootstrap = ",".join(each.bootstrap for each in brokers)

    def prepare(self) -> None:
        """Wait until the launched brokers serve. Create the topics and the transactions."""
        for broker in self.brokers:
            broker.process.wait_for_line(STARTED)
        with ExitStack() as stack:
            connections = [
                stack.enter_context(Connection(broker.bootstrap)) for broker in self.brokers
            ]
            wait_until(
                lambda: all(len(metadata(each).brokers) == BROKERS for each in connections),
                what=f"{self.name}: every broker knows all brokers",
            )
            self._create_topics()
            wait_until(
                lambda: all(are_led(each) for each in connections),
                what=f"{self.name}: every broker knows the leaders",
            )
            open_transactions(connections)

    def _create_topics(self) -> None:
        topics = [
            NewTopic(name, BROKERS, replica_assignment=ASSIGNMENT, config=dict(options))
            for name, options in TOPICS.items()
        ]
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        for future in admin.create_topics(topics).values():
            future.result(PATIENCE_S)


def are_led(connection: Connection) -> bool:
    """Return whether this broker knows broker n as the leader of partition n of each topic."""
    found = [
        {each.partition_index: each.leader_id for each in topic.partitions}
        for topic in metadata(connection, *TOPICS).topics
    ]
    return found == [{number: number for number in range(BROKERS)}] * len(TOPICS)


def open_transactions(connections: Sequence[Connection]) -> None:
    """Leave at each coordinator an idle producer, an open transaction and a committed one, and at
    each leader a transaction without a coordinator in each topic of HUNG. `connections` has one
    connection to each broker."""
    for number, coordinator in enumerate(connections):
        started(coordinator, names_of("idle")[number])
        for state in ("open", "ended"):
            producer = started(coordinator, names_of(state)[number])
            assert add(coordinator, producer, SHARED, *range(BROKERS)) == ErrorCode.NONE
            for partition, leader in enumerate(connections):
                code = write(leader, producer, SHARED, b"value", partition=partition)
                assert code == ErrorCode.NONE
        assert end(coordinator, producer, commit=True) == ErrorCode.NONE
        wait_until(
            partial(is_complete, coordinator, producer),
            what="the markers are written",
        )
    for (number, leader), topic in itertools.product(enumerate(connections), HUNG):
        producer = Producer("unknown", FIRST_HUNG + number, 0)
        assert write(leader, producer, topic, b"1", b"2", partition=number) == ErrorCode.NONE


def is_complete(connection: Connection, producer: Producer) -> bool:
    return state_of(connection, producer) == "CompleteCommit"


@dataclass(frozen=True)
class Both:
    """Both clusters, and both tools."""

    sides: Sequence[Side]
    tools: Tools

    def same(
        self,
        *words: str,
        says: str = "",
        allow: Sequence[str] = (),
        mask: Sequence[str] = (),
    ) -> Ran:
        """Call both tools with the same arguments on both clusters, and compare the four results.
        `allow` has the allowed differences between the tools. Return a result of our tool."""
        ours = [self._run(self.tools.ours, side, words) for side in self.sides]
        theirs = [self._run(self.tools.apache, side, words) for side in self.sides]
        assert_same(*theirs, says=says, allow=allow, mask=mask)
        assert_same(*ours, says=says, mask=mask)
        for their, our in zip(theirs, ours, strict=True):
            assert_same(their, our, says=says, allow=allow, mask=mask)
        return ours[0]

    def same_of_one(self, tool: Tool, *words: str) -> Ran:
        """Call one tool on both clusters, and compare the two results."""
        first, second = (self._run(tool, side, words) for side in self.sides)
        assert_same(first, second)
        return first

    def _run(self, tool: Tool, side: Side, words: Sequence[str]) -> Ran:
        return tool("transactions", "--bootstrap-server", side.bootstrap, *words)


@pytest.fixture(scope="module")
def both(jars: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    assert jars
    folder = tmp_path_factory.mktemp("clusters")
    with ExitStack() as stack:
        zookeeper = stack.enter_context(closing(ApacheZooKeeper(folder / "zookeeper")))
        zookeeper.start()
        apaches: list[ApacheKafka] = []
        ours: list[PybrokerProcess] = []
        for number in range(BROKERS):
            options = {**OVERRIDES, "broker.id": str(number)}
            apache = ApacheKafka(
                folder / f"apache-{number}",
                zookeeper=f"{zookeeper.connect}/apache",
                overrides=options,
                heap_mib=256,
                java_options=["-XX:TieredStopAtLevel=1"],
            )
            own = PybrokerProcess(
                folder / f"own-{number}",
                zookeeper=f"{zookeeper.connect}/own",
                overrides=options,
            )
            apaches.append(stack.enter_context(closing(apache)))
            ours.append(stack.enter_context(closing(own)))
            apache.launch()
            own.launch()
        sides = [Side("Apache Kafka", apaches), Side("pybroker", ours)]
        for side in sides:
            side.prepare()
        yield Both(sides, stack.enter_context(Tools()))


def coordinators(side: Side, key_type: int) -> list[int]:
    """Return the brokers that coordinate NAMES: groups (`key_type` 0) or transactional ids (1)."""
    with Connection(side.bootstrap.partition(",")[0]) as connection:
        return [
            settled(
                partial(
                    connection.ask,
                    3,
                    FindCoordinatorRequest(key=name, key_type=key_type),
                    FindCoordinatorResponse,
                ),
                lambda answer: answer.error_code,
            ).node_id
            for name in NAMES
        ]


@pytest.mark.parametrize("key_type", [0, 1])
def test_each_name_has_the_same_coordinator(both: Both, key_type: int) -> None:
    theirs, ours = (coordinators(side, key_type) for side in both.sides)
    assert ours == theirs
    assert set(ours) == set(range(BROKERS))


def test_transactions_of_all_coordinators_are_listed(both: Both) -> None:
    listed = both.same("list", allow=[ORDER])
    rows = {tuple(line.split()[:2]): line.split()[3] for line in listed.lines[1:]}
    states = {"idle": "Empty", "open": "Ongoing", "ended": "CompleteCommit"}
    assert rows == {
        (name, str(number)): shown
        for state, shown in states.items()
        for number, name in enumerate(names_of(state))
    }


@pytest.mark.parametrize("state", ["idle", "open", "ended"])
def test_transaction_of_each_coordinator_is_described(both: Both, state: str) -> None:
    partitions = r"shared-\d,shared-\d,shared-\d"
    for number, name in enumerate(names_of(state)):
        shown = both.same(
            "describe", "--transactional-id", name, mask=[START, DURATION, partitions]
        )
        assert shown.lines[1].split()[:2] == [str(number), name]


def test_unknown_transactional_id_is_not_described(both: Both) -> None:
    says = "Failed to describe transaction state of transactional-id `absent`: "
    both.same("describe", "--transactional-id", "absent", says=says, allow=[REASONS])


@pytest.mark.parametrize("broker", [None, 0, 1, 2])
def test_producers_are_described_by_the_leader_and_by_each_replica(
    both: Both, broker: int | None
) -> None:
    on_broker = [] if broker is None else ["--broker-id", str(broker)]
    for topic, number in itertools.product((SHARED, HUNG[0]), range(BROKERS)):
        where = ("--topic", topic, "--partition", str(number))
        shown = both.same("describe-producers", *where, *on_broker, allow=[ORDER], mask=[START])
        producers = [line.split()[0] for line in shown.lines[1:]]
        if topic == SHARED:
            assert len(producers) == 2 * BROKERS
        else:
            assert producers == [str(FIRST_HUNG + number)]


def test_hanging_transactions_of_all_leaders_are_found_and_aborted(both: Both) -> None:
    find = ("find-hanging", "--max-transaction-timeout", "0")
    for topic in HUNG:
        found = both.same(*find, "--topic", topic, allow=[ORDER], mask=[START, MINUTES])
        rows = [line.split()[:3] for line in found.lines[1:]]
        assert rows == [[topic, str(n), str(FIRST_HUNG + n)] for n in range(BROKERS)]
    for broker in range(BROKERS):
        on_broker = (*find, "--broker-id", str(broker))
        found = both.same(*on_broker, allow=[ORDER], mask=[START, MINUTES])
        assert len(found.lines) == 1 + len(HUNG) * BROKERS
    assert not [line for line in found.lines if line.startswith(SHARED)]
    for number in range(BROKERS):
        forms = (
            ["--start-offset", "0"],
            [
                *("--producer-id", str(FIRST_HUNG + number), "--producer-epoch", "0"),
                *("--coordinator-epoch", "-1"),
            ],
        )
        form = forms[number % 2]
        where = ("--partition", str(number), *form)
        theirs = both.same_of_one(both.tools.apache, "abort", "--topic", HUNG[0], *where)
        ours = both.same_of_one(both.tools.ours, "abort", "--topic", HUNG[1], *where)
        assert_same(theirs, ours)
        for topic in HUNG:
            where = ("--topic", topic, "--partition", str(number))
            shown = both.same("describe-producers", *where, mask=[START])
            assert shown.lines[1].split()[-1] == "None"
    for topic in HUNG:
        assert len(both.same(*find, "--topic", topic).lines) == 1
