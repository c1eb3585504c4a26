"""Group members with third-party clients. Each member reads a topic in its own thread or process,
from its start to `close`. Tests check its assignment and the records that it has read.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, Protocol

import confluent_kafka
import kafka
from kafka.coordinator.assignors.abstract import AbstractPartitionAssignor
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor

from integration_tests import maven
from integration_tests.kafka_python import polled
from integration_tests.process import ChildProcess
from unit_tests.patience import PATIENCE_S

HEARTBEAT_MS: Final = 200
SESSION_MS: Final = 30_000
Reads = Counter[tuple[int, int]]
"""(partition, offset) -> the number of reads of the record."""


class OutsideMember(Protocol):
    """The interface of a member that reads `topic` in the group of the same name."""

    def assigned(self) -> list[int]:
        """Return the currently assigned partitions, sorted."""

    def read(self) -> Reads: ...

    def close(self) -> None:
        """Commit and leave the group. Idempotent."""


class _Threaded:
    """A client that a thread polls. Subclasses define `_open` and `_poll`."""

    def __init__(self) -> None:
        self._reads: Reads = Counter()
        self._assigned: list[int] = []
        self._stop = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as error:
            self._failure = error

    def _work(self) -> None:
        """Open the client, poll until `_stop`, and close the client."""

    def assigned(self) -> list[int]:
        if self._failure is not None:
            raise self._failure
        return sorted(self._assigned)

    def read(self) -> Reads:
        return Counter(self._reads)

    def close(self) -> None:
        self._stop.set()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "the member does not end"
        if self._failure is not None:
            raise self._failure


class ConfluentMember(_Threaded):
    """A member of confluent-kafka, which uses librdkafka."""

    def __init__(self, bootstrap: str, topic: str, strategy: str, instance_id: str = "") -> None:
        self._topic = topic
        self._options: dict[str, Any] = {
            "bootstrap.servers": bootstrap,
            "group.id": topic,
            "auto.offset.reset": "earliest",
            "partition.assignment.strategy": strategy,
            "heartbeat.interval.ms": HEARTBEAT_MS,
            "session.timeout.ms": SESSION_MS,
        }
        if instance_id:
            self._options["group.instance.id"] = instance_id
        super().__init__()

    def _work(self) -> None:
        consumer = confluent_kafka.Consumer(self._options)
        consumer.subscribe([self._topic])
        try:
            while not self._stop.is_set():
                for message in consumer.consume(100, 0.1):
                    offset = message.offset()
                    if message.error() is None and offset is not None:
                        self._reads[message.partition() or 0, offset] += 1
                self._assigned = [item.partition for item in consumer.assignment()]
        finally:
            consumer.close()


class KafkaPythonMember(_Threaded):
    """A member of kafka-python."""

    ASSIGNORS: Final[Mapping[str, type[AbstractPartitionAssignor]]] = {
        "range": RangePartitionAssignor,
        "roundrobin": RoundRobinPartitionAssignor,
        "cooperative-sticky": CooperativeStickyAssignor,
    }

    def __init__(self, bootstrap: str, topic: str, strategy: str) -> None:
        self._topic = topic
        self._options: dict[str, Any] = {
            "bootstrap_servers": bootstrap,
            "group_id": topic,
            "auto_offset_reset": "earliest",
            "partition_assignment_strategy": [self.ASSIGNORS[strategy]],
            "heartbeat_interval_ms": HEARTBEAT_MS,
            "session_timeout_ms": SESSION_MS,
        }
        super().__init__()

    def _work(self) -> None:
        consumer = kafka.KafkaConsumer(**self._options)
        consumer.subscribe([self._topic], listener=_Assigned(self._assigned))
        try:
            while not self._stop.is_set():
                for key, records in polled(consumer).items():
                    self._reads.update((key.partition, record.offset) for record in records)
        finally:
            consumer.close()


class _Assigned(kafka.ConsumerRebalanceListener):  # type: ignore[misc]
    """A rebalance listener that stores kafka-python's assignment in `mine`, also during a poll."""

    def __init__(self, mine: list[int]) -> None:
        self._mine = mine

    def on_partitions_assigned(self, assigned: Iterable[Any]) -> None:
        self._mine += [item.partition for item in assigned if item.partition not in self._mine]

    def on_partitions_revoked(self, revoked: Iterable[Any]) -> None:
        gone = {item.partition for item in revoked}
        self._mine[:] = [number for number in self._mine if number not in gone]

    on_partitions_lost = on_partitions_revoked


class JavaMember:
    """A member of the Java client: Apache's VerifiableConsumer, which prints all events in JSON."""

    CLASSES: Final[Mapping[str, str]] = {
        "range": "RangeAssignor",
        "roundrobin": "RoundRobinAssignor",
        "sticky": "StickyAssignor",
        "cooperative-sticky": "CooperativeStickyAssignor",
    }

    def __init__(self, bootstrap: str, topic: str, strategy: str, folder: Path) -> None:
        config = folder / "java-member.properties"
        config.write_text(f"heartbeat.interval.ms={HEARTBEAT_MS}\n")
        self._closed = False
        self._process = ChildProcess(
            [
                maven.java(),
                "-Xmx128m",
                "-XX:TieredStopAtLevel=1",
                "-cp",
                maven.class_path(),
                "org.apache.kafka.tools.VerifiableConsumer",
                *("--bootstrap-server", bootstrap, "--topic", topic, "--group-id", topic),
                *("--session-timeout", str(SESSION_MS), "--consumer.config", str(config)),
                "--assignment-strategy",
                f"org.apache.kafka.clients.consumer.{self.CLASSES[strategy]}",
            ]
        )

    def _events(self) -> list[dict[str, Any]]:
        lines = self._process.output.splitlines()
        return [json.loads(line) for line in lines if line.startswith('{"timestamp"')]

    def assigned(self) -> list[int]:
        mine: set[int] = set()
        for event in self._events():
            numbers = {row["partition"] for row in event.get("partitions", ())}
            if event["name"] == "partitions_assigned":
                mine |= numbers
            elif event["name"] == "partitions_revoked":
                mine -= numbers
        return sorted(mine)

    def read(self) -> Reads:
        return Counter(
            (row["partition"], offset)
            for event in self._events()
            if event["name"] == "records_consumed"
            for row in event["partitions"]
            for offset in range(row["minOffset"], row["maxOffset"] + 1)
        )

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._process.stop()
            self._process.close()


MemberMaker = Callable[[str, str, str, Path], OutsideMember]
MAKERS: Final[Mapping[str, MemberMaker]] = {
    "confluent-kafka": lambda bootstrap, topic, strategy, _: ConfluentMember(
        bootstrap, topic, strategy
    ),
    "kafka-python": lambda bootstrap, topic, strategy, _: KafkaPythonMember(
        bootstrap, topic, strategy
    ),
    "java": JavaMember,
}
