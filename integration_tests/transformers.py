"""Programs that consume, transform and produce in transactions, each in a process of its own, and
the records that a `read_committed` consumer of kafka-python finds in their output.
"""

from __future__ import annotations

import itertools
import shutil
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import kafka

from integration_tests import maven
from integration_tests.confluent_transformer import ABORTED
from integration_tests.kafka_python import polled
from integration_tests.process import ChildProcess

PER_TRANSACTION: Final = 10
ABORT_ONE_IN: Final = 4
_JAVA: Final = Path(__file__).parent / "java" / "Transformer.java"
_ROOT: Final = Path(__file__).parent.parent


def java_command() -> list[str]:
    """Return the program that uses the Java client.

    Raises MavenUnavailable if there is no Java compiler, or if the client's jars are missing.
    """
    if shutil.which("javac") is None:
        raise maven.MavenUnavailable("no Java compiler (install openjdk-17-jdk-headless)")
    return [
        *(maven.java(), "-Xmx128m", "-XX:TieredStopAtLevel=1"),
        "-Dorg.slf4j.simpleLogger.defaultLogLevel=error",
        *("-cp", maven.class_path(), str(_JAVA)),
    ]


def confluent_command() -> list[str]:
    """Return the program that uses confluent-kafka."""
    return [sys.executable, "-m", "integration_tests.confluent_transformer"]


COMMANDS: Final = {"java": java_command, "confluent": confluent_command}
"""Client -> its program."""


class Transformer:
    """A program that copies the topic "input" to the topic "output-CLIENT" as a member of `group`.
    It runs in one process at a time; `revive` starts the next process after the end of a process.

    `name` is the transactional id. With `is_renamed`, each process has its own transactional id. So
    the open transaction of a dead process ends by its timeout, and not by the start of the next
    process.
    """

    def __init__(
        self, bootstrap: str, client: str, group: str, name: str, *, is_renamed: bool = False
    ) -> None:
        self.client = client
        self.group = group
        self.name = name
        self.output = output_topic(client)
        self._bootstrap = bootstrap
        self._command = COMMANDS[client]()
        self._is_renamed = is_renamed
        self._numbers = itertools.count()
        self._reports: list[str] = []
        self.process = self._start()

    def _start(self) -> ChildProcess:
        name = f"{self.name}-{next(self._numbers)}" if self._is_renamed else self.name
        places = [self._bootstrap, self.group, name, "input", self.output]
        numbers = [str(PER_TRANSACTION), str(ABORT_ONE_IN)]
        return ChildProcess([*self._command, *places, *numbers], folder=_ROOT)

    def revive(self) -> None:
        """Start the next process if the process has ended."""
        if not self.process.running:
            self._reports.append(self.process.output)
            self.process = self._start()

    def report(self) -> str:
        """Return the output of all processes."""
        reports = enumerate([*self._reports, self.process.output])
        return "\n".join(f"process {n} of {self.name}: {text}" for n, text in reports)

    def kill(self) -> None:
        """Send SIGKILL to the process."""
        self.process.kill9()

    def close(self) -> None:
        self.process.close()


def output_topic(client: str) -> str:
    """Return the topic that the programs of a client write."""
    return f"output-{client}"


def input_value(partition: int, number: int) -> bytes:
    """Return the value of one record of the input."""
    return b"%d:%d" % (partition, number)


class Output:
    """The committed records of the output topics. Each record that is read is compared with the
    input."""

    def __init__(self, bootstrap: str, topics: Sequence[str], partitions: int) -> None:
        self._counts = {(topic, number): 0 for topic in topics for number in range(partitions)}
        options: dict[str, Any] = {
            "isolation_level": "read_committed",
            "auto_offset_reset": "earliest",
        }
        self._consumer = kafka.KafkaConsumer(bootstrap_servers=bootstrap, **options)
        self._consumer.assign([kafka.TopicPartition(*key) for key in self._counts])

    @property
    def count(self) -> int:
        """The number of records that each partition has at least."""
        return min(self._counts.values())

    def poll(self) -> None:
        """Read all records that are available now.

        Raises AssertionError if a record is not the next one of the input: it is missing, comes
        twice, or belongs to an aborted transaction.
        """
        for place, rows in polled(self._consumer).items():
            key = (place.topic, place.partition)
            for row in rows:
                wanted = input_value(place.partition, self._counts[key])
                assert row.value == wanted, (key, row.offset, row.value, wanted)
                self._counts[key] += 1

    def close(self) -> None:
        self._consumer.close()


def aborted_records(bootstrap: str, topic: str, partitions: int) -> int:
    """Return how many records of aborted transactions a `read_uncommitted` consumer finds."""
    places = [kafka.TopicPartition(topic, number) for number in range(partitions)]
    with closing(kafka.KafkaConsumer(bootstrap_servers=bootstrap)) as consumer:
        consumer.assign(places)
        ends = consumer.end_offsets(places)
        consumer.seek_to_beginning(*places)
        found = 0
        while any(consumer.position(place) < ends[place] for place in places):
            for rows in polled(consumer).values():
                found += sum(row.value.startswith(ABORTED) for row in rows)
        return found
