"""The simulated clients of a compacted topic: producers of keyed records and tombstones, and
readers.

The producers often take new keys, so that the last values of earlier keys must survive compaction.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from pybroker.client import Consumer, ConsumerRecord, Delivery, Producer
from pybroker.client.errors import ClientError, OffsetUnavailable
from pybroker.model import TopicPartition
from pybroker.testing.history.keyed import KeyedRead, KeyedRecord, KeyedSend
from pybroker.testing.simulation.workload.clients import Client, Shared
from pybroker.testing.simulation.workload.options import KEYED_TOPIC, PRODUCER_OPTIONS
from pybroker.testing.simulation.workload.readers import (
    CommittedFinalReader,
    CommittedReaderClient,
)

PARTITION: Final = TopicPartition(KEYED_TOPIC, 0)
_PERIOD_S: Final = 3.0
"""The time after which the producers take new keys."""
_KEYS: Final = 6
_TOMBSTONES: Final = 0.3
_ABORTS: Final = 0.4
_SLOW: Final = 0.3
"""The share of transactions, and of reads, that are slow."""
_SLOW_S_MAX: Final = 2.0
_RECORDS_MAX: Final = 4
_REST_MEAN_S: Final = 0.12
_UNANSWERED_MAX: Final = 50
_PADDING_MAX: Final = 120
_TRANSACTION_TIMEOUT_MS: Final = 4_000
_POLL_MS: Final = 100
_SCAN_REST_MEAN_S: Final = 1.0


class KeyedWriter(Client):
    """A producer of keyed records. A producer without idempotence sends no tombstones: a retry
    could store a tombstone again, after a later value, and the value would look lost."""

    is_idempotent = True
    transactional_id: str | None = None

    def __init__(self, shared: Shared, name: str) -> None:
        super().__init__(shared, name)
        self._counter = 0
        self._unanswered = 0

    async def run(self) -> None:
        self._counter = self._unanswered = 0
        producer = await self.opened(self._make)
        if producer is None:
            return
        while not self.is_stopping:
            await self._write(producer)
            await self.rest(_REST_MEAN_S)
        await producer.close()

    def _make(self) -> Producer:
        return Producer(
            self.shared.bootstrap,
            clock=self.clock,
            rng=self.rng,
            client_id=self.name,
            acks=-1,
            enable_idempotence=self.is_idempotent,
            transactional_id=self.transactional_id,
            transaction_timeout_ms=_TRANSACTION_TIMEOUT_MS,
            compression_type=self.rng.choice(self.options.codecs),
            linger_ms=self.options.linger_ms,
            **PRODUCER_OPTIONS,
        )

    async def _write(self, producer: Producer) -> None:
        for _ in range(self.rng.randint(1, _RECORDS_MAX)):
            if self._unanswered < _UNANSWERED_MAX:
                await self._send(producer)

    async def _send(self, producer: Producer) -> KeyedSend:
        period = int(self.shared.environment.now / _PERIOD_S)
        key = f"{period}/{self.rng.randrange(_KEYS)}"
        is_tombstone = self.is_idempotent and self.rng.random() < _TOMBSTONES
        padding = "x" * self.rng.randrange(_PADDING_MAX)
        value = f"{self.name}:{self.incarnation}:{self._counter}:{padding}"
        self._counter += 1
        send = KeyedSend(
            PARTITION, key, None if is_tombstone else value, self.recorder.now(),
            may_repeat=not self.is_idempotent,
        )  # fmt: skip
        if self.transactional_id is not None:
            send.outcome = "fail"  # until the transaction may be committed
        self.recorder.history.keyed.sends.append(send)
        self._unanswered += 1
        data = None if send.value is None else send.value.encode()
        try:
            delivery = await producer.send(KEYED_TOPIC, data, key=key.encode(), partition=0)
        except ClientError as error:
            self._failed(send, error)
            raise
        delivery.add_done_callback(lambda done: self._delivered(send, done))
        return send

    def _delivered(self, send: KeyedSend, done: Delivery) -> None:
        error = done.exception()
        if error is not None:
            self._failed(send, error)
            return
        self._unanswered -= 1
        send.offset = done.result().offset
        if self.transactional_id is None:
            send.outcome, send.ended = "ok", self.recorder.now()

    def _failed(self, send: KeyedSend, error: BaseException) -> None:
        self._unanswered -= 1
        if self.transactional_id is None:
            is_definite = isinstance(error, ClientError) and error.definite
            send.outcome, send.ended = "fail" if is_definite else "info", self.recorder.now()


class PlainKeyedWriter(KeyedWriter):
    is_idempotent = False


class TransactionalKeyedWriter(KeyedWriter):
    """A producer that writes keyed records in transactions, and aborts some of them. An error ends
    the producer's process. The next process fences the earlier producer epoch."""

    def __init__(self, shared: Shared, name: str) -> None:
        super().__init__(shared, name)
        self.transactional_id = name

    async def _write(self, producer: Producer) -> None:
        producer.begin_transaction()
        sends = []
        is_slow = self.rng.random() < _SLOW and not self.shared.is_even
        for _ in range(self.rng.randint(1, _RECORDS_MAX)):
            sends.append(await self._send(producer))
            if is_slow:
                await asyncio.sleep(self.rng.random() * _SLOW_S_MAX)
        if self.rng.random() < _ABORTS:
            await producer.abort_transaction()
            return
        for send in sends:
            send.outcome = "info"
        await producer.commit_transaction()
        for send in sends:
            send.outcome, send.ended = "ok", self.recorder.now()


