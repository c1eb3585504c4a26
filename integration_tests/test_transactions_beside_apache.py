"""Tests with two data directories and their ZooKeeper, which Apache Kafka's brokers and pybroker's
use in turn. At each change from one kind of broker to the other, one transaction is open and one is
prepared. The brokers of the other kind complete both. The producer of the open transaction keeps
running, so its sequence numbers continue.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from integration_tests.apache import ApacheKafka, ApacheZooKeeper
from integration_tests.broker import Broker, PybrokerProcess
from integration_tests.stored import partition_folder
from integration_tests.test_transactions import finish, read
from integration_tests.wire_client import Connection
from pybroker.wire.messages.transaction_admin import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
)
from unit_tests.patience import PATIENCE_S, wait_until

pytestmark = pytest.mark.ours

TOPIC: Final = "orders"
PARTITIONS: Final = 2
"""Partition n has its only replica on broker n. Broker 0 coordinates all groups and producers."""
OURS: Final = {"offsets.storage": "kafka"}
APACHES: Final = {
    "controlled.shutdown.enable": "false",
    "transaction.state.log.num.partitions": "1",
}


@dataclass
class History:
    """The values of each partition in order, and those whose transactions commit."""

    order: dict[int, list[bytes]] = field(default_factory=lambda: {n: [] for n in range(2)})
    committed: set[bytes] = field(default_factory=set)

    @property
    def expected(self) -> dict[int, list[bytes]]:
        """The expected records of a `read_committed` consumer after the end of all transactions."""
        return {n: [v for v in some if v in self.committed] for n, some in self.order.items()}


class Stage:
    """The brokers of both kinds on the same directories and ports."""

    def __init__(self, folder: Path, zookeeper: str) -> None:
        self.apaches: list[ApacheKafka] = []
        self.ours: list[PybrokerProcess] = []
        for number in range(PARTITIONS):
            ids = {"broker.id": str(number)}
            home = folder / str(number)
            home.mkdir()
            apache = ApacheKafka(home, zookeeper=zookeeper, overrides=APACHES | ids, heap_mib=256)
            own = PybrokerProcess(apache.data, zookeeper=zookeeper, overrides=OURS | ids)
            own.port = apache.port
            self.apaches.append(apache)
            self.ours.append(own)
        self.bootstrap = ",".join(each.bootstrap for each in self.apaches)
        self.history = History()

    def close(self) -> None:
        brokers: list[Broker] = [*self.apaches, *self.ours]
        for broker in brokers:
            broker.close()

    def producer(self, name: str) -> confluent_kafka.Producer:
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "transactional.id": name,
                "transaction.timeout.ms": 900_000,
                "log_level": 0,
            }
        )
        producer.init_transactions(PATIENCE_S)
        return producer

    def put(self, producer: confluent_kafka.Producer, value: str, *, commits: bool) -> None:
        """Write three records to each partition. `commits` says whether the caller later commits
        or aborts the transaction."""
        for number in range(PARTITIONS):
            for each in range(3):
                data = f"{value} {each}".encode()
                producer.produce(TOPIC, data, partition=number)
                self.history.order[number].append(data)
                if commits:
                    self.history.committed.add(data)
            assert producer.flush(PATIENCE_S) == 0

    def write_ended(self, tag: str) -> None:
        """Write transactions that fill several segments. Every second transaction is aborted."""
        producer = self.producer("ended")
        for number in range(40):
            commits = number % 2 == 0
            producer.begin_transaction()
            self.put(producer, f"{tag} {number}", commits=commits)
            end = producer.commit_transaction if commits else producer.abort_transaction
            end(PATIENCE_S)

    def begin(self, name: str, offset: int) -> confluent_kafka.Producer:
        """Begin a transaction that is going to commit, with an offset of the group of the same
        name."""
        producer = self.producer(name)
        producer.begin_transaction()
        self.put(producer, name, commits=True)
        with closing(self.consumer(name)) as consumer:
            producer.send_offsets_to_transaction(
                [confluent_kafka.TopicPartition(TOPIC, 0, offset)],
                consumer.consumer_group_metadata(),
                PATIENCE_S,
            )
        return producer

    def consumer(self, group: str) -> confluent_kafka.Consumer:
        return confluent_kafka.Consumer(
            {"bootstrap.servers": self.bootstrap, "group.id": group, "log_level": 0}
        )

    def committed(self, group: str) -> int | None:
        with closing(self.consumer(group)) as consumer:
            (place,) = consumer.committed(
                [confluent_kafka.TopicPartition(TOPIC, 0)], timeout=PATIENCE_S
            )
            return place.offset

    def wait_for_state(self, name: str, state: str) -> None:
        """Wait until the coordinator has stored this state of the transactional id."""
        found: list[str] = []

        def is_there() -> bool:
            with Connection(self.apaches[0].bootstrap) as connection:
                request = DescribeTransactionsRequest(transactional_ids=[name])
                answer = connection.ask(0, request, DescribeTransactionsResponse)
            found.append(answer.transaction_states[0].transaction_state)
            return found[-1] == state

        wait_until(is_there, what=f"{name} is in {state}")


def open_and_prepare(stage: Stage, brokers: Sequence[Broker], tag: str) -> confluent_kafka.Producer:
    """Leave a transaction open and another one prepared, because the leader of partition 1 is
    stopped before its marker. Stop both brokers. Return the producer of the open transaction."""
    stage.write_ended(tag)
    producer = stage.begin(f"open {tag}", 7)
    prepared = stage.begin(f"prepared {tag}", 8)
    brokers[1].stop()
    prepared.commit_transaction(PATIENCE_S)
    stage.wait_for_state(f"prepared {tag}", "PrepareCommit")
    stage.wait_for_state(f"open {tag}", "Ongoing")
    brokers[0].stop()
    return producer


def complete(stage: Stage, producer: confluent_kafka.Producer, tag: str) -> None:
    """Let the running brokers complete both transactions."""
    stage.wait_for_state(f"prepared {tag}", "CompleteCommit")
    stage.wait_for_state(f"open {tag}", "Ongoing")
    stage.put(producer, f"open {tag}, later", commits=True)
    producer.commit_transaction(PATIENCE_S)
    stage.wait_for_state(f"open {tag}", "CompleteCommit")
    wait_until(lambda: stage.committed(f"open {tag}") == 7, what="the open one's offset")
    wait_until(lambda: stage.committed(f"prepared {tag}") == 8, what="the prepared one's offset")


def files(stage: Stage, suffix: str) -> Mapping[Path, bytes]:
    """Return the files of partition 0 with some content."""
    folder = partition_folder(stage.apaches[0].data, TOPIC)
    found = {path: path.read_bytes() for path in folder.glob(f"*{suffix}")}
    return {path: content for path, content in found.items() if content}


@pytest.fixture
def stage(jars: str, tmp_path: Path) -> Iterator[Stage]:
    assert jars
    with ExitStack() as stack:
        zookeeper = ApacheZooKeeper(tmp_path / "zookeeper")
        stack.callback(zookeeper.close)
        zookeeper.start()
        made = stack.enter_context(closing(Stage(tmp_path, zookeeper.connect)))
        made.apaches[0].start()
        made.producer("first")  # so that broker 0 has all internal partitions
        made.committed("first")
        made.apaches[1].start()
        topic = NewTopic(
            TOPIC, PARTITIONS, replica_assignment=[[0], [1]], config={"segment.bytes": "4096"}
        )
        admin = AdminClient({"bootstrap.servers": made.bootstrap})
        admin.create_topics([topic])[TOPIC].result(PATIENCE_S)
        yield made


def test_open_and_prepared_transactions_move_between_brokers(stage: Stage) -> None:
    producer = open_and_prepare(stage, stage.apaches, "of Apache")
    indexes = files(stage, ".txnindex")
    assert len(indexes) > 1 and files(stage, ".snapshot")

    for own in stage.ours:
        own.start()
    complete(stage, producer, "of Apache")
    producer = open_and_prepare(stage, stage.ours, "of ours")
    later = files(stage, ".txnindex")
    assert len(later) > len(indexes) and files(stage, ".snapshot")
    assert {path: later[path][: len(content)] for path, content in indexes.items()} == indexes

    for apache in stage.apaches:
        apache.start()
    complete(stage, producer, "of ours")
    finish(stage.bootstrap, TOPIC, PARTITIONS)
    assert read(stage.bootstrap, TOPIC, PARTITIONS) == stage.history.expected
    uncommitted = read(stage.bootstrap, TOPIC, PARTITIONS, "read_uncommitted")
    assert uncommitted == stage.history.order
    for apache in stage.apaches:
        assert not [line for line in apache.log_text.splitlines() if "orrupt" in line]
