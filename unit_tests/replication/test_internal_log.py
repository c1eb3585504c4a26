"""Conformance tests for each `PartitionLog`: the product's over real replicas, and the one in
memory for the tests of coordinators. Then follow tests that need real replicas."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Protocol

import pytest

from pybroker.coordinator.runtime.shard import StoredRecord
from pybroker.errors import BrokerError, ErrorCode
from pybroker.model import TopicPartition
from pybroker.ports import KeyValue, PartitionLog, Producer
from pybroker.records.batch import NO_SEQUENCE, iter_headers, read_header
from pybroker.records.compression import Codec
from pybroker.replication.authority import Authority
from pybroker.replication.internal_log import InternalLog, Verify, unverified
from pybroker.replication.leader_state import FollowerFetch
from pybroker.replication.partition import Partition
from pybroker.storage.log_config import LogConfig
from unit_tests.coordinator.runtime.vocabulary import (
    TOPIC,
    MemoryPartitionLog,
    stored_in,
)
from unit_tests.handlers.bench import NOW_MS, ImmediateBlocking
from unit_tests.idle_loop import idle
from unit_tests.patience import in_time
from unit_tests.replication.vocabulary import ME, Replicas, facts

P0 = TopicPartition(TOPIC, 0)
OTHER = 2


class Subject(Protocol):
    """A log under test, and the events that a test causes."""

    log: PartitionLog

    async def start(self) -> None: ...

    async def followers_catch_up(self) -> None: ...

    async def lead_on(self) -> None:
        """Lead in the next leader epoch."""

    async def depose(self) -> None: ...


class OnReplicas:
    """A log over real replicas; broker ME leads, and OTHER follows."""

    def __init__(self, home: Path) -> None:
        self.replicas = Replicas(home, LogConfig(min_insync_replicas=2))
        self.epoch = 0
        self.is_stored = True
        """Whether ME is the leader in ZooKeeper."""
        self.asked = 0

    async def _lead_now(self, partitions: Sequence[Partition]) -> Collection[TopicPartition]:
        self.asked += 1
        return [each.topic_partition for each in partitions if self.is_stored]

    async def start(self) -> None:
        await self._told(leader=ME)
        self.log: PartitionLog = self.open()

    def open(
        self,
        codec: Codec = Codec.NONE,
        look: Callable[[], None] = lambda: None,
        verify: Verify = unverified,
    ) -> InternalLog:
        return InternalLog(
            self.replicas.manager,
            P0,
            blocking=ImmediateBlocking(),
            lead_now=self._lead_now,
            codec=codec,
            look=look,
            verify=verify,
        )

    async def followers_catch_up(self) -> None:
        partition = self.replicas.partition(P0)
        fetch = FollowerFetch(OTHER, partition.log.log_end_offset, 0)
        self.replicas.manager.follower_fetched(partition, fetch, 0.0)

    async def lead_on(self) -> None:
        self.epoch += 1
        await self._told(leader=ME)

    async def depose(self) -> None:
        self.epoch += 1
        await self._told(leader=OTHER)

    async def _told(self, *, leader: int, isr: tuple[int, ...] = (ME, OTHER)) -> None:
        told = facts(P0, leader=leader, epoch=self.epoch, isr=isr, replicas=(ME, OTHER))
        assert await self.replicas.told(told) == [ErrorCode.NONE]

    async def shrink(self) -> None:
        self.epoch += 1
        await self._told(leader=ME, isr=(ME,))


class InMemory:
    def __init__(self) -> None:
        self.memory = MemoryPartitionLog()
        self.memory.holds = True
        self.log: PartitionLog = self.memory

    async def start(self) -> None:
        """Make ME the leader."""

    async def followers_catch_up(self) -> None:
        self.memory.commit()

    async def lead_on(self) -> None:
        self.memory.raise_epoch()

    async def depose(self) -> None:
        self.memory.depose()


@pytest.fixture(params=["replicas", "memory"])
async def subject(request: pytest.FixtureRequest, tmp_path: Path) -> Subject:
    made: Subject = OnReplicas(tmp_path) if request.param == "replicas" else InMemory()
    await made.start()
    return made


async def refusal(subject: Subject) -> ErrorCode:
    try:
        subject.log.append([KeyValue(b"k", b"v")], NOW_MS)
    except BrokerError as error:
        return error.code
    return ErrorCode.NONE


async def test_records_appended_together_are_one_batch_and_are_read_back(subject: Subject) -> None:
    log = subject.log
    assert (log.topic_partition, log.leader_epoch) == (P0, 0)
    assert (log.start_offset, log.end_offset, log.high_watermark) == (0, 0, 0)
    assert log.append([KeyValue(b"a", b"1"), KeyValue(b"b", None)], NOW_MS) == 2
    assert log.append([KeyValue(b"c", b"3")], NOW_MS + 1) == 3
    assert log.end_offset == 3
    data = b"".join(await log.read(0, 10_000))
    headers = [header for _, header in iter_headers(data)]
    assert [(each.base_offset, each.record_count) for each in headers] == [(0, 2), (2, 1)]
    stored = [
        (each.offset, each.timestamp, each.key, each.value)
        for position, header in iter_headers(data)
        for each in stored_in(data[position : position + header.size])
        if isinstance(each, StoredRecord)
    ]
    assert stored == [
        (0, NOW_MS, b"a", b"1"),
        (1, NOW_MS, b"b", None),
        (2, NOW_MS + 1, b"c", b"3"),
    ]


async def test_a_read_begins_with_the_batch_that_contains_the_offset(subject: Subject) -> None:
    log = subject.log
    for _ in range(3):
        log.append([KeyValue(b"a", b"1"), KeyValue(b"b", b"2")], NOW_MS)
    for offset in (2, 3):
        assert read_header((await log.read(offset, 1))[0]).base_offset == 2
    assert await log.read(6, 1) == []


async def test_commits_wait_for_the_followers(subject: Subject) -> None:
    end = subject.log.append([KeyValue(b"a", b"1")], NOW_MS)
    waiting = asyncio.ensure_future(subject.log.committed(end))
    await idle()
    assert not waiting.done() and subject.log.high_watermark == 0
    await subject.followers_catch_up()
    await waiting
    assert subject.log.high_watermark == end
    await subject.log.committed(end)


async def test_the_log_stays_valid_in_the_next_epoch_of_the_same_leader(subject: Subject) -> None:
    end = subject.log.append([KeyValue(b"a", b"1")], NOW_MS)
    waiting = asyncio.ensure_future(subject.log.committed(end))
    await idle()
    await subject.lead_on()
    assert subject.log.leader_epoch == 1
    assert subject.log.append([KeyValue(b"b", b"1")], NOW_MS) == 2
    await subject.followers_catch_up()
    await waiting


async def test_the_log_ends_when_another_broker_leads(subject: Subject) -> None:
    end = subject.log.append([KeyValue(b"a", b"1")], NOW_MS)
    waiting = asyncio.ensure_future(subject.log.committed(end))
    await idle()
    await subject.depose()
    for call in (waiting, subject.log.committed(end), subject.log.read(0, 1)):
        with pytest.raises(BrokerError, match="NOT_LEADER_OR_FOLLOWER"):
            await call
    assert await refusal(subject) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert subject.log.end_offset == 1


async def test_more_than_a_batch_may_hold_is_refused(subject: Subject) -> None:
    with pytest.raises(BrokerError, match="MESSAGE_TOO_LARGE"):
        subject.log.append([KeyValue(b"k", bytes(1024**2 + 100))], NOW_MS)
    assert subject.log.end_offset == 0


async def test_records_of_a_transaction_are_a_batch_without_sequences(subject: Subject) -> None:
    log = subject.log
    producer = await log.verified("tx", Producer(7, 3))
    assert (producer.producer_id, producer.epoch) == (7, 3)
    for number in range(3):
        assert log.append([KeyValue(b"a", b"1")], NOW_MS, producer) == number + 1
    for data in await log.read(0, 10_000):
        for position, header in iter_headers(data):
            assert header.is_transactional and not header.is_control
            assert (header.producer_id, header.producer_epoch) == (7, 3)
            assert header.base_sequence == NO_SEQUENCE
            (stored,) = stored_in(data[position : position + header.size])
            assert isinstance(stored, StoredRecord)
            assert (stored.producer_id, stored.producer_epoch) == (7, 3)


# over real replicas only


async def test_a_replaced_producer_appends_nothing(real: OnReplicas) -> None:
    real.log.append([KeyValue(b"a", b"1")], NOW_MS, await real.log.verified("tx", Producer(7, 3)))
    with pytest.raises(BrokerError, match="INVALID_PRODUCER_EPOCH"):
        real.log.append(
            [KeyValue(b"a", b"1")], NOW_MS, await real.log.verified("tx", Producer(7, 2))
        )
    assert real.log.end_offset == 1


async def test_the_verification_gives_the_guard(real: OnReplicas) -> None:
    asked = []

    async def verify(partition: Partition, transactional_id: str, producer: Producer) -> object:
        asked.append((partition.topic_partition, transactional_id, producer))
        if producer.epoch:
            raise BrokerError(ErrorCode.INVALID_TXN_STATE, "the test refuses the producer")
        return "guard"

    log = real.open(verify=verify)
    assert await log.verified("tx", Producer(7, 0)) == Producer(7, 0, "guard")
    with pytest.raises(BrokerError, match="INVALID_TXN_STATE"):
        await log.verified("tx", Producer(7, 1))
    assert asked == [(P0, "tx", Producer(7, 0)), (P0, "tx", Producer(7, 1))]
    await real.depose()
    with pytest.raises(BrokerError, match="NOT_LEADER_OR_FOLLOWER"):
        await log.verified("tx", Producer(7, 0))


@pytest.fixture
async def real(tmp_path: Path) -> OnReplicas:
    made = OnReplicas(tmp_path)
    await made.start()
    return made


async def test_a_log_ends_with_its_leadership_although_the_broker_leads_again(
    real: OnReplicas,
) -> None:
    await real.depose()
    await real.lead_on()
    assert await refusal(real) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert real.open().append([KeyValue(b"k", b"v")], NOW_MS) == 1


async def test_a_log_ends_when_its_topic_is_recreated(real: OnReplicas) -> None:
    assert await real.replicas.stopped(P0, delete=True) is ErrorCode.NONE
    real.epoch = -1
    await real.lead_on()
    assert await refusal(real) is ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_too_few_replicas_in_sync(real: OnReplicas) -> None:
    await real.shrink()
    assert await refusal(real) is ErrorCode.NOT_ENOUGH_REPLICAS
    assert real.log.end_offset == 0


async def test_a_paused_broker_checks_its_lease_before_it_appends(real: OnReplicas) -> None:
    """After the pause a timer may fire before a request has updated the lease."""

    def look() -> None:
        real.replicas.manager.lease = Authority.NOTHING

    real.log = real.open(look=look)
    assert await refusal(real) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert real.log.end_offset == 0


async def test_without_zookeeper_only_an_unreplicated_partition_may_be_led(
    real: OnReplicas,
) -> None:
    log = real.open()
    assert log.has_zookeeper_lease
    real.replicas.manager.lease = Authority.COMMITTED
    assert not log.has_zookeeper_lease
    await real.shrink()
    assert not log.has_zookeeper_lease
    alone = facts(P0, epoch=real.epoch + 1, isr=(ME,))
    assert await real.replicas.told(alone) == [ErrorCode.NONE]
    assert log.has_zookeeper_lease
    real.replicas.manager.lease = Authority.NOTHING
    assert not log.has_zookeeper_lease


async def test_a_leader_without_fetches_of_its_followers_asks_zookeeper_who_leads(
    real: OnReplicas,
) -> None:
    """The controller may have elected one of them without reaching this broker."""
    log, clock = real.open(), real.replicas.clock
    await real.followers_catch_up()
    assert await log.is_led_now()
    assert not real.asked
    clock.advance(real.replicas.manager.lag_max_s + 1)
    assert await log.is_led_now()
    assert real.asked >= 1
    real.is_stored = False
    assert not await log.is_led_now()
    assert log.has_zookeeper_lease


async def test_a_leader_is_certain_while_its_followers_fetch(real: OnReplicas) -> None:
    log, clock = real.open(), real.replicas.clock
    assert log.has_leader_lease
    clock.advance(real.replicas.manager.lag_max_s + 1)
    assert not log.has_leader_lease
    partition = real.replicas.partition(P0)
    for _ in range(2):  # a fetch is sent after the one before was answered
        fetch = FollowerFetch(OTHER, 0, 0)
        real.replicas.manager.follower_fetched(partition, fetch, clock.monotonic())
    assert log.has_leader_lease
    real.replicas.manager.lease = Authority.COMMITTED
    assert not log.has_leader_lease
    real.replicas.manager.lease = Authority.ALL
    real.replicas.manager.leadership_yield.add(P0, "its disk is full")
    assert not log.has_leader_lease
    assert not real.asked


async def test_a_new_leader_waits_until_all_in_sync_replicas_follow_it(real: OnReplicas) -> None:
    """One of the in-sync replicas may be the previous leader, and not know yet that it is
    deposed."""
    waiting = asyncio.ensure_future(real.log.followed())
    await idle()
    assert not waiting.done()
    await real.followers_catch_up()
    await in_time(waiting)
    await real.lead_on()
    again = asyncio.ensure_future(real.log.followed())
    await idle()
    assert not again.done()
    await real.shrink()
    await in_time(again)


async def test_a_deposed_leader_stops_waiting_for_followers(real: OnReplicas) -> None:
    waiting = asyncio.ensure_future(real.log.followed())
    await idle()
    await real.depose()
    with pytest.raises(BrokerError) as caught:
        await in_time(waiting)
    assert caught.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_a_yielding_leader_asks_zookeeper_who_leads(real: OnReplicas) -> None:
    log = real.open()
    await real.followers_catch_up()
    real.replicas.manager.leadership_yield.add(P0, "its disk is full")
    assert await log.is_led_now()
    assert real.asked == 1
    real.is_stored = False
    assert not await log.is_led_now()


async def test_a_leader_that_read_of_its_successor_writes_nothing(real: OnReplicas) -> None:
    real.replicas.partition(P0).superseded(is_replaced=True)
    assert not real.log.has_zookeeper_lease
    assert await refusal(real) is ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_batches_of_a_coordinator_have_the_configured_codec(real: OnReplicas) -> None:
    real.open(Codec.GZIP).append([KeyValue(b"k", b"v")], NOW_MS)
    assert read_header((await real.log.read(0, 1))[0]).codec == Codec.GZIP


async def test_followers_and_readers_are_woken(real: OnReplicas) -> None:
    manager = real.replicas.manager
    follower = asyncio.ensure_future(
        manager.replica_fetches.wait([P0], missing_bytes=1, timeout_s=60)
    )
    reader = asyncio.ensure_future(manager.fetches.wait([P0], missing_bytes=1, timeout_s=60))
    await idle()
    real.log.append([KeyValue(b"k", b"v")], NOW_MS)
    await follower
    assert not reader.done()
    await real.followers_catch_up()
    await reader


async def test_an_append_that_no_request_awaits_wakes_no_follower(real: OnReplicas) -> None:
    fetches = real.replicas.manager.replica_fetches
    follower = asyncio.ensure_future(fetches.wait([P0], missing_bytes=1, timeout_s=60))
    await idle()
    real.log.append([KeyValue(b"k", b"v")], NOW_MS, is_awaited=False)
    await idle()
    assert not follower.done()
    real.log.append([KeyValue(b"k", b"v")], NOW_MS)
    await follower


async def test_other_replicas_count_even_if_they_are_not_in_sync(real: OnReplicas) -> None:
    """The other replicas may join soon: a leader that was just elected alone waits for its
    followers."""
    assert real.log.has_other_copies
    await real.shrink()
    assert real.log.has_other_copies


async def test_a_damaged_batch_is_reported_to_the_scrubber(real: OnReplicas) -> None:
    suspected: list[tuple[TopicPartition, int]] = []
    real.replicas.manager.on_suspicion = lambda key, offset: suspected.append((key, offset))
    real.log.append([KeyValue(b"k", b"v")], NOW_MS)
    real.log.append([KeyValue(b"k", b"v")], NOW_MS)
    segment = next((real.replicas.home / str(P0)).glob("*.log"))
    data = bytearray(segment.read_bytes())
    data[16] = 9  # the magic of the first batch
    segment.write_bytes(data)
    with pytest.raises(BrokerError, match="CORRUPT_MESSAGE"):
        await real.log.read(0, 1000)
    assert suspected == [(P0, 0)]
