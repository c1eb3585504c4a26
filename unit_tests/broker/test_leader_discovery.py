"""Tests that a broker learns the leaders from other brokers while ZooKeeper does not answer it."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from pybroker.broker import leader_discovery
from pybroker.broker.leader_discovery import LeaderDiscovery
from pybroker.clock import ManualClock
from pybroker.errors import ErrorCode
from pybroker.model import (
    Broker,
    Endpoint,
    LeaderAndIsr,
    PartitionFacts,
    PartitionState,
    TopicPartition,
    UpdateMetadata,
)
from pybroker.replication.authority import Authority
from pybroker.replication.leader_state import FollowerFetch
from pybroker.wire.api import ApiKey
from pybroker.wire.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from unit_tests.handlers.bench import BROKER_ID, NOW_MS, Bench, batch, code, values_of
from unit_tests.idle_loop import idle
from unit_tests.patience import until

OTHER, THIRD, NEWCOMER = BROKER_ID + 1, BROKER_ID + 2, BROKER_ID + 3
T0 = TopicPartition("t", 0)
IDS = {name: uuid.UUID(int=ord(name)) for name in "uvw"}
NOT_LEADER = ErrorCode.NOT_LEADER_OR_FOLLOWER


class Neighbours:
    """Two other brokers that `bench` has in its metadata, and their answers about topic t."""

    def __init__(self, bench: Bench, clock: ManualClock) -> None:
        self.bench = bench
        self.clock = clock
        self.leader, self.leader_epoch = OTHER, self.epoch + 1
        self.controller = OTHER
        self.topic_id = bench.app.metadata.topics["t"].topic_id
        self.asked: list[tuple[int, Sequence[str]]] = []
        self.silent: set[int] = set()
        self.patience_s = 0.0
        """How long a request to a silent neighbour takes."""
        view = bench.app.metadata
        brokers = [view.brokers[BROKER_ID]]
        brokers += [Broker(each, (Endpoint("PLAINTEXT", "h", each),)) for each in (OTHER, THIRD)]
        controller = bench.app.controller
        view.apply(UpdateMetadata(BROKER_ID, controller.epoch, -1, (), tuple(brokers)))
        self.discovery = LeaderDiscovery(
            broker_id=BROKER_ID,
            metadata=view,
            replicas=bench.app.replicas,
            ask=self.ask,
            session_s=0.0,
            clock=clock,
        )

    @property
    def epoch(self) -> int:
        """The leader epoch of t-0 on the broker."""
        return self.bench.app.replicas.partition(T0).leader_epoch

    async def ask(self, neighbour: Broker, names: Sequence[str]) -> MetadataResponse:
        self.asked.append((neighbour.id, names))
        if neighbour.id in self.silent:
            self.clock.advance(self.patience_s)
            raise OSError("no answer")
        row = MetadataResponsePartition(
            partition_index=0,
            leader_id=self.leader,
            leader_epoch=self.leader_epoch,
            isr_nodes=[self.leader],
        )
        topic = MetadataResponseTopic(name="t", topic_id=self.topic_id, partitions=[row])
        return MetadataResponse(controller_id=self.controller, topics=[topic])

    async def lead(self, leader_epoch: int) -> None:
        """Make the broker the leader in that epoch, with another broker in sync, without an
        UpdateMetadata."""
        replicas, epoch = self.bench.app.replicas, self.bench.app.controller.epoch
        state = PartitionState(BROKER_ID, leader_epoch, (BROKER_ID, OTHER), epoch)
        facts = PartitionFacts(T0, self.topic_id, state, 1, (BROKER_ID, OTHER))
        await replicas.leader_and_isr(LeaderAndIsr(BROKER_ID, epoch, -1, (facts,)))
        self.leader_epoch = leader_epoch + 1

    async def rounds(self, count: int = 2, level: Authority = Authority.COMMITTED) -> None:
        """Run discovery with that authority until `count` more requests are sent."""
        self.discovery.start()
        self.discovery.changed(level)
        before = len(self.asked)
        await until(lambda: len(self.asked) >= before + count)
        await self.discovery.stop()

    def leader_for_clients(self) -> int:
        """Return the leader of t-0 in the metadata for clients."""
        return self.bench.app.metadata.topics["t"].partitions[0].state.leader


@pytest.fixture
async def neighbours(tmp_path: Path) -> AsyncIterator[Neighbours]:
    clock = ManualClock(NOW_MS)
    async with Bench(tmp_path, clock=clock) as bench:
        await bench.create("t")
        await bench.produce("t", batch(b"a"))
        yield Neighbours(bench, clock)


async def test_clients_are_sent_to_the_leader_of_a_later_epoch(
    neighbours: Neighbours, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        await neighbours.rounds(4)
    bench = neighbours.bench
    assert neighbours.leader_for_clients() == OTHER
    assert code(await bench.fetch("t", 0)) is NOT_LEADER
    for acks in (1, -1):
        assert code(await bench.produce("t", batch(b"b"), acks=acks)) is NOT_LEADER
    assert bench.app.replicas.partition(T0).log.log_end_offset == 1
    said = [each.getMessage() for each in caplog.records if each.name == leader_discovery.__name__]
    assert len(said) == 1 and "t-0" in said[0] and f"broker-{OTHER}" in said[0]


async def test_a_broker_without_authority_sends_clients_to_the_new_leader(
    neighbours: Neighbours,
) -> None:
    await neighbours.rounds(level=Authority.NOTHING)
    assert neighbours.leader_for_clients() == OTHER


@pytest.mark.parametrize("what", ["same epoch", "earlier epoch", "nobody", "me", "another topic"])
async def test_an_answer_without_a_later_leader_changes_nothing(
    neighbours: Neighbours, what: str
) -> None:
    epochs = {"same epoch": neighbours.epoch, "earlier epoch": neighbours.epoch - 1}
    neighbours.leader_epoch = epochs.get(what, neighbours.leader_epoch)
    neighbours.leader = {"nobody": -1, "me": BROKER_ID}.get(what, OTHER)
    if what == "another topic":
        neighbours.topic_id = uuid.uuid4()
    await neighbours.rounds()
    assert neighbours.leader_for_clients() == BROKER_ID
    assert values_of(await neighbours.bench.fetch("t", 0)) == [b"a"]
    assert (await neighbours.bench.produce("t", batch(b"b"), acks=-1)).base_offset == 1


async def test_a_leader_of_a_later_epoch_ignores_the_answer(neighbours: Neighbours) -> None:
    """The neighbour's answer has an older leader epoch than the controller's command."""
    later = neighbours.epoch + 2
    await neighbours.lead(later)
    neighbours.leader_epoch = later - 1
    await neighbours.rounds()
    assert neighbours.bench.app.replicas.partition(T0).granted is Authority.ALL
    assert values_of(await neighbours.bench.fetch("t", 0)) == [b"a"]


async def test_an_answer_about_a_topic_does_not_apply_to_its_recreation(
    neighbours: Neighbours,
) -> None:
    """The broker has received LeaderAndIsr of the recreated topic, but not UpdateMetadata yet. The
    neighbour's answer is older than both commands."""
    bench = neighbours.bench
    view, controller_epoch = bench.app.metadata, bench.app.controller.epoch
    state = PartitionState(OTHER, neighbours.epoch, (OTHER,), controller_epoch)
    before = PartitionFacts(T0, IDS["u"], state, 0, (OTHER,))
    brokers = tuple(view.brokers.values())
    view.apply(UpdateMetadata(BROKER_ID, controller_epoch, -1, (before,), brokers))
    neighbours.topic_id = IDS["u"]
    await neighbours.rounds()
    assert (await bench.produce("t", batch(b"b"), acks=-1)).base_offset == 1


