"""Tests that a controller's connections end together with their brokers, and none of them delays
the controller's resignation."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pybroker.coordinator.controller.channel import Backoff, BrokerSender, PendingWork
from pybroker.model import Broker, PartitionFacts, PartitionState, TopicPartition
from pybroker.peers.broker_channel import PARTITIONS_MAX, RemoteBrokerChannel
from pybroker.ports import BrokerChannel
from unit_tests.coordinator.controller.cluster import Cluster
from unit_tests.handlers.bench import Bench
from unit_tests.patience import until
from unit_tests.peers.test_broker_channel import Receiver, channel_to

RESTARTS = 20


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    made = Cluster()
    await made.prepare()
    yield made
    await made.close()


@pytest.fixture
async def receiver(tmp_path: Path) -> AsyncIterator[Receiver]:
    async with Bench(tmp_path) as bench:
        made = Receiver(bench)
        await made.start()
        yield made
        await made.stop()


async def test_a_broker_that_joins_and_leaves_leaves_no_connection(
    cluster: Cluster, receiver: Receiver
) -> None:
    def channel(broker: Broker) -> BrokerChannel:
        return channel_to(Broker(broker.id, receiver.broker.endpoints, epoch=broker.epoch))

    cluster.channels = channel
    first = await cluster.member(1)
    for number in range(RESTARTS):
        second = await cluster.member(2)
        await until(lambda: receiver.open == 2)
        receiver.told.commands.clear()
        await cluster.create(f"topic-{number}", {0: (2,)})  # pending or being sent when it dies
        await second.kill()
        await until(lambda: receiver.open == 1)
    assert receiver.accepted == RESTARTS + 1
    await first.controller.stop()
    await until(lambda: receiver.open == 0)


@pytest.mark.parametrize("answers", [0, 1])
async def test_close_does_not_wait_for_a_broker_that_reads_nothing(
    receiver: Receiver,
    answers: int,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The broker is stopped by a signal: before it has answered ApiVersions, or while it is sent
    more than the socket buffers hold."""
    monkeypatch.setattr("pybroker.coordinator.controller.channel.CLOSE_LIMIT_S", 30.0)
    receiver.answers_max = answers
    channel = channel_to(receiver.broker)
    work = PendingWork(receiver.broker, controller_id=1, controller_epoch=1)
    for number in range(PARTITIONS_MAX):
        work.lead_or_follow(huge(number))
    work.complete(full_roles=False, full_metadata=False)
    sender = BrokerSender(receiver.broker, channel, work, lambda event: None, Backoff())
    sender.start()
    await until(lambda: receiver.open == 1 and (answers == 0 or unsent(channel) > 0))
    await sender.close()
    assert "channel not closed" not in caplog.text
    receiver.cut()
    await until(lambda: receiver.open == 0)


@pytest.mark.parametrize("busy", [False, True])
async def test_a_channel_closes_even_if_each_loop_turn_exceeds_the_limit(
    receiver: Receiver,
    busy: bool,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a slow disk each write may block the event loop, so the limit expires although the channel
    has not run. A limit of 0 s expires at each turn."""
    monkeypatch.setattr("pybroker.coordinator.controller.channel.CLOSE_LIMIT_S", 0.0)
    work = PendingWork(receiver.broker, controller_id=1, controller_epoch=1)
    work.set_brokers((receiver.broker,))
    channel = channel_to(receiver.broker)
    sender = BrokerSender(receiver.broker, channel, work, lambda event: None, Backoff())
    sender.start()
    await until(lambda: len(receiver.told.commands) == 1)
    if busy:
        work.set_brokers(())
        sender.wake()
    await sender.close()
    assert "channel not closed" not in caplog.text
    await until(lambda: receiver.open == 0)


def huge(number: int) -> PartitionFacts:
    """Return facts of a partition that take about 8 KiB in a request."""
    return PartitionFacts(
        TopicPartition("a", number),
        uuid.UUID(int=7),
        PartitionState(2, 0, (2,), 1),
        partition_epoch=0,
        replicas=tuple(range(2000)),
    )


def unsent(channel: RemoteBrokerChannel) -> int:
    """Return how many bytes a channel has written that the system has not accepted yet."""
    connection = channel._connection
    return 0 if connection is None else connection._writer.transport.get_write_buffer_size()
