"""The readers of a workload: consumers of all partitions from offset 0, and a client that requests
the log end offset of each partition repeatedly.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Final, Protocol

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from integration_tests.faults.settings import Settings
from pybroker.client import Consumer
from pybroker.client import TopicPartition as OurPartition
from pybroker.client.errors import ClientError, OffsetUnavailable
from pybroker.testing.history.ops import OpsLog
from unit_tests.patience import PATIENCE_MS

POLL_S: Final = 0.1
ASK_S: Final = 0.2
ASK_TIMEOUT_S: Final = 2.0
POSITION_LOST: Final = frozenset(
    {KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._LOG_TRUNCATION, KafkaError._AUTO_OFFSET_RESET}
)
"""The errors of librdkafka for a position that the log does not have any more."""


class ReaderClient(Protocol):
    """The interface of a reader that runs from its creation until `stop`."""

    delivered: int

    def stop(self) -> None: ...


class _Thread:
    """A thread that repeats one step of a client until it is stopped."""

    def __init__(self, name: str, settings: Settings, log: OpsLog) -> None:
        self.name = name
        self.settings = settings
        self.log = log
        self.delivered = 0
        self.stopping = threading.Event()
        self._thread = threading.Thread(target=self.run, name=name, daemon=True)
        self._thread.start()

    def run(self) -> None:
        raise AssertionError("a client has something to do")

    def stop(self) -> None:
        self.stopping.set()
        self._thread.join()

    def assigned(self) -> None:
        for partition in range(self.settings.partitions):
            self.log.write(self.name, "assign", "ok", tp=[self.settings.topic, partition], off=0)

    def polled(self, partition: int, records: list[list[object]], high_watermark: int) -> None:
        self.delivered += len(records)
        self.log.write(
            self.name, "poll", "ok",
            tp=[self.settings.topic, partition], recs=records, hw=high_watermark,
        )  # fmt: skip

    def failed(self, error: str, *, lost: bool) -> None:
        self.log.write(self.name, "poll", "fail" if lost else "info", err=error)


def confluent_consumer(bootstrap: str, client: str) -> confluent_kafka.Consumer:
    """Return librdkafka's consumer with settings that detect new leaders quickly."""
    return confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "client.id": client,
            "group.id": client,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",
            "fetch.wait.max.ms": 50,
            "fetch.error.backoff.ms": 50,
            "socket.timeout.ms": 4_000,
            "socket.connection.setup.timeout.ms": 2_000,
            "reconnect.backoff.ms": 50,
            "reconnect.backoff.max.ms": 500,
            "topic.metadata.refresh.interval.ms": 1_000,
            "log_level": 0,
        }
    )


class ConfluentReader(_Thread):
    """A reader with librdkafka's consumer, assigned all partitions from offset 0."""

    def run(self) -> None:
        consumer = confluent_consumer(self.settings.bootstrap, self.name)
        topic = self.settings.topic
        self.assigned()
        consumer.assign([TopicPartition(topic, p, 0) for p in range(self.settings.partitions)])
        while not self.stopping.is_set():
            by_partition: dict[int, list[list[object]]] = defaultdict(list)
            for message in consumer.consume(500, POLL_S):
                error = message.error()
                if error is not None:
                    self.failed(error.name(), lost=error.code() in POSITION_LOST)
                    continue
                partition, value = message.partition(), message.value()
                assert partition is not None and value is not None
                epoch = message.leader_epoch()
                by_partition[partition].append(
                    [
                        message.offset(),
                        bytes(value).decode(errors="replace"),
                        -1 if epoch is None else epoch,
                    ]
                )
            for partition, records in by_partition.items():
                _, high = consumer.get_watermark_offsets(
                    TopicPartition(topic, partition), cached=True
                )
                self.polled(partition, records, high)
        consumer.close()


class OurReader(_Thread):
    """A reader with `pybroker.client.Consumer`, assigned all partitions from offset 0. It reads by
    `getmany` and `poll_arrow` in turn."""

    def run(self) -> None:
        asyncio.run(self._read())

    async def _read(self) -> None:
        topic = self.settings.topic
        async with Consumer(
            self.settings.bootstrap,
            client_id=self.name,
            auto_offset_reset="none",
            fetch_max_wait_ms=50,
            request_timeout_ms=4_000,
            socket_connection_setup_timeout_ms=2_000,
            reconnect_backoff_max_ms=500,
            metadata_max_age_ms=1_000,
            bootstrap_timeout_ms=PATIENCE_MS,
        ) as consumer:
            self.assigned()
            partitions = [OurPartition(topic, p) for p in range(self.settings.partitions)]
            consumer.assign(partitions)
            for partition in partitions:
                consumer.seek(partition, 0)
            ways = itertools.cycle((_by_getmany, _by_poll_arrow))
            while not self.stopping.is_set():
                try:
                    found = await next(ways)(consumer)
                except ClientError as error:
                    self.failed(str(error), lost=isinstance(error, OffsetUnavailable))
                    await asyncio.sleep(POLL_S)
                    continue
                for partition, records in found.items():
                    high = consumer.high_watermark(partition) or -1
                    self.polled(partition.partition, records, high)


async def _by_getmany(consumer: Consumer) -> dict[OurPartition, list[list[object]]]:
    found = await consumer.getmany(timeout_ms=int(POLL_S * 1000))
    return {
        partition: [
            [each.offset, (each.value or b"").decode(errors="replace"), each.leader_epoch]
            for each in records
        ]
        for partition, records in found.items()
    }


async def _by_poll_arrow(consumer: Consumer) -> dict[OurPartition, list[list[object]]]:
    """Arrow batches have no leader epochs: -1."""
    found = await consumer.poll_arrow(int(POLL_S * 1000))
    return {
        partition: [
            [offset, (value or b"").decode(errors="replace"), -1]
            for offset, value in zip(
                batch.column("offset").to_pylist(), batch.column("value").to_pylist(), strict=True
            )
        ]
        for partition, batch in found.items()
    }


class Asker(_Thread):
    """A client that requests the log end offset of each partition (ListOffsets) repeatedly."""

    def run(self) -> None:
        consumer = confluent_consumer(self.settings.bootstrap, self.name)
        partition = 0
        while not self.stopping.is_set():
            place = [self.settings.topic, partition]
            asked = time.monotonic_ns()
            try:
                _, end = consumer.get_watermark_offsets(
                    TopicPartition(self.settings.topic, partition), timeout=ASK_TIMEOUT_S
                )
            except KafkaException as error:
                self.log.write(self.name, "latest", "info", tp=place, err=error.args[0].name())
            else:
                self.log.write(self.name, "latest", "ok", tp=place, off=end, asked=asked)
            partition = (partition + 1) % self.settings.partitions
            self.stopping.wait(ASK_S / self.settings.partitions)
        consumer.close()


KINDS: Final[Mapping[str, Callable[[str, Settings, OpsLog], ReaderClient]]] = {
    "reader": ConfluentReader,
    "our-reader": OurReader,
    "asker": Asker,
}
