"""A Kafka Streams application of the tests: its instances (`java/WordCount.java`), its input, made
from the source files of the Python installation, and the counts that it has to print.
"""

from __future__ import annotations

import re
import shutil
import sysconfig
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import confluent_kafka

from integration_tests import maven
from integration_tests.process import ChildProcess
from unit_tests.patience import PATIENCE_S, WORK_S

APPLICATION: Final = "wordcount"
WORDS: Final = f"{APPLICATION}-words-repartition"
"""The internal topic with one record a word."""
CHANGELOGS: Final = {
    "counts": f"{APPLICATION}-word-counts-changelog",
    "label-counts": f"{APPLICATION}-label-counts-changelog",
}
"""Output topic -> the changelog topic of the state store from which it is written."""
CACHE_BYTES: Final = 10 * 1024**2
"""The default of Kafka Streams."""
_SOURCE: Final = Path(__file__).parent / "java" / "WordCount.java"
_WORD: Final = re.compile(rb"[a-z0-9_]+")
_LABELLED: Final = 500
_LABELS: Final = 7


class Instance:
    """One running instance of the application, a Java process. With `cache_bytes=0` each word that
    is counted makes a record in the changelog."""

    def __init__(
        self, bootstrap: str, state: Path, partitions: int, *, cache_bytes: int = CACHE_BYTES
    ) -> None:
        if shutil.which("javac") is None:
            raise maven.MavenUnavailable("no Java compiler (install openjdk-17-jdk-headless)")
        self.process = ChildProcess(
            [
                maven.java(),
                "-Xmx512m",
                "-Dorg.slf4j.simpleLogger.defaultLogLevel=error",
                *("-cp", maven.class_path(maven.STREAMS), str(_SOURCE)),
                *(bootstrap, APPLICATION, str(state), str(partitions), str(cache_bytes)),
            ],
            interactive=True,
        )

    def wait_until_running(self) -> None:
        self.process.wait_for_line("^STATE RUNNING")

    def stop(self) -> None:
        """Let the instance commit and leave."""
        line = self.process.ask("", "^CLOSED")
        assert line == "CLOSED true", self.process.output
        assert self.process.wait() == 0, self.process.output


@dataclass
class Text:
    """The input of the application, and the final counts that its output must have."""

    lines: list[bytes] = field(default_factory=list)
    words: Counter[bytes] = field(default_factory=Counter)

    @classmethod
    def of_size(cls, size: int) -> Text:
        """Return lines of source code with `size` bytes or a little more. The order of the lines is
        always the same."""
        made, total = cls(), 0
        for line in _source_lines():
            made.lines.append(line)
            made.words.update(_WORD.findall(line.lower()))
            total += len(line)
            if total >= size:
                break
        return made

    @property
    def labels(self) -> dict[bytes, bytes]:
        """The rows of the joined table: a label for each of the most frequent words."""
        frequent = self.words.most_common(_LABELLED)
        return {word: b"label %d" % (n % _LABELS) for n, (word, _) in enumerate(frequent)}

    @property
    def expected(self) -> dict[str, Counter[bytes]]:
        """The expected last count of each key, by output topic."""
        by_label: Counter[bytes] = Counter()
        for word, label in self.labels.items():
            by_label[label] += self.words[word]
        return {"counts": self.words, "label-counts": by_label}

    def produce_labels(self, bootstrap: str) -> None:
        """Write the joined table to its topic. The timestamps of these records are below those of
        the text, so Streams reads them first."""
        producer = _producer(bootstrap)
        for word, label in self.labels.items():
            producer.produce("labels", label, key=word, timestamp=1)
        assert producer.flush(PATIENCE_S) == 0

    def produce(self, bootstrap: str) -> None:
        """Write the text, one record a line."""
        producer = _producer(bootstrap)
        for line in self.lines:
            while True:
                try:
                    producer.produce("text", line)
                    break
                except BufferError:
                    producer.poll(0.1)
        assert producer.flush(WORK_S) == 0


def _source_lines() -> Iterator[bytes]:
    """Yield the lines of the standard library's sources again and again, without empty lines. All
    characters other than ASCII are removed, because Java and Python might split them into different
    words."""
    folder = Path(sysconfig.get_path("stdlib"))
    files = sorted(path for path in folder.rglob("*.py") if "site-packages" not in path.parts)
    while True:
        for path in files:
            text = path.read_bytes().decode("ascii", "ignore").encode()
            yield from (line for line in text.splitlines() if line.strip())


def _producer(bootstrap: str) -> confluent_kafka.Producer:
    # Java's partitioner: a label must be in the same partition number as its word.
    return confluent_kafka.Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "linger.ms": 20,
            "partitioner": "murmur2_random",
        }
    )


class Counts:
    """The counts of one topic as a read_committed consumer of librdkafka receives them."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        self.last: dict[bytes, int] = {}
        self.records = 0
        self.ended: set[int] = set()
        self._topic = topic
        self._consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": f"reader of {topic}",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
            }
        )
        first = confluent_kafka.OFFSET_BEGINNING
        self._consumer.assign(
            [confluent_kafka.TopicPartition(topic, n, first) for n in range(partitions)]
        )

    def poll(self) -> None:
        """Read all records that are available now. The counts of a word must grow from record to
        record: a count that is not larger than the previous count belongs to a transaction that was
        aborted or written twice."""
        for message in self._consumer.consume(5000, 0.2):
            error, partition = message.error(), message.partition()
            if error is not None:
                if error.code() == confluent_kafka.KafkaError._PARTITION_EOF:
                    assert partition is not None
                    self.ended.add(partition)
                continue
            key, value = message.key(), message.value()
            assert isinstance(key, bytes) and isinstance(value, bytes)
            count = int.from_bytes(value, "big")
            before = self.last.get(key, 0)
            assert count > before, f"{self._topic}: {key!r} has {count} after {before}"
            self.last[key] = count
            self.records += 1

    def wait_for(self, expected: Mapping[bytes, int], seconds: float) -> None:
        """Read until all counts equal the expected counts.

        Raises AssertionError after `seconds`, with some of the counts that differ.
        """
        deadline = time.monotonic() + seconds
        while self.last != expected:
            assert time.monotonic() < deadline, self._difference(expected)
            self.poll()

    def _difference(self, expected: Mapping[bytes, int]) -> str:
        keys = sorted(self.last.keys() | expected.keys())
        counts = ((key, self.last.get(key, 0), expected.get(key, 0)) for key in keys)
        wrong = [row for row in counts if row[1] != row[2]]
        return f"{self._topic}: {len(wrong)} counts differ (key, found, expected): {wrong[:5]}"

    def close(self) -> None:
        self._consumer.close()


def read_all(bootstrap: str, topic: str, partitions: int) -> dict[bytes, int]:
    """Return the last count of each key of a topic, read to its end."""
    return _read_to_end(bootstrap, topic, partitions).last


def count_records(bootstrap: str, topic: str, partitions: int) -> int:
    """Return how many records a topic has, read to its end."""
    return _read_to_end(bootstrap, topic, partitions).records


def _read_to_end(bootstrap: str, topic: str, partitions: int) -> Counts:
    with closing(Counts(bootstrap, topic, partitions)) as counts:
        deadline = time.monotonic() + PATIENCE_S
        while counts.ended != set(range(partitions)):
            assert time.monotonic() < deadline, f"{topic}: read to the end of {counts.ended} only"
            counts.poll()
        return counts