class KeyedReader(CommittedReaderClient):
    """A read_committed consumer that reads the whole compacted topic again and again, sometimes
    slowly."""

    async def run(self) -> None:
        consumer = await self.opened(self.make)
        if consumer is None:
            return
        consumer.assign([PARTITION])
        while not self.is_stopping:
            try:
                await self._scan(consumer)
            except OffsetUnavailable as error:
                # Retention has deleted the records at the position during the read.
                self.recorder.refused[type(error).__name__] += 1
            await self.rest(_SCAN_REST_MEAN_S)
        await consumer.close()

    async def _scan(self, consumer: Consumer) -> None:
        is_slow = self.rng.random() < _SLOW
        begun = self.recorder.now()
        start = (await consumer.beginning_offsets([PARTITION]))[PARTITION]
        end = (await consumer.end_offsets([PARTITION]))[PARTITION]
        consumer.seek(PARTITION, start)
        found: list[ConsumerRecord] = []
        while (position := await consumer.position(PARTITION)) < end:
            if self.is_stopping:
                return
            for records in (await consumer.getmany(timeout_ms=_POLL_MS)).values():
                found += records
            if is_slow:
                await asyncio.sleep(self.rng.random())
        keyed = self.shared.recorder.history.keyed
        keyed.reads.append(
            KeyedRead(
                PARTITION, self.name, begun, self.recorder.now(), start, position, as_keyed(found)
            )
        )


class KeyedFinalReader(CommittedFinalReader):
    """A reader of the whole compacted topic after the cluster has recovered."""

    def found(
        self, partition: TopicPartition, start: int, end: int, records: Sequence[ConsumerRecord]
    ) -> None:
        now = self.recorder.now()
        self.shared.recorder.history.keyed.reads.append(
            KeyedRead(partition, self.name, now, now, start, end, as_keyed(records), is_final=True)
        )


def as_keyed(records: Sequence[ConsumerRecord]) -> tuple[KeyedRecord, ...]:
    return tuple(
        KeyedRecord(
            each.offset,
            bytes(each.key or b"").decode(errors="replace"),
            None if each.value is None else bytes(each.value).decode(errors="replace"),
        )
        for each in records
    )


def keyed_clients(shared: Shared, name: str) -> list[Client]:
    """Return the `options.keyed_writers` producers (at most 3) of the compacted topic, and one
    reader. Return no clients if `keyed_writers` is 0."""
    kinds = (KeyedWriter, PlainKeyedWriter, TransactionalKeyedWriter)
    names = ("keyed", "keyed-plain", "keyed-transactional")
    count = shared.options.keyed_writers
    writers = [
        kind(shared, f"{name}-{each}") for kind, each in zip(kinds[:count], names, strict=False)
    ]
    return [*writers, KeyedReader(shared, f"{name}-keyed-reader")] if writers else []