async def test_neighbours_are_asked_in_turn_and_a_silent_one_is_skipped(
    neighbours: Neighbours,
) -> None:
    neighbours.leader_epoch = neighbours.epoch
    await neighbours.rounds(3)
    assert [who for who, _ in neighbours.asked[:3]] == [OTHER, THIRD, OTHER]
    assert all("t" in names for _, names in neighbours.asked)
    neighbours.silent, neighbours.leader_epoch = {OTHER}, neighbours.epoch + 1
    neighbours.asked.clear()
    await neighbours.rounds(3)
    assert neighbours.leader_for_clients() == OTHER
    assert {who for who, _ in neighbours.asked} == {OTHER, THIRD}


async def test_a_silent_neighbour_does_not_lengthen_the_pause(
    neighbours: Neighbours,
) -> None:
    """The pause between two requests grows with the duration of answered requests. The wait for a
    silent neighbour does not count."""
    neighbours.silent, neighbours.patience_s = {OTHER}, 60.0
    await neighbours.rounds(5)
    assert [who for who, _ in neighbours.asked[:5]] == [OTHER, THIRD, THIRD, OTHER, THIRD]


async def test_an_unknown_broker_does_not_replace_the_leader_in_the_metadata(
    neighbours: Neighbours,
) -> None:
    """The new leader has registered after this broker was cut off, so only the previous leader has
    its address."""
    await neighbours.rounds()
    neighbours.leader, neighbours.leader_epoch = NEWCOMER, neighbours.leader_epoch + 1
    await neighbours.rounds()
    assert neighbours.leader_for_clients() == OTHER
    assert code(await neighbours.bench.fetch("t", 0)) is NOT_LEADER


