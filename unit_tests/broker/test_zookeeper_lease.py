"""Tests of the requests that a broker answers while it is cut off from ZooKeeper, and after a
pause of its process."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest

from pybroker.broker.zookeeper_lease import ZooKeeperLease
from pybroker.clock import ManualClock
from pybroker.coordinator.zookeeper import paths
from pybroker.coordinator.zookeeper.schemas import encode_state
from pybroker.errors import CloseConnection, ErrorCode
from pybroker.model import (
    NO_TOPIC_ID,
    LeaderAndIsr,
    PartitionFacts,
    PartitionState,
    TopicPartition,
)
from pybroker.peers.local_channel import LocalBrokerChannel
from pybroker.ports import SessionEvent
from pybroker.records.compression import Codec
from pybroker.replication.authority import Authority
from pybroker.replication.leader_state import FollowerFetch
from pybroker.wire.api import ApiKey
from pybroker.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from pybroker.wire.messages.topics import CreatableTopic, CreateTopicsRequest
from unit_tests.handlers.bench import (
    BROKER_ID,
    NOW_MS,
    Bench,
    batch,
    code,
    produce_request,
    values_of,
)
from unit_tests.idle_loop import idle

SESSION_S = 18.0
NOT_LEADER = ErrorCode.NOT_LEADER_OR_FOLLOWER


class Setting:
    """A ZooKeeperLease with a clock and a session that the test controls."""

    def __init__(self, *, fences: bool = False) -> None:
        self.clock = ManualClock(0)
        self.heard_at = 0.0
        self.registered = self.knows_roles = True
        self.levels: list[Authority] = []
        self.lease = ZooKeeperLease(
            clock=self.clock,
            silence=lambda: self.clock.boottime() - self.heard_at,
            session_s=lambda: SESSION_S,
            is_registered=lambda: self.registered,
            knows_roles=lambda: self.knows_roles,
            fences=fences,
            changed=self.levels.append,
        )
        self.lease._beat_at = self.clock.boottime()
        self.hear()

    def hear(self) -> None:
        self.heard_at = self.clock.boottime()
        self.lease.look()

    def ask(self) -> Authority:
        """Return the level of authority that a request finds, before any timer runs."""
        self.lease.check()
        return self.lease.level

    def run(self, seconds: float, *, hears: bool) -> None:
        """Let time pass while the timer of the lease runs."""
        for _ in range(round(seconds * 2)):
            self.clock.advance(0.5)
            if hears:
                self.heard_at = self.clock.boottime()
            self.lease.look()

    def pause(self, seconds: float) -> None:
        """Let time pass while the process is stopped."""
        self.clock.advance(seconds)


def test_a_broker_with_a_valid_lease_answers_everything() -> None:
    setting = Setting()
    setting.run(100, hears=True)
    assert setting.ask() is Authority.ALL
    assert setting.levels == []


@pytest.mark.parametrize(
    ("fences", "level"), [(False, Authority.COMMITTED), (True, Authority.NOTHING)]
)
def test_the_lease_expires_after_two_thirds_of_the_session_timeout(
    fences: bool, level: Authority
) -> None:
    setting = Setting(fences=fences)
    setting.run(12, hears=False)
    assert setting.ask() is Authority.ALL
    setting.run(0.5, hears=False)
    assert setting.ask() is level
    setting.run(100, hears=False)
    assert setting.ask() is level
    setting.hear()
    assert setting.ask() is Authority.ALL
    assert setting.levels == [level, Authority.ALL]


def test_the_first_request_finds_the_lease_expired_before_any_timer() -> None:
    setting = Setting()
    setting.pause(12.1)
    assert setting.ask() is Authority.COMMITTED


def test_after_a_pause_longer_than_the_session_nothing_is_answered() -> None:
    setting = Setting()
    setting.pause(18.1)
    assert setting.ask() is Authority.NOTHING
    setting.run(5, hears=False)
    assert setting.ask() is Authority.NOTHING
    setting.hear()
    assert setting.ask() is Authority.ALL


def test_a_zookeeper_answer_requested_before_the_pause_does_not_renew_the_lease() -> None:
    setting = Setting()
    setting.clock.advance(1)
    sent_before = setting.clock.boottime()
    setting.pause(20)
    setting.heard_at = sent_before
    assert setting.ask() is Authority.NOTHING


def test_a_timer_that_runs_before_the_first_request_does_not_hide_the_pause() -> None:
    setting = Setting()
    setting.pause(60)
    setting.lease.look()
    setting.clock.advance(1)
    assert setting.ask() is Authority.NOTHING


def test_after_a_pause_and_session_expiry_nothing_is_answered_before_new_roles() -> None:
    setting = Setting()
    setting.pause(60)
    assert setting.ask() is Authority.NOTHING
    setting.registered = setting.knows_roles = False
    setting.hear()
    assert (setting.ask(), setting.lease.is_valid) == (Authority.NOTHING, False)
    setting.registered = True
    setting.hear()
    assert (setting.ask(), setting.lease.is_valid) == (Authority.NOTHING, True)
    setting.knows_roles = True
    assert setting.ask() is Authority.ALL


def test_waiting_for_the_first_roles_logs_no_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    setting = Setting()
    setting.knows_roles = False
    with caplog.at_level(logging.INFO):
        setting.hear()
    assert [(each.levelname, "roles_known=no" in each.message) for each in caplog.records] == [
        ("INFO", True)
    ]


def test_after_session_expiry_without_a_pause_committed_records_are_served() -> None:
    setting = Setting()
    setting.registered = setting.knows_roles = False
    setting.lease.look()
    assert setting.ask() is Authority.COMMITTED
    setting.registered = setting.knows_roles = True
    assert setting.ask() is Authority.ALL


# a whole broker


@pytest.fixture
def mode() -> str:
    return "serve"


@pytest.fixture
async def bench(tmp_path: Path, mode: str) -> AsyncIterator[Bench]:
    properties = {"pybroker.zookeeper.loss": mode}
    async with Bench(tmp_path, clock=ManualClock(NOW_MS), properties=properties) as started:
        await started.create("t")
        await started.produce("t", batch(b"a"))
        yield started


def advance(bench: Bench, seconds: float) -> None:
    assert isinstance(bench.clock, ManualClock)
    bench.clock.advance(seconds)


def cut(bench: Bench) -> None:
    """Cut the broker off from ZooKeeper for more than two thirds of a session timeout, while its
    event loop runs. Another broker may lead the topic by then."""
    bench.app.replicas.partition(TopicPartition("t", 0)).is_replicated = True
    bench.coord.suspend()
    for _ in range(13):
        advance(bench, 1)
        bench.app.lease.look()


async def latest(bench: Bench, timestamp: int = -1) -> tuple[ErrorCode, int]:
    partition = ListOffsetsPartition(partition_index=0, timestamp=timestamp)
    request = ListOffsetsRequest(
        replica_id=-1, topics=[ListOffsetsTopic(name="t", partitions=[partition])]
    )
    answer = (await bench.ask(ApiKey.LIST_OFFSETS, 7, request)).topics[0].partitions[0]
    return code(answer), answer.offset


async def created(bench: Bench) -> ErrorCode:
    topic = CreatableTopic(name="new", num_partitions=1, replication_factor=1)
    request = CreateTopicsRequest(topics=[topic], timeout_ms=0)
    return code((await bench.ask(ApiKey.CREATE_TOPICS, 5, request)).topics[0])


async def test_a_cut_off_leader_serves_committed_records(bench: Bench) -> None:
    cut(bench)
    assert values_of(await bench.fetch("t", 0)) == [b"a"]
    assert (await bench.produce("t", batch(b"b"), acks=-1)).base_offset == 1
    assert await latest(bench, -2) == (ErrorCode.NONE, 0)


async def test_a_cut_off_leader_rejects_requests_that_it_would_answer_alone(bench: Bench) -> None:
    cut(bench)
    assert code(await bench.produce("t", batch(b"b"), acks=1)) is NOT_LEADER
    with pytest.raises(CloseConnection):
        await bench.ask(ApiKey.PRODUCE, 9, produce_request("t", {0: batch()}, acks=0))
    assert await latest(bench) == (NOT_LEADER, -1)
    assert await created(bench) is ErrorCode.NOT_CONTROLLER
    bench.coord.resume()
    assert (await bench.produce("t", batch(b"b"), acks=1)).base_offset == 1
    assert await latest(bench) == (ErrorCode.NONE, 2)
    await bench.create("new")


@pytest.mark.parametrize("acks", [0, 1])
async def test_a_leader_cut_off_while_it_decompresses_a_batch_rejects_the_batch(
    bench: Bench, acks: int
) -> None:
    """No timer of the lease has run since the cut."""
    await bench.create("compacted", configs={"cleanup.policy": "compact"})
    partition = bench.app.replicas.partition(TopicPartition("compacted", 0))
    partition.is_replicated = True
    bench.store_epoch("compacted")
    gate = bench.blocking.hold()
    data = batch(b"a", key=b"k", codec=Codec.GZIP)
    request = produce_request("compacted", {0: data}, acks=acks)
    task = asyncio.ensure_future(bench.ask(ApiKey.PRODUCE, 9, request))
    await gate.reached.wait()
    bench.coord.suspend()
    advance(bench, 13)
    gate.open.set()
    if acks:
        assert code((await task).responses[0].partition_responses[0]) is NOT_LEADER
    else:
        with pytest.raises(CloseConnection):
            await task
    assert partition.log.log_end_offset == 0


async def test_a_cut_off_leader_does_not_claim_that_a_later_record_is_missing(bench: Bench) -> None:
    cut(bench)
    assert await latest(bench, NOW_MS - 1) == (ErrorCode.NONE, 0)
    assert await latest(bench, NOW_MS + 1_000_000) == (NOT_LEADER, -1)
    bench.coord.resume()
    assert await latest(bench, NOW_MS + 1_000_000) == (ErrorCode.NONE, -1)


async def test_a_fetch_beyond_the_end_of_a_cut_off_leader_is_not_out_of_range(bench: Bench) -> None:
    """After OFFSET_OUT_OF_RANGE a consumer would reset its offset, and commit the new offset."""
    cut(bench)
    assert code(await bench.fetch("t", 1)) is ErrorCode.NONE
    assert code(await bench.fetch("t", 2)) is NOT_LEADER
    assert code(await bench.fetch("t", -1)) is ErrorCode.OFFSET_OUT_OF_RANGE
    bench.coord.resume()
    assert code(await bench.fetch("t", 2)) is ErrorCode.OFFSET_OUT_OF_RANGE


async def test_a_cut_off_broker_serves_partitions_without_another_replica(bench: Bench) -> None:
    cut(bench)
    bench.app.replicas.partition(TopicPartition("t", 0)).is_replicated = False
    assert (await bench.produce("t", batch(b"b"), acks=1)).base_offset == 1
    assert await latest(bench) == (ErrorCode.NONE, 2)


async def test_the_lease_is_checked_at_a_session_event(bench: Bench) -> None:
    seen: dict[SessionEvent, bool] = {}
    heard = asyncio.Event()

    def listener(event: SessionEvent) -> None:
        seen[event] = bench.app.replicas.lease is Authority.ALL
        if event is SessionEvent.CONNECTED:
            heard.set()

    bench.coord.add_listener(listener)
    assert bench.app.replicas.lease is Authority.ALL
    bench.coord.expire()
    await heard.wait()
    assert not seen[SessionEvent.EXPIRED]


async def test_a_leader_that_reads_its_successor_in_zookeeper_acknowledges_nothing_alone(
    bench: Bench,
) -> None:
    """The controller may be unable to reach the leader for a long time."""
    partition = bench.app.replicas.partition(TopicPartition("t", 0))
    partition.superseded(is_replaced=False)
    assert (await bench.produce("t", batch(b"b"), acks=1)).base_offset == 1
    assert await latest(bench) == (ErrorCode.NONE, 2)
    partition.superseded(is_replaced=True)
    assert code(await bench.produce("t", batch(b"c"), acks=1)) is NOT_LEADER
    assert await latest(bench) == (NOT_LEADER, -1)
    assert values_of(await bench.fetch("t", 0)) == [b"a", b"b"]


async def test_no_end_is_returned_while_an_in_sync_follower_may_lead(bench: Bench) -> None:
    """The follower no longer fetches, and ZooKeeper does not confirm the leader."""
    replicas, key = bench.app.replicas, TopicPartition("t", 0)
    replicas.lag_max_s = 5
    partition = replicas.partition(key)
    state = PartitionState(BROKER_ID, 1, (BROKER_ID, 2), bench.app.controller.epoch)
    facts = PartitionFacts(key, partition.topic_id or NO_TOPIC_ID, state, 1, (BROKER_ID, 2))
    command = LeaderAndIsr(BROKER_ID, bench.app.controller.epoch, -1, (facts,))
    await replicas.leader_and_isr(command)

    def follow() -> None:
        replicas.follower_fetched(partition, FollowerFetch(2, 1, 0), bench.clock.monotonic())

    follow()
    advance(bench, 5)
    assert await latest(bench) == (ErrorCode.NONE, 1)
    advance(bench, 1)
    assert bench.app.replicas.lease is Authority.ALL
    assert await latest(bench) == (NOT_LEADER, -1)
    assert await latest(bench, -3) == (NOT_LEADER, -1)
    assert code(await bench.fetch("t", 2)) is NOT_LEADER
    assert values_of(await bench.fetch("t", 0)) == [b"a"]
    follow()
    assert await latest(bench) == (NOT_LEADER, -1)
    follow()
    assert await latest(bench) == (ErrorCode.NONE, 1)
    assert code(await bench.fetch("t", 2)) is ErrorCode.OFFSET_OUT_OF_RANGE


async def test_a_leader_that_asked_to_be_replaced_asks_zookeeper_before_it_returns_an_end(
    bench: Bench,
) -> None:
    """The controller counts this leader as failed, so the next leader does not wait for it. This
    leader continues until the controller's command arrives. It still returns its log end if it is
    the only replica, or if ZooKeeper confirms that it leads."""
    replicas, key = bench.app.replicas, TopicPartition("t", 0)
    replicas.lag_max_s = 5
    partition = replicas.partition(key)
    replicas.leadership_yield.add(key, "log directory /data is full")
    assert await latest(bench) == (ErrorCode.NONE, 1)
    assert await latest(bench, NOW_MS + 1_000_000) == (ErrorCode.NONE, -1)
    path = paths.partition_state(key)
    data, stat = await bench.coord.get(path)
    state = PartitionState(BROKER_ID, 1, (BROKER_ID, 2), bench.app.controller.epoch)
    stat = await bench.coord.set(path, encode_state(state, data), stat.version)
    facts = PartitionFacts(
        key, partition.topic_id or NO_TOPIC_ID, state, stat.version, (BROKER_ID, 2)
    )
    command = LeaderAndIsr(BROKER_ID, bench.app.controller.epoch, -1, (facts,))
    await replicas.leader_and_isr(command)
    replicas.follower_fetched(partition, FollowerFetch(2, 1, 0), bench.clock.monotonic())
    assert await latest(bench) == (ErrorCode.NONE, 1)
    assert await latest(bench, NOW_MS + 1_000_000) == (ErrorCode.NONE, -1)
    assert code(await bench.fetch("t", 2)) is NOT_LEADER
    successor = PartitionState(2, 2, (2,), bench.app.controller.epoch)
    await bench.coord.set(path, encode_state(successor, data), stat.version)
    assert partition.is_leader
    assert await latest(bench) == (NOT_LEADER, -1)
    assert await latest(bench, NOW_MS + 1_000_000) == (NOT_LEADER, -1)
    replicas.leadership_yield.remove(key)
    assert await latest(bench) == (NOT_LEADER, -1)
    advance(bench, 2 * replicas.lag_max_s + 1)
    for _ in range(2):  # the follower would not fetch here after a replacement
        replicas.follower_fetched(partition, FollowerFetch(2, 1, 0), bench.clock.monotonic())
    assert await latest(bench) == (ErrorCode.NONE, 1)


async def test_a_leader_that_received_its_successor_returns_no_end(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader has received the command that names the next leader. It may still wait for a slow
    disk before it becomes a follower."""
    replicas, key = bench.app.replicas, TopicPartition("t", 0)
    partition, turn = replicas.partition(key), asyncio.Event()
    obey = replicas.leader_and_isr

    async def obey_later(command: LeaderAndIsr) -> Mapping[TopicPartition, ErrorCode]:
        await turn.wait()
        return await obey(command)

    monkeypatch.setattr(replicas, "leader_and_isr", obey_later)
    state = PartitionState(leader=2, leader_epoch=1, isr=(2,), controller_epoch=1)
    facts = PartitionFacts(key, partition.topic_id or NO_TOPIC_ID, state, 1, (1, 2))
    channel = LocalBrokerChannel(replicas, bench.app.metadata)
    telling = asyncio.create_task(channel.leader_and_isr(LeaderAndIsr(2, 99, -1, (facts,))))
    await idle()
    assert partition.is_leader
    assert await latest(bench) == (NOT_LEADER, -1)
    turn.set()
    assert await telling == {key: ErrorCode.NONE}
    assert not partition.is_leader


@pytest.mark.parametrize("mode", ["fence"])
async def test_a_cut_off_broker_with_loss_fence_answers_nothing(bench: Bench) -> None:
    cut(bench)
    await answers_nothing(bench)
    bench.coord.resume()
    assert (await bench.produce("t", batch(b"b"))).base_offset == 1


async def test_the_first_request_after_a_long_pause_is_not_answered(bench: Bench) -> None:
    bench.coord.suspend()
    advance(bench, 30)
    await answers_nothing(bench)
    bench.coord.resume()
    assert (await bench.produce("t", batch(b"b"))).base_offset == 1


async def answers_nothing(bench: Bench) -> None:
    for acks in (1, -1):
        assert code(await bench.produce("t", batch(b"b"), acks=acks)) is NOT_LEADER
    assert code(await bench.fetch("t", 0)) is NOT_LEADER
    assert await latest(bench) == (NOT_LEADER, -1)
    assert await latest(bench, -2) == (NOT_LEADER, -1)
