"""Tests of the choice of a broker for metadata requests: a client asks other brokers from time to
time, because one broker's metadata may be outdated."""

from __future__ import annotations

import asyncio
import contextlib
import random
import uuid
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from pybroker.client.backoff import Deadline
from pybroker.client.cluster import Cluster
from pybroker.client.connection import Connection
from pybroker.client.consumer import Consumer
from pybroker.client.errors import Closed
from pybroker.client.metadata import ClusterView, newer, view_of
from pybroker.client.offset_lookup import list_offsets
from pybroker.client.options import ClientOptions, parse_options
from pybroker.errors import ErrorCode
from pybroker.model import NO_TOPIC_ID, TopicPartition
from pybroker.wire.api import ApiKey
from pybroker.wire.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from pybroker.wire.schema import Message
from unit_tests.client.fake_broker import NEVER_ANSWER, FakeBroker
from unit_tests.client.held_logs import QUICK, batch
from unit_tests.idle_loop import LoopClock, idle, loop_turns
from unit_tests.patience import PATIENCE_S

T0 = TopicPartition("t", 0)


def tells(brokers: Sequence[FakeBroker], leader: int, epoch: int) -> Any:
    """Return metadata of the brokers 1, 2, ... in which this broker leads the only partition."""

    def answer(_: Message) -> Message:
        return MetadataResponse(
            brokers=[
                MetadataResponseBroker(node_id=number, host="127.0.0.1", port=broker.port)
                for number, broker in enumerate(brokers, 1)
            ],
            cluster_id="fake",
            controller_id=1,
            topics=[
                MetadataResponseTopic(
                    name="t",
                    partitions=[
                        MetadataResponsePartition(
                            partition_index=0,
                            leader_id=leader,
                            leader_epoch=epoch,
                            replica_nodes=[1, 2, 3],
                            isr_nodes=[1, 2, 3],
                        )
                    ],
                )
            ],
        )

    return answer


def options_for(broker: FakeBroker) -> ClientOptions:
    quick = {name: value for name, value in QUICK.items() if not name.startswith("fetch")}
    return parse_options(ClientOptions, {"bootstrap_servers": broker.address, **quick})


@contextlib.asynccontextmanager
async def three_brokers() -> AsyncIterator[list[FakeBroker]]:
    async with FakeBroker({"t": 1}) as a, FakeBroker({"t": 1}) as b, FakeBroker({"t": 1}) as c:
        brokers = [a, b, c]
        for broker in brokers:
            broker.leader_epoch = 1
            broker.handlers[ApiKey.METADATA] = tells(brokers, leader=1, epoch=1)
        yield brokers


async def test_a_broker_that_is_cut_off_is_not_believed_for_ever() -> None:
    """The isolated broker led the partition. It refuses fetches, and its metadata still names
    itself as the leader."""
    async with three_brokers() as brokers:
        cut_off, successor, _ = brokers
        async with Consumer(cut_off.address, **QUICK, auto_offset_reset="earliest") as consumer:
            cut_off.partition().append(batch(b"a"))
            consumer.assign([T0])
            async with asyncio.timeout(PATIENCE_S):
                assert (await consumer.getone()).value == b"a"
            for broker in brokers[1:]:
                broker.handlers[ApiKey.METADATA] = tells(brokers, leader=2, epoch=2)
                broker.partition().append(batch(b"a"))
            cut_off.partition_faults.extend([ErrorCode.NOT_LEADER_OR_FOLLOWER] * 10_000)
            successor.partition().append(batch(b"b"))
            async with asyncio.timeout(PATIENCE_S):
                assert (await consumer.getone()).value == b"b"


@pytest.mark.parametrize("is_connected", [True, False])
async def test_all_brokers_are_asked_in_turn(is_connected: bool) -> None:
    async with three_brokers() as brokers:
        cluster = Cluster(options_for(brokers[0]), clock=LoopClock(), rng=random.Random(0))
        await cluster.start()
        try:
            cluster.watch(["t"])
            if is_connected:
                for node in (1, 2, 3):
                    await cluster.connection(node)
            for _ in range(9):
                await cluster.refreshed(5)
            counts = [len(broker.requests(MetadataRequest)) for broker in brokers]
            assert min(counts) >= 2, counts
        finally:
            await cluster.close()


async def test_a_broker_that_cannot_be_reached_is_not_tried_with_every_refresh() -> None:
    """An attempt to connect to a machine without power takes long."""
    async with FakeBroker() as gone:
        pass
    attempts: list[int] = []

    async def connect(host: str, port: int, **options: Any) -> Connection:
        attempts.append(port)
        return await Connection.open(host, port, **options)

    async with FakeBroker({"t": 1}) as living:
        living.handlers[ApiKey.METADATA] = tells([living, gone], leader=1, epoch=1)
        cluster = Cluster(
            options_for(living), clock=LoopClock(), rng=random.Random(0), connector=connect
        )
        await cluster.start()
        try:
            for _ in range(9):
                await cluster.refreshed(5)
        finally:
            await cluster.close()
        assert len(living.requests(MetadataRequest)) >= 9
        assert attempts.count(gone.port) == 1


