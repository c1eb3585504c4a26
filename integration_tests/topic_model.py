"""A model of a topic: its expected content, derived from the acknowledgements of its only producer,
to compare reads with.
"""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Iterator, Mapping
from typing import Final

import confluent_kafka

from integration_tests import spark_topics
from integration_tests.samples import CODECS, FIRST_TIMESTAMP_MS, Headers
from integration_tests.spark_topics import KafkaRow
from unit_tests.patience import PATIENCE_S

BURST: Final = 10
_PAUSE_S: Final = 0.02
_HEADERS: Final[tuple[Headers, ...]] = (
    (),
    (("a", b"1"), ("b", None)),
    (("имя-☃", b"\x00\xff"), ("empty", b"")),
)

Cut = Mapping[int, tuple[int, int]]
"""Partition -> (start offset, end offset)."""


class TopicModel:
    """A topic and its acknowledged records, by partition and offset. There are few keys, so that
    tables overwrite rows; `dice` draws everything else. Not thread-safe, except `writing`.
    """

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        partitions: int,
        dice: random.Random,
        *,
        replicas: int = 1,
        null_keys: bool = True,
    ) -> None:
        self.topic = topic
        self.partitions = partitions
        self._bootstrap = bootstrap
        self._dice = dice
        self._rows: dict[int, dict[int, KafkaRow]] = {p: {} for p in range(partitions)}
        self._starts = dict.fromkeys(range(partitions), 0)
        self._made = 0
        self._null_keys = null_keys
        self._errors: list[object] = []
        spark_topics.create(
            bootstrap, topic, partitions, replicas=replicas, configs={"retention.ms": "-1"}
        )

    def write(self, count: int) -> None:
        """Write random records in a random codec. Return when all are acknowledged."""
        producer = self._producer()
        for _ in range(count):
            self._send(producer, self._dice)
        self._flush(producer)

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Write bursts of records while the block runs. Wait at the end until all are
        acknowledged.
        """
        ended = threading.Event()
        thread = threading.Thread(target=self._write_until, args=(ended,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
        assert not self._errors, self._errors[:3]

    def _write_until(self, ended: threading.Event) -> None:
        producer, dice = self._producer(), random.Random(self._dice.random())
        while not ended.wait(_PAUSE_S):
            for _ in range(BURST):
                self._send(producer, dice)
        self._flush(producer)

    def delete_records(self) -> None:
        """Delete some or all records at the beginning of a random partition."""
        partition = self._dice.randrange(self.partitions)
        end = max(self._rows[partition], default=-1) + 1
        before = self._dice.randint(self._starts[partition], end)
        spark_topics.delete_records(self._bootstrap, self.topic, {partition: before})
        self._starts[partition] = before

    def grow(self) -> None:
        """Add a partition."""
        spark_topics.grow(self._bootstrap, self.topic, self.partitions + 1)
        self._rows[self.partitions] = {}
        self._starts[self.partitions] = 0
        self.partitions += 1

    def starts(self) -> dict[int, int]:
        return dict(self._starts)

    def ends(self) -> dict[int, int]:
        return {p: max(rows, default=self._starts[p] - 1) + 1 for p, rows in self._rows.items()}

    def rows(self, cut: Cut) -> list[KafkaRow]:
        """Return the expected rows of the ranges, by partition and offset. All offsets must be
        known.
        """
        return [
            self._rows[partition][offset]
            for partition, (start, end) in sorted(cut.items())
            for offset in range(start, end)
        ]

    def _producer(self) -> confluent_kafka.Producer:
        return confluent_kafka.Producer(
            {
                "bootstrap.servers": self._bootstrap,
                "enable.idempotence": True,
                "acks": "all",
                "compression.type": self._dice.choice(CODECS),
                "linger.ms": self._dice.choice((0, 5, 50)),
                "batch.size": 16_384,
                "batch.num.messages": self._dice.choice((1, 20, 10_000)),
                "topic.metadata.refresh.interval.ms": 1_000,
                "retry.backoff.ms": 50,
                "log_level": 0,
            }
        )

    def _flush(self, producer: confluent_kafka.Producer) -> None:
        unsent = producer.flush(PATIENCE_S)
        assert not unsent and not self._errors, f"{unsent} unsent, errors {self._errors[:3]}"

    def _send(self, producer: confluent_kafka.Producer, dice: random.Random) -> None:
        number = self._made
        self._made += 1
        key_number = dice.randrange(60)
        partition = key_number % self.partitions
        key = None if key_number == 0 and self._null_keys else b"key-%d" % key_number
        value = (
            None if dice.random() < 0.05 else dice.randbytes(dice.randrange(60)) + b"%d" % number
        )
        headers, timestamp = dice.choice(_HEADERS), FIRST_TIMESTAMP_MS + number

        def acknowledged(error: object, message: confluent_kafka.Message) -> None:
            offset = message.offset()
            if error is not None or offset is None:
                self._errors.append(error)
                return
            self._rows[partition][offset] = KafkaRow(
                self.topic, partition, offset, key, value, timestamp, 0, headers or None
            )

        producer.produce(
            self.topic,
            value,
            key,
            partition,
            on_delivery=acknowledged,
            timestamp=timestamp,
            headers=list(headers),
        )
        producer.poll(0)
