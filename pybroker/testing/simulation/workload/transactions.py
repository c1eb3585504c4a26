"""The simulated clients that write in transactions. Two clients share each transactional id: when
one starts, it fences the other, which may have an open transaction."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, Final

from pybroker.client import Consumer, ConsumerRecord
from pybroker.client.errors import (
    AbortableTransactionError,
    ClientError,
    Closed,
    OffsetUnavailable,
)
from pybroker.coordinator.runtime.partitioning import partition_of
from pybroker.model import TopicPartition
from pybroker.testing.history.model import ProducerFacts, Send, Transaction
from pybroker.testing.history.values import Identity
from pybroker.testing.simulation.workload.api_producer import ApiProducer
from pybroker.testing.simulation.workload.clients import Client, Shared
from pybroker.testing.simulation.workload.groups import TOPIC, CommittedOffsetClient, GroupPlan
from pybroker.testing.simulation.workload.options import (
    CLIENT_OPTIONS,
    OUTPUT_TOPIC,
    WorkloadOptions,
)
from pybroker.testing.simulation.workload.transaction_requests import Settled, TransactionalProducer

AnyProducer = TransactionalProducer | ApiProducer

_PARTITIONS_MAX: Final = 3
_RECORDS_MAX: Final = 4
_TIMEOUT_MS: Final = (1_500, 3_000, 6_000)
_REST_MEAN_S: Final = 0.15
_THINK_MEAN_S: Final = 0.02
"""The mean pause between two steps of a transaction."""
_ENDS: Final = ("commit",) * 12 + ("abort",) * 4 + ("late",) * 2 + ("leave", "keep")
"""The ways in which a transaction ends; see `_TransactionalClient._finish`."""
_POLL_MS: Final = 100
_RECORDS_READ_MAX: Final = 8
_NO_TOPIC_S: Final = 0.1
_CHANGES: Final = ("crash", "pause", "pause")
_SILENT_S: Final = (0.1, 6.0)
_LATE_S: Final = 0.2
_FACTS: Final = ProducerFacts(acks=-1, idempotent=True, keeps_order=True)


class _TransactionalClient(Client):
    """One of two producers with the same transactional id. After the last fault, the producer with
    `is_spare` stops, so that the other is not fenced and ends all its transactions."""

    def __init__(self, shared: Shared, name: str, transactional_id: str, *, is_spare: bool) -> None:
        super().__init__(shared, name)
        self.transactional_id = transactional_id
        self.group = ""
        self._is_spare = is_spare
        self._counter = 0
        self._open: list[Send] = []
        """The sends of the present process that await a response."""

    @property
    def who(self) -> str:
        return f"{self.name}/{self.incarnation}"

    @property
    def is_stopping(self) -> bool:
        return self.shared.is_stopping or (self._is_spare and self.shared.is_even)

    @property
    def _is_calm(self) -> bool:
        return self.shared.is_even or self.shared.is_stopping

    # the fate of the process

    def start(self) -> None:
        super().start()
        if self.machine.loop is not None:
            self._plan_change(self.incarnation)

    def _plan_change(self, incarnation: int) -> None:
        lives_s = self._fate.expovariate(1 / self.options.member_life_mean_s)
        self.shared.environment.after(lives_s, self._change_state, incarnation)

    def _change_state(self, incarnation: int) -> None:
        loop = self.machine.loop
        if loop is None or incarnation != self.incarnation or self._is_calm:
            return
        fate = self._fate.choice(_CHANGES)
        if fate == "crash":
            self._crash(incarnation)
            return
        if fate == "pause":
            loop.pause()
            self.shared.environment.after(self._fate.uniform(*_SILENT_S), loop.resume)
        self._plan_change(incarnation)

    def _crash(self, incarnation: int) -> None:
        if not self._is_calm:
            super()._crash(incarnation)

    def killed(self) -> None:
        for send in self._open:
            self.recorder.failed(send, ConnectionError("killed"), definite=False)
        self._open.clear()

    # transactions

    async def run(self) -> None:
        self._counter = 0
        self.recorder.producer(self.name, self.incarnation, _FACTS)
        producer = await self.opened(self._make)
        if producer is None:
            return
        await self._identify(producer)
        await self._work(producer)
        await producer.close()

    async def _work(self, producer: AnyProducer) -> None:
        while not self.is_stopping:
            partitions = self._partitions()
            if partitions:
                transaction = self._begin(producer)
                await self._complete(
                    producer, transaction, self._fill(producer, transaction, partitions)
                )
            await self.rest(_REST_MEAN_S)

    async def _complete(
        self, producer: AnyProducer, transaction: Transaction, filled: Awaitable[None]
    ) -> None:
        """Await `filled`, which writes the records, then call `_finish`. Abort the transaction if
        `filled` or `_finish` raises an AbortableTransactionError."""
        try:
            await filled
            await self._finish(producer, transaction)
        except AbortableTransactionError:
            self._note_end(transaction, "fail")
            await producer.end(is_commit=False)
            self._note_identity(producer)

    def _make(self) -> AnyProducer:
        timeout_ms = self.rng.choice(_TIMEOUT_MS)
        if self.options.has_api_transactions:
            return ApiProducer(
                self.shared.bootstrap,
                self.transactional_id,
                timeout_ms=timeout_ms,
                client_id=self.name,
                clock=self.clock,
                rng=self.rng,
                codec=self.rng.choice(self.options.codecs),
                linger_ms=self.options.linger_ms,
            )
        return TransactionalProducer(
            self.shared.bootstrap,
            self.transactional_id,
            timeout_ms=timeout_ms,
            client_id=self.name,
            clock=self.clock,
            rng=self.rng,
            codecs=self.options.codecs,
        )

    async def _identify(self, producer: AnyProducer, *, keep: bool = False) -> None:
        await producer.identify(keep=keep)
        self._note_identity(producer)

    def _note_identity(self, producer: AnyProducer) -> None:
        self.recorder.producer_started(
            self.transactional_id, self.who, producer.producer_id, producer.epoch
        )

    def _begin(self, producer: AnyProducer) -> Transaction:
        producer.begin()
        return self.recorder.transaction_begun(
            self.transactional_id, self.who, producer.producer_id, producer.epoch, self.group
        )

    def _partitions(self) -> list[TopicPartition]:
        known = self.shared.catalog.partitions()
        return self.rng.sample(known, min(len(known), self.rng.randint(1, _PARTITIONS_MAX)))

    async def _fill(
        self,
        producer: AnyProducer,
        transaction: Transaction,
        partitions: Sequence[TopicPartition],
    ) -> None:
        """Add the partitions to the transaction, all at once or one by one (a random choice), and
        write a batch to each partition."""
        if self.rng.random() < 0.5:
            await producer.add_partitions(partitions)
        for partition in partitions:
            await producer.add_partitions([partition])
            await self._send(producer, transaction, partition, self.rng.randint(1, _RECORDS_MAX))
            await asyncio.sleep(self.rng.expovariate(1 / _THINK_MEAN_S))

    async def _finish(self, producer: AnyProducer, transaction: Transaction) -> None:
        """End the transaction in one of these ways:

        - `commit`;
        - `abort`;
        - `late`: abort, then send one more batch;
        - `keep`: abort, then get the next epoch with the same producer id;
        - `leave`: end the process with the transaction open.

        With an `ApiProducer`, `late` and `keep` only abort.
        """
        end = "commit" if self._is_calm else self.rng.choice(_ENDS)
        if end == "commit":
            await self._commit(producer, transaction)
        elif end == "leave":
            self._note_end(transaction, "fail")
            await asyncio.sleep(self.rng.uniform(*_SILENT_S))
            raise Closed("the process ends with an open transaction")
        else:
            await producer.end(is_commit=False)
            self._note_end(transaction, "fail")
            if isinstance(producer, ApiProducer):
                self._note_identity(producer)
            elif end == "late":
                await self._send_late(producer, transaction)
            elif end == "keep":
                await self._identify(producer, keep=True)

    async def _commit(self, producer: AnyProducer, transaction: Transaction) -> None:
        transaction.commit_asked = self.recorder.now()
        try:
            await producer.end(is_commit=True)
        except ClientError as error:
            self._note_end(transaction, "fail" if error.definite else "info")
            raise
        self._note_end(transaction, "ok")

    def _note_end(self, transaction: Transaction, outcome: str) -> None:
        self.recorder.transaction_ended(transaction, outcome)

    async def _send_late(self, producer: TransactionalProducer, transaction: Transaction) -> None:
        """Send a batch after its transaction has ended. After a ClientError the caller must end the
        process: a batch without an answer might become part of a later transaction of the same
        epoch."""
        partition = self.rng.choice(self.shared.catalog.partitions())
        await asyncio.sleep(self.rng.expovariate(1 / _LATE_S))
        values, settled = self._noted(transaction, partition, 1)
        await producer.produce(partition, values, settled, once=True)

    async def _send(
        self,
        producer: AnyProducer,
        transaction: Transaction,
        partition: TopicPartition,
        count: int,
        sources: Sequence[tuple[TopicPartition, int]] = (),
    ) -> None:
        values, settled = self._noted(transaction, partition, count, sources)
        await producer.produce(partition, values, settled)

    def _noted(
        self,
        transaction: Transaction,
        partition: TopicPartition,
        count: int,
        sources: Sequence[tuple[TopicPartition, int]] = (),
    ) -> tuple[list[str], Settled]:
        """Record that `count` values are about to be sent. Return the values, and a function that
        records the outcome of each."""
        sends = []
        for number in range(count):
            identity = Identity(self.name, self.incarnation, self._counter)
            self._counter += 1
            send = self.recorder.begun(identity, partition)
            transaction.values.append(send.value)
            if sources:
                transaction.inputs[send.value] = sources[number]
            sends.append(send)
        self._open += sends

        def settled(place: int, result: int | BaseException) -> None:
            send = sends[place]
            if send not in self._open:
                return  # the process was killed
            self._open.remove(send)
            if isinstance(result, int):
                self.recorder.stored(send, result)
            else:
                definite = isinstance(result, ClientError) and result.definite
                self.recorder.failed(send, result, definite=definite)

        return [send.value for send in sends], settled


class WriterClient(_TransactionalClient):
    """A client that writes transactions to all topics."""


class LoopClient(_TransactionalClient):
    """A client that reads the first topic with read_committed, writes one record for each record
    read, and commits the offsets in the same transaction."""

    def __init__(self, shared: Shared, name: str, transactional_id: str, *, is_spare: bool) -> None:
        super().__init__(shared, name, transactional_id, is_spare=is_spare)
        self.group = transactional_id
        self._committed: dict[TopicPartition, int] = {}

    async def _work(self, producer: AnyProducer) -> None:
        self._hold(producer)
        consumer = await self.opened(self._make_consumer)
        if consumer is None:
            return
        while not self.shared.catalog.topics.keys() >= {TOPIC, OUTPUT_TOPIC}:
            if self.is_stopping:
                return
            await asyncio.sleep(_NO_TOPIC_S)
        await self._seek_to_committed(consumer)
        while not self.is_stopping:
            await self._transform_some(producer, consumer)
        await consumer.close()

    def _make_consumer(self) -> Consumer:
        return _committed_consumer(self, self.group, auto_offset_reset="none")

    def _note_identity(self, producer: AnyProducer) -> None:
        super()._note_identity(producer)
        self._hold(producer)

    def _hold(self, producer: AnyProducer) -> None:
        """Add a history entry which says that this client is the only user of the group. The
        entry's generation is the producer epoch, because a group without members has no
        generation."""
        self.recorder.holds(self.group, self.who, self.who, producer.epoch, [])

    async def _seek_to_committed(self, consumer: Consumer) -> None:
        """Continue each partition at its committed offset. If there is no committed offset, or if
        it is below the log start offset, continue at the log start offset."""
        count = self.shared.catalog.topics[TOPIC]
        partitions = [TopicPartition(TOPIC, number) for number in range(count)]
        consumer.assign(partitions)
        answers = await consumer.committed(partitions)
        starts = await consumer.beginning_offsets(partitions)
        for partition in partitions:
            answer = answers[partition]
            offset = 0 if answer is None else answer.offset
            self._committed[partition] = max(offset, starts[partition])
            consumer.seek(partition, self._committed[partition])

    async def _transform_some(self, producer: AnyProducer, consumer: Consumer) -> None:
        try:
            found = await consumer.getmany(timeout_ms=_POLL_MS, max_records=_RECORDS_READ_MAX)
        except OffsetUnavailable:
            await self._seek_to_committed(consumer)
            return
        if not found:
            return
        transaction = self._begin(producer)
        await self._complete(producer, transaction, self._transform(producer, transaction, found))
        if transaction.outcome == "ok":
            for key, offset in transaction.offsets.items():
                self._committed[TopicPartition(*key)] = offset
        else:
            for partition, offset in self._committed.items():
                consumer.seek(partition, offset)
        await asyncio.sleep(self.rng.expovariate(1 / _THINK_MEAN_S))

    async def _transform(
        self,
        producer: AnyProducer,
        transaction: Transaction,
        found: Mapping[TopicPartition, Sequence[ConsumerRecord]],
    ) -> None:
        count = self.shared.catalog.topics[OUTPUT_TOPIC]
        for partition, records in found.items():
            target = TopicPartition(OUTPUT_TOPIC, self.rng.randrange(count))
            await producer.add_partitions([target])
            sources = [(partition, record.offset) for record in records]
            await self._send(producer, transaction, target, len(records), sources)
            await asyncio.sleep(self.rng.expovariate(1 / _THINK_MEAN_S))
        offsets = {partition: records[-1].offset + 1 for partition, records in found.items()}
        for partition, offset in offsets.items():
            transaction.offsets[partition] = offset
        await producer.add_offsets(self.group)
        await producer.commit_offsets(self.group, offsets)
        await asyncio.sleep(self.rng.expovariate(1 / _THINK_MEAN_S))

    async def _commit(self, producer: AnyProducer, transaction: Transaction) -> None:
        commits = [
            self.recorder.commit_begun(
                self.group, self.who, transaction.epoch, TopicPartition(*key), offset
            )
            for key, offset in transaction.offsets.items()
        ]
        try:
            await super()._commit(producer, transaction)
        except ClientError as error:
            for commit in commits:
                self.recorder.commit_ended(commit, "info", str(error))
            raise
        for commit in commits:
            self.recorder.commit_ended(commit, "ok", "")


class CommittedOffsetOfLoopClient(CommittedOffsetClient):
    """A client that requests the offsets that a `LoopClient` has committed. Offsets in an open
    transaction are left out."""

    def make(self, **more: Any) -> Consumer:
        return super().make(isolation_level="read_committed", **more)


class FinalOffsetsClient(Client):
    """A client that requests the committed offsets of consumer groups at the end of a run, when the
    cluster has recovered. The client repeats failed requests."""

    def __init__(self, shared: Shared, name: str, groups: Sequence[str]) -> None:
        super().__init__(shared, name)
        self._groups = groups

    def start(self) -> None:
        self.incarnation += 1
        self.rng = self.shared.environment.rng(f"life {self.incarnation} of {self.name}")
        self.machine.start(self._main, self.shared.sockets(self.machine))

    async def run(self) -> None:
        count = self.shared.catalog.topics.get(TOPIC, 0)
        partitions = [TopicPartition(TOPIC, number) for number in range(count)]
        for group in self._groups:
            found = await self._ask(group, partitions)
            final_offsets = self.recorder.history.transactions.final_offsets
            for key, offset in found.items():
                final_offsets[group, key] = offset

    async def _ask(
        self, group: str, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, int]:
        while True:
            consumer = _committed_consumer(self, group)
            try:
                await consumer.start()
                answers = await consumer.committed(partitions)
            except ClientError as error:
                self.recorder.refused[type(error).__name__] += 1
            else:
                return {
                    key: -1 if answer is None else answer.offset for key, answer in answers.items()
                }
            finally:
                await consumer.close()
            await asyncio.sleep(_NO_TOPIC_S)


def _committed_consumer(client: Client, group: str, **more: Any) -> Consumer:
    return Consumer(
        client.shared.bootstrap,
        clock=client.clock,
        rng=client.rng,
        client_id=client.name,
        group_id=group,
        enable_auto_commit=False,
        isolation_level="read_committed",
        fetch_max_wait_ms=client.options.fetch_wait_ms,
        max_partition_fetch_bytes=client.options.fetch_bytes,
        **CLIENT_OPTIONS,
        **more,
    )


def loop_groups(options: WorkloadOptions, name: str) -> list[str]:
    """Return the consumer groups of the `LoopClient`s. A group's name is also the transactional id
    of the group's clients."""
    return [f"{name}-loop-{number}" for number in range(options.loops)]


def transactional_ids(options: WorkloadOptions, name: str) -> list[str]:
    """Return all transactional ids of the run."""
    writers = [f"{name}-writer-{number}" for number in range(options.writers)]
    return [*writers, *loop_groups(options, name)]


def transactional_clients(shared: Shared, name: str) -> list[Client]:
    """Return the clients that write in transactions."""
    loops = {*loop_groups(shared.options, name)}
    return [
        (LoopClient if each in loops else WriterClient)(
            shared, f"{each}-{letter}", each, is_spare=letter == "b"
        )
        for each in transactional_ids(shared.options, name)
        for letter in "ab"
    ]


def clients_of_loops(shared: Shared, name: str) -> list[Client]:
    """Return a client for each `LoopClient` group. The client requests the committed offsets."""
    found = list[Client]()
    for group in loop_groups(shared.options, name):
        partition = partition_of(group, shared.options.offsets_partitions)
        shared.recorder.transactional_group(group, partition)
        plan = GroupPlan(group, (), is_static=False, reads_everything=False)
        found.append(CommittedOffsetOfLoopClient(shared, f"{group}-asker", plan))
    return found
