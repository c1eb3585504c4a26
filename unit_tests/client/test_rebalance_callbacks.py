"""Tests of the rebalance callbacks and listeners of a subscription."""

from __future__ import annotations

import asyncio

import pytest

from pybroker.client.groups.topics import RebalanceListener
from pybroker.model import TopicPartition
from unit_tests.client.group_readers import a_group, first, join, member, tp
from unit_tests.client.held_logs import batch, holding
from unit_tests.patience import PATIENCE_S


async def test_callbacks_may_seek_and_their_errors_are_raised() -> None:
    async with a_group(t=1) as group, member(group) as consumer:
        holding(group.broker.partition(), batch(b"a", b"b", b"c"))
        group.committed[tp(0)] = 1

        def on_assigned(partitions: list[TopicPartition]) -> None:
            consumer.seek(partitions[0], 2)
            raise LookupError("mine")

        consumer.subscribe(["t"], on_assigned=on_assigned)
        with pytest.raises(LookupError, match="mine"):
            await join(consumer)
        assert await first(consumer) == b"c", "the group goes on"


class Listener(RebalanceListener):
    """A listener with a plain and an async method. `calls` has the calls in order."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, list[TopicPartition]]] = []

    def on_assigned(self, partitions: list[TopicPartition]) -> None:
        self.calls.append(("assigned", partitions))

    async def on_revoked(self, partitions: list[TopicPartition]) -> None:
        self.calls.append(("revoked", partitions))


async def test_a_listener_is_called_as_callbacks_are() -> None:
    listener = Listener()
    async with a_group(t=2) as group, member(group) as consumer:
        with pytest.raises(ValueError, match="both a listener and callbacks"):
            consumer.subscribe(["t"], listener=listener, on_lost=lambda _: None)
        assert not consumer.subscription()
        consumer.subscribe(["t"], listener=listener)
        await join(consumer)
        assert listener.calls == [("assigned", [tp(0), tp(1)])]
        await consumer.unsubscribe()
        assert listener.calls[1:] == [("revoked", [tp(0), tp(1)])]


async def test_a_listener_without_on_lost_gets_lost_partitions_as_revoked() -> None:
    listener = Listener()
    outcome = listener.on_lost([tp(0)])
    assert outcome is not None
    await outcome
    assert listener.calls == [("revoked", [tp(0)])]
    assert RebalanceListener().on_lost([tp(0)]) is None


async def test_a_callback_may_leave_the_group() -> None:
    async with a_group(t=1) as group, member(group) as consumer:

        async def on_assigned(_: list[TopicPartition]) -> None:
            await consumer.unsubscribe()

        consumer.subscribe(["t"], on_assigned=on_assigned)
        async with asyncio.timeout(PATIENCE_S):
            while consumer.subscription():
                await consumer.getmany(timeout_ms=20)
        assert not consumer.assignment() and not group.members
