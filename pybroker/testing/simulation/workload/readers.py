"""The simulated readers: consumers of all partitions from offset 0, clients that request log end
offsets, and a reader of all records at the end."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from pybroker.client import Consumer, ConsumerRecord
from pybroker.client.errors import ClientError, DamagedRecords, OffsetUnavailable
from pybroker.client.keywords import IsolationLevel
from pybroker.model import TopicPartition
from pybroker.testing.simulation.workload.clients import Client, Shared
from pybroker.testing.simulation.workload.options import CLIENT_OPTIONS
from pybroker.testing.simulation.workload.recorder import Recorder

_POLL_MS: Final = 100
_ASK_MEAN_S: Final = 0.25
_AGAIN_S: Final = 0.2
_REST_MEAN_S: Final = 0.01


class _Consuming(Client):
    isolation: IsolationLevel = "read_uncommitted"

    @property
    def recorder(self) -> Recorder:
        shared = self.shared.recorder
        return shared if self.isolation == "read_uncommitted" else shared.of_committed_reads()

    def make(self) -> Consumer:
        return Consumer(
            self.shared.bootstrap,
            clock=self.clock,
            rng=self.rng,
            client_id=self.name,
            auto_offset_reset="none",
            isolation_level=self.isolation,
            fetch_max_wait_ms=self.options.fetch_wait_ms,
            max_partition_fetch_bytes=self.options.fetch_bytes,
            **CLIENT_OPTIONS,
        )


class ReaderClient(_Consuming):
    """A consumer of all partitions. Each of its processes begins at offset 0."""

    def __init__(self, shared: Shared, name: str) -> None:
        super().__init__(shared, name)
        self._version = -1
        self._lives: dict[TopicPartition, int] = {}
        self._positions: dict[TopicPartition, int] = {}

    async def run(self) -> None:
        self._version, self._lives, self._positions = -1, {}, {}
        while not self.is_stopping:
            consumer = await self.opened(self.make)
            if consumer is not None:
                try:
                    await self._read(consumer)
                except ClientError as error:
                    # This consumer would raise a non-retriable error of a partition again.
                    self.recorder.refused[type(error).__name__] += 1
                    await asyncio.sleep(_AGAIN_S)
                await consumer.close()

    async def _read(self, consumer: Consumer) -> None:
        """Read with `consumer` until the clients stop. Raises ClientError if this consumer cannot
        continue."""
        self._version = -1
        while not self.is_stopping:
            self._follow_catalog(consumer)
            try:
                found = await consumer.getmany(timeout_ms=_POLL_MS)
            except OffsetUnavailable as error:
                for partition in sorted(error.partitions):
                    await self._begin_again(consumer, partition, str(error))
                continue
            except DamagedRecords as error:
                self.recorder.lost(self.name, error.topic_partition, error.offset, str(error))
                raise
            for partition, records in found.items():
                end = consumer.high_watermark(partition)
                self.recorder.polled(self.name, partition, records, end)
                self._positions[partition] = records[-1].offset + 1
            await self.rest(_REST_MEAN_S)

    def _follow_catalog(self, consumer: Consumer) -> None:
        catalog = self.shared.catalog
        if catalog.version == self._version:
            return
        is_new = self._version == -1
        self._version = catalog.version
        partitions = catalog.partitions()
        consumer.assign(partitions)
        for partition in partitions:
            life = catalog.lives[partition.topic]
            if self._lives.get(partition) != life:
                self._lives[partition] = life
                self._seek(consumer, partition, 0)
            elif is_new:
                self._seek(consumer, partition, self._positions[partition])

    def _seek(self, consumer: Consumer, partition: TopicPartition, offset: int) -> None:
        self._positions[partition] = offset
        consumer.seek(partition, offset)
        self.recorder.assigned(self.name, partition, offset)

    async def _begin_again(self, consumer: Consumer, partition: TopicPartition, error: str) -> None:
        """Continue at the log start offset of the partition. `error` says that the log no longer
        has the consumer's position."""
        if self.shared.catalog.version != self._version:
            return  # the topics have changed: the partition may be deleted
        self.recorder.lost(self.name, partition, self._positions[partition], error)
        starts = await consumer.beginning_offsets([partition])
        if partition in consumer.assignment():
            self._seek(consumer, partition, starts[partition])


class CommittedReaderClient(ReaderClient):
    """A reader with isolation.level=read_committed."""

    isolation = "read_committed"


class LogEndClient(_Consuming):
    """A client that requests the log end offset of one partition at a time."""

    async def run(self) -> None:
        consumer = await self.opened(self.make)
        if consumer is None:
            return
        while not self.is_stopping:
            partitions = self.shared.catalog.partitions()
            if partitions:
                await self._ask(consumer, self.rng.choice(partitions))
            await self.rest(_ASK_MEAN_S)
        await consumer.close()

    async def _ask(self, consumer: Consumer, partition: TopicPartition) -> None:
        asked = self.recorder.now()
        try:
            answer = await consumer.end_offsets([partition])
        except ClientError as error:
            self.recorder.refused[type(error).__name__] += 1
        else:
            self.recorder.told_end(self.name, partition, asked, answer[partition])


class StableOffsetClient(LogEndClient):
    """A client that requests the last stable offset of one partition at a time."""

    isolation = "read_committed"


class FinalReader(_Consuming):
    """A client that reads all records of the partitions after the cluster has recovered. It repeats
    failed attempts until it has all records."""

    def __init__(self, shared: Shared, name: str, partitions: Sequence[TopicPartition]) -> None:
        super().__init__(shared, name)
        self._partitions = partitions

    def start(self) -> None:
        self.incarnation += 1
        self.rng = self.shared.environment.rng(f"life {self.incarnation} of {self.name}")
        self.machine.start(self._main, self.shared.sockets(self.machine))

    async def run(self) -> None:
        while True:
            consumer = self.make()
            try:
                await consumer.start()
                await self._read(consumer)
            except ClientError as error:
                self.recorder.refused[type(error).__name__] += 1
            else:
                return
            finally:
                await consumer.close()
            await asyncio.sleep(_AGAIN_S)

    async def _read(self, consumer: Consumer) -> None:
        partitions = self._partitions
        starts = await consumer.beginning_offsets(partitions)
        ends = await consumer.end_offsets(partitions)
        found: dict[TopicPartition, list[ConsumerRecord]] = {each: [] for each in partitions}
        consumer.assign(partitions)
        for partition in partitions:
            consumer.seek(partition, starts[partition])
        while any([await consumer.position(each) < ends[each] for each in partitions]):
            for partition, records in (await consumer.getmany(timeout_ms=_POLL_MS)).items():
                found[partition] += records
        for partition in partitions:
            self.found(partition, starts[partition], ends[partition], found[partition])

    def found(
        self, partition: TopicPartition, start: int, end: int, records: Sequence[ConsumerRecord]
    ) -> None:
        """Record that the partition has these records from `start` up to, not including, `end`."""
        self.recorder.final(self.name, partition, start, records)


class CommittedFinalReader(FinalReader):
    """A `FinalReader` with isolation.level=read_committed."""

    isolation = "read_committed"