async def test_an_unknown_leader_of_a_later_epoch_replaces_this_one(
    neighbours: Neighbours,
) -> None:
    neighbours.leader = NEWCOMER
    await neighbours.rounds()
    assert code(await neighbours.bench.produce("t", batch(b"b"), acks=-1)) is NOT_LEADER
    assert values_of(await neighbours.bench.fetch("t", 0)) == [b"a"]


async def test_a_late_command_of_an_earlier_epoch_does_not_restore_the_leader(
    neighbours: Neighbours,
) -> None:
    """The controller had sent the command before the session ended."""
    epoch = neighbours.epoch
    neighbours.leader_epoch = epoch + 2
    await neighbours.rounds()
    await neighbours.lead(epoch + 1)
    await neighbours.rounds()
    assert code(await neighbours.bench.fetch("t", 0)) is NOT_LEADER


async def test_a_broker_with_full_authority_asks_no_neighbour(neighbours: Neighbours) -> None:
    neighbours.discovery.start()
    for level in (Authority.NOTHING, Authority.COMMITTED, Authority.ALL):
        neighbours.discovery.changed(level)
    await idle()
    assert not neighbours.asked
    await neighbours.discovery.stop()
    await neighbours.discovery.stop()


async def test_a_discovery_request_names_a_limited_number_of_partitions(
    neighbours: Neighbours, monkeypatch: pytest.MonkeyPatch
) -> None:
    view, epoch = neighbours.bench.app.metadata, neighbours.bench.app.controller.epoch
    state = PartitionState(OTHER, 0, (OTHER,), epoch)
    others = tuple(
        PartitionFacts(TopicPartition(name, number), IDS[name], state, 0, (OTHER,))
        for name in ("u", "v", "w")
        for number in range(2)
    )
    view.apply(UpdateMetadata(BROKER_ID, epoch, -1, others, tuple(view.brokers.values())))
    monkeypatch.setattr(leader_discovery, "PARTITIONS_PER_REQUEST", 3)
    neighbours.leader_epoch = neighbours.epoch
    await neighbours.rounds(3)
    assert [sorted(names) for _, names in neighbours.asked[:3]] == [
        ["t", "u"],
        ["v", "w"],
        ["t", "u"],
    ]


async def test_a_waiting_producer_gets_not_leader_when_a_new_leader_is_discovered(
    neighbours: Neighbours,
) -> None:
    bench = neighbours.bench
    await neighbours.lead(neighbours.epoch + 1)
    waiting = asyncio.ensure_future(bench.produce("t", batch(b"b"), acks=-1))
    await until(lambda: len(bench.app.replicas.produces))
    await neighbours.rounds()
    assert code(await waiting) is NOT_LEADER


async def test_a_replaced_leader_acknowledges_a_committed_batch(neighbours: Neighbours) -> None:
    """Every later leader keeps a record that all in-sync replicas have."""
    bench = neighbours.bench
    await neighbours.lead(neighbours.epoch + 1)
    waiting = asyncio.ensure_future(bench.produce("t", batch(b"b"), acks=-1))
    await until(lambda: len(bench.app.replicas.produces))
    partition = bench.app.replicas.partition(T0)
    for _ in range(2):
        bench.app.replicas.follower_fetched(partition, FollowerFetch(OTHER, 2, 0), 0.0)
    partition.superseded(is_replaced=True)
    assert (await waiting).base_offset == 1


async def controller_of(bench: Bench) -> int:
    answer: MetadataResponse = await bench.ask(ApiKey.METADATA, 8, MetadataRequest(topics=[]))
    return answer.controller_id


async def test_a_controller_that_is_cut_off_names_its_successor(
    neighbours: Neighbours, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a client that knows only this broker would send CreateTopics to it again and
    again."""
    bench = neighbours.bench
    assert bench.app.controller.controller_id == BROKER_ID
    await neighbours.rounds()
    assert await controller_of(bench) == BROKER_ID, "it is heard, and knows better"
    monkeypatch.setattr(bench.app.lease, "is_valid", False)
    assert await controller_of(bench) == OTHER
    for nobody_else in (BROKER_ID, -1, THIRD + 1):
        neighbours.controller = nobody_else
        await neighbours.rounds()
        assert await controller_of(bench) == OTHER
    view = bench.app.metadata
    update = UpdateMetadata(THIRD, bench.app.controller.epoch, -1, (), tuple(view.brokers.values()))
    view.apply(update)
    assert await controller_of(bench) == BROKER_ID, "the controller speaks again"
