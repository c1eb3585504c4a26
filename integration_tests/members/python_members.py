"""The process of a group member that uses a Python library.

    python -m integration_tests.members.python_members SETTINGS

The member joins, reads, logs its operations and commits, until its standard input has a line or
ends. Then it leaves the group cleanly. Automatic commits are off: a record counts as processed once
it is in the log.
"""

from __future__ import annotations

import asyncio
import logging
import struct
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import aiokafka
import aiokafka.coordinator.assignors.range
import aiokafka.coordinator.assignors.roundrobin
import aiokafka.errors
import confluent_kafka
import kafka
import kafka.coordinator.assignors.cooperative_sticky
import kafka.coordinator.assignors.range
import kafka.errors
import kafka.structs

import pybroker.client
from integration_tests.kafka_python import polled
from integration_tests.members.diary import Diary
from integration_tests.members.settings import MemberSettings, decode
from pybroker.client.errors import ClientError
from pybroker.testing.history.values import TopicPartition

POLL_MS: Final = 100
_GENERATION_AT: Final = len("CGMDv2:")


class _Confluent:
    """A member of confluent-kafka, which uses librdkafka."""

    def __init__(self, settings: MemberSettings, diary: Diary) -> None:
        self._diary = diary
        self._is_cooperative = settings.strategy.startswith("cooperative")
        self._consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": settings.bootstrap,
                "client.id": settings.client,
                "group.id": settings.group,
                "group.instance.id": settings.instance,
                "partition.assignment.strategy": settings.strategy,
                "session.timeout.ms": settings.session_ms,
                "heartbeat.interval.ms": settings.heartbeat_ms,
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "auto.offset.reset": "earliest",
                "fetch.wait.max.ms": 50,
                "fetch.error.backoff.ms": 50,
                "socket.timeout.ms": 6_000,
                "socket.connection.setup.timeout.ms": 2_000,
                "reconnect.backoff.ms": 50,
                "reconnect.backoff.max.ms": 500,
                "topic.metadata.refresh.interval.ms": 1_000,
                "log_level": 0,
            }
        )
        self._consumer.subscribe(
            list(settings.topics),
            on_assign=self._assigned,
            on_revoke=self._revoked,
            on_lost=self._lost,
        )

    def _generation(self) -> int:
        facts = self._consumer.consumer_group_metadata()
        (number,) = struct.unpack_from("<i", facts, _GENERATION_AT)
        return int(number)

    def _hold(self, partitions: Iterable[TopicPartition]) -> None:
        self._diary.assigned(self._consumer.memberid(), self._generation(), partitions)

    def _assigned(self, _: object, found: list[confluent_kafka.TopicPartition]) -> None:
        self._hold(_places(found) | (self._diary.held if self._is_cooperative else set()))

    def _revoked(self, _: object, found: list[confluent_kafka.TopicPartition]) -> None:
        self._commit()
        self._hold(self._diary.held - _places(found))

    def _lost(self, _: object, found: list[confluent_kafka.TopicPartition]) -> None:
        self._hold(self._diary.held - _places(found))

    def _commit(self) -> None:
        if not self._diary.pending:
            return
        offsets = [
            confluent_kafka.TopicPartition(*place, offset)
            for place, offset in self._diary.commit_begins(self._generation()).items()
        ]
        errors: dict[TopicPartition, str | None]
        try:
            done = self._consumer.commit(offsets=offsets, asynchronous=False)
        except confluent_kafka.KafkaException as error:
            errors = dict.fromkeys(_places(offsets), str(error))
        else:
            errors = {
                (each.topic, each.partition): str(each.error) if each.error else None
                for each in done
            }
        self._diary.commit_ends(self._generation(), errors)

    def run(self, stop: threading.Event) -> None:
        while not stop.is_set():
            message = self._consumer.poll(POLL_MS / 1000)
            if message is not None and message.error() is None:
                topic, partition, offset = message.topic(), message.partition(), message.offset()
                assert topic is not None and partition is not None and offset is not None
                self._diary.processed((topic, partition), [offset])
            if message is None or self._diary.is_due:
                self._commit()
        self._consumer.close()


def _places(found: Iterable[confluent_kafka.TopicPartition]) -> set[TopicPartition]:
    return {(each.topic, each.partition) for each in found}


def confluent_member(settings: MemberSettings, diary: Diary, stop: threading.Event) -> None:
    _Confluent(settings, diary).run(stop)


class _KafkaPythonListener(kafka.ConsumerRebalanceListener):  # type: ignore[misc]
    def __init__(self, member: _KafkaPython) -> None:
        self._member = member

    def on_partitions_revoked(self, revoked: Iterable[Any]) -> None:
        self._member.commit()
        self._member.hold(self._member.diary.held - {tuple(each) for each in revoked})

    def on_partitions_lost(self, lost: Iterable[Any]) -> None:
        self._member.hold(self._member.diary.held - {tuple(each) for each in lost})

    def on_partitions_assigned(self, assigned: Iterable[Any]) -> None:
        new = {tuple(each) for each in assigned}
        self._member.hold(new | (self._member.diary.held if self._member.is_cooperative else set()))


