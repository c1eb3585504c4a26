"""The producers of a workload: each producer sends its own numbered values, to all partitions in
turn, at a limited rate, and records the outcome of each value. All producers use acks=all, except
`hasty`, with which a leader may have records that no follower has.

The meaning of a failure depends on the client. librdkafka reports the error of the last attempt
only. An earlier attempt may have appended the record, so the error does not prove that the record
was not appended. The producer `prober` does not retry, so its error NOT_ENOUGH_REPLICAS proves
this. Our client reports whether a failure is definite.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from typing import Final, Protocol

import confluent_kafka
from confluent_kafka import KafkaError, Message

from integration_tests.faults.settings import Settings
from pybroker.client import Delivery, Producer
from pybroker.client.errors import BufferExhausted, ClientError, WouldBlock
from pybroker.testing.history.ops import OpsLog
from pybroker.testing.history.values import Identity, make_value
from unit_tests.patience import PATIENCE_MS, PATIENCE_S

TICK_S: Final = 0.04
UNANSWERED_MAX: Final = 400
"""The maximum number of values of a producer without an outcome. The producer waits before it sends
more.
"""
GIVES_UP_MS: Final = {"five-in-flight": 4_000, "prober": 3_000, "hasty": 4_000}
"""Producer -> its delivery timeout in ms. Other producers retry for the whole run."""
LIBRDKAFKA: Final[Mapping[str, Mapping[str, str | int | bool]]] = {
    "idempotent": {"enable.idempotence": True, "debug": "eos", "log_level": 7},
    "one-in-flight": {"max.in.flight": 1},
    "five-in-flight": {"max.in.flight": 5},
    "prober": {"max.in.flight": 5, "retries": 0},
    "hasty": {"max.in.flight": 5, "acks": 1},
}
PROBER_RATE_PARTS: Final = 5
"""The divisor of the prober's rate, which is low because the prober shows errors, not
throughput.
"""


class ProducerClient(Protocol):
    """The interface of a producer that runs from its creation until `stop`."""

    acked: Counter[int]
    """Acknowledged values by partition."""
    failed: Counter[str]
    """Error message -> number of failed values."""

    def stop(self) -> None:
        """Stop sending, and wait at most `PATIENCE_S` until every value has an outcome."""


class _Values:
    """The values of one producer, to all partitions in turn."""

    def __init__(self, name: str, settings: Settings, log: OpsLog, keeps_order: bool) -> None:
        self._name = name
        self._settings = settings
        self._log = log
        self._counter = 0
        self.unanswered = 0
        self.acked: Counter[int] = Counter()
        self.failed: Counter[str] = Counter()
        log.write(
            name, "producer", "info",
            incarnation=settings.incarnation,
            acks=1 if name == "hasty" else -1,
            idempotent=name in ("idempotent", "ours"),
            keeps_order=keeps_order,
            starts_anew=name == "idempotent",
        )  # fmt: skip

    def next(self) -> tuple[int, str]:
        """Return the partition and the value to send next. The send is recorded."""
        partition = self._counter % self._settings.partitions
        place = (self._settings.topic, partition)
        identity = Identity(self._name, self._settings.incarnation, self._counter)
        value = make_value(identity, place)
        self._counter += 1
        self.unanswered += 1
        self._write("invoke", tp=place, v=value)
        return partition, value

    def stored(self, partition: int, value: str, offset: int) -> None:
        self.unanswered -= 1
        self.acked[partition] += 1
        self._write("ok", v=value, off=offset)

    def given_up(self, value: str, error: str, *, definite: bool) -> None:
        self.unanswered -= 1
        self.failed[error] += 1
        self._write("fail" if definite else "info", v=value, err=error)

    def _write(self, kind: str, **more: object) -> None:
        incarnation = self._settings.incarnation
        self._log.write(self._name, "send", kind, incarnation=incarnation, **more)


class ConfluentProducer:
    """A producer of librdkafka in its own thread."""

    def __init__(self, name: str, settings: Settings, log: OpsLog) -> None:
        self._settings = settings
        rate = settings.rate // PROBER_RATE_PARTS if name == "prober" else settings.rate
        self._per_tick = max(1, round(rate * TICK_S))
        self._believes_refusals = name == "prober"
        # Without retries even one request in flight does not keep the order: the limit applies to
        # each connection, and after a change of leader the producer has two connections.
        self._values = _Values(name, settings, log, keeps_order=name == "idempotent")
        self.acked, self.failed = self._values.acked, self._values.failed
        self._stopping = threading.Event()
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": settings.bootstrap,
                "client.id": name,
                "acks": 1 if settings.leader_only else "all",
                "linger.ms": 10,
                "delivery.timeout.ms": GIVES_UP_MS.get(name, PATIENCE_MS),
                "request.timeout.ms": 3_000,
                "socket.timeout.ms": 4_000,
                "socket.connection.setup.timeout.ms": 2_000,
                "retry.backoff.ms": 50,
                "reconnect.backoff.ms": 50,
                "reconnect.backoff.max.ms": 500,
                "topic.metadata.refresh.interval.ms": 2_000,
                "log_level": 0,
                **LIBRDKAFKA[name],
            },
            logger=_logger(settings, name),
        )
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.is_set():
            for _ in range(self._per_tick):
                if self._values.unanswered >= UNANSWERED_MAX:
                    break
                partition, value = self._values.next()
                self._producer.produce(
                    self._settings.topic,
                    value.encode(),
                    partition=partition,
                    on_delivery=self._delivered,
                )
            self._producer.poll(0)
            self._stopping.wait(TICK_S)
        self._producer.flush(PATIENCE_S)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        octets = message.value()
        assert octets is not None
        value = bytes(octets).decode()
        if error is None:
            partition, offset = message.partition(), message.offset()
            assert partition is not None
            self._values.stored(partition, value, -1 if offset is None else offset)
            return
        definite = self._believes_refusals and error.code() == KafkaError.NOT_ENOUGH_REPLICAS
        self._values.given_up(value, error.name(), definite=definite)


def _logger(settings: Settings, name: str) -> logging.Logger:
    """Return a logger that writes librdkafka's lines to a file beside the operations, not to the
    output of the process.
    """
    logger = logging.getLogger(f"faults.{settings.topic}.{name}")
    logger.propagate = False
    logger.setLevel(logging.DEBUG)
    logger.addHandler(logging.FileHandler(settings.ops_folder / f"{name}.log", delay=True))
    return logger


class OurProducer:
    """An idempotent `pybroker.client.Producer` in a thread with its own event loop. It sends by
    `send`, `send_nowait` and `send_many` in turn."""

    def __init__(self, name: str, settings: Settings, log: OpsLog) -> None:
        self._settings = settings
        self._per_tick = max(1, round(settings.rate * TICK_S))
        self._values = _Values(name, settings, log, keeps_order=True)
        self.acked, self.failed = self._values.acked, self._values.failed
        self._stopping = threading.Event()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._run()), name=name, daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()

    async def _run(self) -> None:
        async with Producer(
            self._settings.bootstrap,
            client_id="ours",
            linger_ms=10,
            request_timeout_ms=3_000,
            delivery_timeout_ms=PATIENCE_MS,
            max_block_ms=PATIENCE_MS,
            bootstrap_timeout_ms=PATIENCE_MS,
            socket_connection_setup_timeout_ms=2_000,
            reconnect_backoff_max_ms=500,
            metadata_max_age_ms=2_000,
            acks=1 if self._settings.leader_only else "all",
        ) as producer:
            ways = itertools.cycle((self._send, self._send_nowait, self._send_many))
            while not self._stopping.is_set():
                room = UNANSWERED_MAX - self._values.unanswered
                values = [self._values.next() for _ in range(min(self._per_tick, room))]
                await next(ways)(producer, values)
                await asyncio.sleep(TICK_S)
            await producer.close(PATIENCE_S)

    async def _send(self, producer: Producer, values: list[tuple[int, str]]) -> None:
        for partition, value in values:
            try:
                delivery = await producer.send(
                    self._settings.topic, value.encode(), partition=partition
                )
            except ClientError as error:
                self._values.given_up(value, str(error), definite=error.definite)
            else:
                self._observe(partition, value, delivery)

    async def _send_nowait(self, producer: Producer, values: list[tuple[int, str]]) -> None:
        for number, (partition, value) in enumerate(values):
            try:
                delivery = producer.send_nowait(
                    self._settings.topic, value.encode(), partition=partition
                )
            except WouldBlock:
                await self._send(producer, values[number:])
                return
            except ClientError as error:
                self._values.given_up(value, str(error), definite=error.definite)
            else:
                self._observe(partition, value, delivery)

    async def _send_many(self, producer: Producer, values: list[tuple[int, str]]) -> None:
        by_partition: dict[int, list[str]] = defaultdict(list)
        for partition, value in values:
            by_partition[partition].append(value)
        for partition, ours in by_partition.items():
            octets = [value.encode() for value in ours]
            try:
                many = await producer.send_many(self._settings.topic, octets, partition=partition)
            except ClientError as error:
                # The outcome of the records that were accepted before is not reported.
                accepted = error.accepted if isinstance(error, BufferExhausted) else len(ours)
                for number, value in enumerate(ours):
                    self._values.given_up(value, str(error), definite=number >= accepted)
            else:
                for value, delivery in zip(ours, many, strict=True):
                    self._observe(partition, value, delivery)

    def _observe(self, partition: int, value: str, delivery: Delivery) -> None:
        delivery.add_done_callback(lambda done: self._delivered(partition, value, done))

    def _delivered(self, partition: int, value: str, done: Delivery) -> None:
        error = done.exception()
        if error is None:
            self._values.stored(partition, value, done.result().offset)
        else:
            definite = isinstance(error, ClientError) and error.definite
            cause = f" ({error.__cause__})" if error.__cause__ else ""
            self._values.given_up(value, f"{error}{cause}", definite=definite)


KINDS: Final[Mapping[str, Callable[[str, Settings, OpsLog], ProducerClient]]] = {
    **dict.fromkeys(LIBRDKAFKA, ConfluentProducer),
    "ours": OurProducer,
}