async def test_closing_ends_a_wait_for_metadata() -> None:
    """The wait ends whether or not a request was sent already. No other task is cancelled."""
    async with FakeBroker({"t": 1}) as broker:
        cluster = Cluster(options_for(broker), clock=LoopClock(), rng=random.Random(0))
        await cluster.start()
        asked, behaving = asyncio.Event(), broker.handlers[ApiKey.METADATA]

        async def never(request: Message) -> Message:
            asked.set()
            await asyncio.Event().wait()
            found = behaving(request)
            assert isinstance(found, Message)
            return found

        broker.handlers[ApiKey.METADATA] = never
        waiting = [asyncio.ensure_future(cluster.refreshed(60))]
        async with asyncio.timeout(PATIENCE_S):
            await asked.wait()
            waiting.append(asyncio.ensure_future(cluster.refreshed(60)))
            deadline = Deadline(cluster.clock, 60_000)
            topic = asyncio.ensure_future(cluster.topic("t", deadline))
            await idle()
            await cluster.close()
            for each in (*waiting, topic, cluster.refreshed(60)):
                with pytest.raises(Closed):
                    await each


async def test_closing_ends_a_wait_for_a_leader() -> None:
    """The wait ends at once, not at its time limit, because the closed client sends no more
    requests for a leader."""
    async with FakeBroker({"t": 1}) as broker:
        cluster = Cluster(options_for(broker), clock=LoopClock(), rng=random.Random(0))
        await cluster.start()
        look_up = list_offsets(
            cluster,
            {TopicPartition("t", 7): 0},
            isolation_level="read_uncommitted",
            deadline=Deadline(cluster.clock, 60_000),
        )
        waiting = asyncio.ensure_future(look_up)
        async with asyncio.timeout(PATIENCE_S):
            asked = len(broker.requests(MetadataRequest))
            await broker.until(lambda: len(broker.requests(MetadataRequest)) > asked + 2)
            await cluster.close()
            (answer,) = (await waiting).values()
        assert isinstance(answer.error, Closed)


@pytest.mark.parametrize("turns", [1, 2, 3])
async def test_a_cancelled_close_ends_a_wait_for_metadata(turns: int) -> None:
    async with FakeBroker({"t": 1}) as broker:
        cluster = Cluster(options_for(broker), clock=LoopClock(), rng=random.Random(0))
        await cluster.start()
        broker.will(ApiKey.METADATA, NEVER_ANSWER)
        waiting = [asyncio.ensure_future(cluster.refreshed(60)) for _ in range(2)]
        closing = asyncio.ensure_future(cluster.close())
        await loop_turns(turns)
        closing.cancel()
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.wait([closing])
            for each in waiting:
                with pytest.raises(Closed):
                    await each


ONE, TWO = uuid.UUID(int=1), uuid.UUID(int=2)


def view_with(count: int, epoch: int, topic_id: uuid.UUID, error: int = 0) -> ClusterView:
    partitions = [
        MetadataResponsePartition(partition_index=number, leader_id=1, leader_epoch=epoch)
        for number in range(count)
    ]
    topic = MetadataResponseTopic(
        name="t", topic_id=topic_id, error_code=error, partitions=partitions
    )
    return view_of(MetadataResponse(topics=[topic]))


@pytest.mark.parametrize(
    ("before", "after", "error", "partitions"),
    [
        (ONE, ONE, ErrorCode.NONE, [5, 5, 5]),
        (ONE, TWO, ErrorCode.NONE, [0]),
        (ONE, NO_TOPIC_ID, ErrorCode.NONE, [0]),
        (NO_TOPIC_ID, ONE, ErrorCode.NONE, [0]),
        (NO_TOPIC_ID, NO_TOPIC_ID, ErrorCode.NONE, [5]),
        (ONE, ONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, []),
    ],
    ids=["same", "made anew", "ids end", "ids begin", "no ids", "gone"],
)
def test_only_a_topic_that_is_surely_the_same_keeps_partitions_that_are_not_told(
    before: uuid.UUID, after: uuid.UUID, error: ErrorCode, partitions: list[int]
) -> None:
    told = 0 if error else 1
    view = newer(view_with(3, 5, before), view_with(told, 0, after, error))
    found = view.topics["t"].partitions
    assert [found[number].leader_epoch for number in sorted(found)] == partitions