class _KafkaPython:
    STRATEGIES: Final[Mapping[str, type]] = {
        "range": kafka.coordinator.assignors.range.RangePartitionAssignor,
        "cooperative-sticky": (
            kafka.coordinator.assignors.cooperative_sticky.CooperativeStickyAssignor
        ),
    }

    def __init__(self, settings: MemberSettings, diary: Diary) -> None:
        self.diary = diary
        self.is_cooperative = settings.strategy.startswith("cooperative")
        self.consumer = kafka.KafkaConsumer(
            bootstrap_servers=settings.bootstrap.split(","),
            client_id=settings.client,
            group_id=settings.group,
            group_instance_id=settings.instance or None,
            partition_assignment_strategy=(self.STRATEGIES[settings.strategy],),
            session_timeout_ms=settings.session_ms,
            heartbeat_interval_ms=settings.heartbeat_ms,
            request_timeout_ms=8_000,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            fetch_max_wait_ms=50,
            reconnect_backoff_max_ms=500,
            metadata_max_age_ms=1_000,
        )
        self.consumer.subscribe(list(settings.topics), listener=_KafkaPythonListener(self))

    def hold(self, partitions: Iterable[TopicPartition]) -> None:
        facts = self.consumer.group_metadata()
        self.diary.assigned(facts.member_id, facts.generation_id, partitions)

    def commit(self) -> None:
        if not self.diary.pending:
            return
        offsets = self.diary.commit_begins(self.consumer.group_metadata().generation_id)
        error: str | None = None
        try:
            self.consumer.commit(
                {
                    kafka.TopicPartition(*place): kafka.structs.OffsetAndMetadata(offset, "", -1)
                    for place, offset in offsets.items()
                }
            )
        except kafka.errors.KafkaError as refused:
            error = repr(refused)
        generation = self.consumer.group_metadata().generation_id
        self.diary.commit_ends(generation, dict.fromkeys(offsets, error))

    def run(self, stop: threading.Event) -> None:
        while not stop.is_set():
            for place, records in polled(self.consumer).items():
                self.diary.processed(
                    (place.topic, place.partition), [record.offset for record in records]
                )
            self.commit()
        self.consumer.close()


def kafka_python_member(settings: MemberSettings, diary: Diary, stop: threading.Event) -> None:
    _KafkaPython(settings, diary).run(stop)


class _AioKafka(aiokafka.ConsumerRebalanceListener):  # type: ignore[misc]
    """A member of aiokafka. Its rebalances run concurrently with the reads: records are processed
    under a lock that a revocation takes, too, and records fetched before a rebalance are read
    again.
    """

    STRATEGIES: Final[Mapping[str, type]] = {
        "range": aiokafka.coordinator.assignors.range.RangePartitionAssignor,
        "roundrobin": aiokafka.coordinator.assignors.roundrobin.RoundRobinPartitionAssignor,
    }

    def __init__(self, settings: MemberSettings, diary: Diary) -> None:
        self._settings = settings
        self._diary = diary
        self._lock = asyncio.Lock()
        self._turn = 0
        self._consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=settings.bootstrap,
            client_id=settings.client,
            group_id=settings.group,
            group_instance_id=settings.instance or None,
            partition_assignment_strategy=(self.STRATEGIES[settings.strategy],),
            session_timeout_ms=settings.session_ms,
            heartbeat_interval_ms=settings.heartbeat_ms,
            request_timeout_ms=8_000,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            fetch_max_wait_ms=50,
            metadata_max_age_ms=1_000,
        )

    def _hold(self, partitions: Iterable[TopicPartition]) -> None:
        facts = self._consumer._coordinator
        self._diary.assigned(facts.member_id, facts.generation, partitions)

    async def on_partitions_revoked(self, revoked: Iterable[Any]) -> None:
        async with self._lock:
            self._turn += 1
            await self._commit()
            self._hold(())

    async def on_partitions_assigned(self, assigned: Iterable[Any]) -> None:
        self._turn += 1
        self._hold((each.topic, each.partition) for each in assigned)

    async def _commit(self) -> None:
        if not self._diary.pending:
            return
        coordinator = self._consumer._coordinator
        offsets = self._diary.commit_begins(coordinator.generation)
        error: str | None = None
        try:
            await self._consumer.commit(
                {aiokafka.TopicPartition(*place): offset for place, offset in offsets.items()}
            )
        except aiokafka.errors.KafkaError as refused:
            error = repr(refused)
        self._diary.commit_ends(coordinator.generation, dict.fromkeys(offsets, error))

    async def run(self, stop: asyncio.Event) -> None:
        await self._consumer.start()
        self._consumer.subscribe(list(self._settings.topics), listener=self)
        while not stop.is_set():
            turn = self._turn
            found = await self._consumer.getmany(timeout_ms=POLL_MS)
            async with self._lock:
                if turn != self._turn:
                    await self._read_again(found)
                    continue
                for place, records in found.items():
                    self._diary.processed(
                        (place.topic, place.partition), [record.offset for record in records]
                    )
                await self._commit()
        await self._consumer.stop()

    async def _read_again(self, places: Iterable[aiokafka.TopicPartition]) -> None:
        """Read again from the committed offsets. `seek_to_committed` ignores partitions without a
        committed offset.
        """
        for place in places:
            if (place.topic, place.partition) in self._diary.held:
                offset = await self._consumer.committed(place)
                if offset is None:
                    await self._consumer.seek_to_beginning(place)
                else:
                    self._consumer.seek(place, offset)


class _Own:
    def __init__(self, settings: MemberSettings, diary: Diary) -> None:
        self._settings = settings
        self._diary = diary
        self._consumer = pybroker.client.Consumer(
            settings.bootstrap,
            client_id=settings.client,
            group_id=settings.group,
            partition_assignment_strategy=settings.strategy,
            session_timeout_ms=settings.session_ms,
            heartbeat_interval_ms=settings.heartbeat_ms,
            request_timeout_ms=8_000,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            fetch_max_wait_ms=50,
            socket_connection_setup_timeout_ms=2_000,
            reconnect_backoff_max_ms=500,
            metadata_max_age_ms=1_000,
            group_instance_id=settings.instance or None,
        )

    @property
    def _identity(self) -> Any:
        assert self._consumer._group is not None
        return self._consumer._group._member.identity

    def _hold(self, partitions: Iterable[TopicPartition]) -> None:
        identity = self._identity
        self._diary.assigned(identity.member_id, identity.generation, partitions)

    def _assigned(self, found: Iterable[pybroker.client.TopicPartition]) -> None:
        self._hold(self._diary.held | {(each.topic, each.partition) for each in found})

    async def _revoked(self, found: Iterable[pybroker.client.TopicPartition]) -> None:
        await self._commit()
        self._hold(self._diary.held - {(each.topic, each.partition) for each in found})

    def _lost(self, found: Iterable[pybroker.client.TopicPartition]) -> None:
        self._hold(self._diary.held - {(each.topic, each.partition) for each in found})

    async def _commit(self) -> None:
        if not self._diary.pending:
            return
        offsets = self._diary.commit_begins(self._identity.generation)
        error: str | None = None
        try:
            await self._consumer.commit(
                {pybroker.client.TopicPartition(*place): at for place, at in offsets.items()}
            )
        except ClientError as refused:
            error = repr(refused)
        self._diary.commit_ends(self._identity.generation, dict.fromkeys(offsets, error))

    async def run(self, stop: asyncio.Event) -> None:
        async with self._consumer:
            self._consumer.subscribe(
                self._settings.topics,
                on_assigned=self._assigned,
                on_revoked=self._revoked,
                on_lost=self._lost,
            )
            while not stop.is_set():
                for place, records in (await self._consumer.getmany(timeout_ms=POLL_MS)).items():
                    self._diary.processed(
                        (place.topic, place.partition), [record.offset for record in records]
                    )
                await self._commit()


def _async_member(
    make: Callable[[MemberSettings, Diary], _AioKafka | _Own],
) -> Callable[[MemberSettings, Diary, threading.Event], None]:
    def run(settings: MemberSettings, diary: Diary, stop: threading.Event) -> None:
        async def live() -> None:
            ended = asyncio.Event()
            loop = asyncio.get_running_loop()

            def pass_on() -> None:
                stop.wait()
                loop.call_soon_threadsafe(ended.set)

            threading.Thread(target=pass_on, daemon=True).start()
            await make(settings, diary).run(ended)

        asyncio.run(live())

    return run


LIBRARIES: Final[Mapping[str, Callable[[MemberSettings, Diary, threading.Event], None]]] = {
    "confluent-kafka": confluent_member,
    "kafka-python": kafka_python_member,
    "aiokafka": _async_member(_AioKafka),
    "pybroker": _async_member(_Own),
}


def main() -> int:
    settings = decode(sys.argv[1])
    said = settings.ops_folder / f"member-{settings.client}.log"
    logging.basicConfig(
        filename=said, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s"
    )
    stop = threading.Event()

    def listen() -> None:
        sys.stdin.readline()
        stop.set()

    threading.Thread(target=listen, daemon=True).start()
    LIBRARIES[settings.library](settings, Diary(settings), stop)
    print("left", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
