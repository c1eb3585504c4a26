"""Tests of the commands for one broker, and their order, when many changes are pending."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping

import pytest

from pybroker.coordinator.controller.channel import Backoff, BrokerSender, PendingWork
from pybroker.errors import BrokerError, ErrorCode
from pybroker.model import (
    LEADER_DURING_DELETION,
    Broker,
    Extent,
    LeaderAndIsr,
    PartitionFacts,
    PartitionState,
    StopReplica,
    StopReplicaPartition,
    TopicPartition,
    UpdateMetadata,
)
from unit_tests.coordinator.controller.cluster import Note, key
from unit_tests.patience import in_time

ONE, TWO = Broker(1, (), epoch=11), Broker(2, (), epoch=12)


def work() -> PendingWork:
    pending = PendingWork(ONE, controller_id=2, controller_epoch=5)
    pending.set_brokers((ONE,))
    assert commands(pending) == ["brokers 1"]
    pending.complete(full_roles=False, full_metadata=False)
    return pending


def commands(pending: PendingWork) -> list[str]:
    """Take all pending commands, as lines in the order in which the broker receives them."""
    lines: list[str] = []
    while (command := pending.take()) is not None:
        assert (command.controller_id, command.controller_epoch, command.broker_epoch) == (2, 5, 11)
        lines.extend(Note(1, command).lines)
    return lines


def facts(name: str, epoch: int, leader: int = 1, *, is_new: bool = False) -> PartitionFacts:
    return PartitionFacts(
        key(name), uuid.UUID(int=1), PartitionState(leader, epoch, (1,), 5), 0, (1,), (), is_new
    )


def removal(name: str) -> StopReplicaPartition:
    return StopReplicaPartition(key(name), LEADER_DURING_DELETION, delete=True)


def test_no_pending_work_gives_no_command() -> None:
    pending = work()
    pending.set_brokers((ONE,))
    assert commands(pending) == []


def test_brokers_first_then_stop_then_lead_then_metadata() -> None:
    pending = work()
    pending.describe(facts("a-0", 1))
    pending.describe(facts("b-0", 1, LEADER_DURING_DELETION))
    pending.lead_or_follow(facts("a-0", 1))
    pending.stop(removal("b-0"))
    pending.set_brokers((ONE, TWO))
    assert commands(pending) == [
        "brokers 1,2",
        "metadata b-0 leader=-2 epoch=1",
        "delete b-0 epoch=-2",
        "lead a-0 leader=1 epoch=1 isr=1",
        "brokers 1,2",
        "metadata a-0 leader=1 epoch=1",
    ]


def test_newer_facts_replace_older_ones() -> None:
    pending = work()
    for epoch in (1, 2, 3):
        pending.lead_or_follow(facts("a-0", epoch, is_new=epoch == 1))
        pending.describe(facts("a-0", epoch))
    assert commands(pending) == [
        "lead a-0 leader=1 epoch=3 isr=1 new",
        "brokers 1",
        "metadata a-0 leader=1 epoch=3",
    ]


def test_a_removal_replaces_a_pending_role() -> None:
    pending = work()
    pending.lead_or_follow(facts("a-0", 1))
    pending.stop(removal("a-0"))
    assert commands(pending) == ["delete a-0 epoch=-2"]


def test_a_recreated_topic_is_removed_first() -> None:
    pending = work()
    pending.stop(removal("a-0"))
    pending.lead_or_follow(facts("a-0", 0, is_new=True))
    assert commands(pending) == ["delete a-0 epoch=-2", "lead a-0 leader=1 epoch=0 isr=1 new"]


def test_a_stop_is_called_off_by_a_newer_state() -> None:
    pending = work()
    pending.stop(StopReplicaPartition(key("a-0"), 1, delete=False))
    pending.lead_or_follow(facts("a-0", 2))
    assert commands(pending) == ["lead a-0 leader=1 epoch=2 isr=1"]


def test_a_failed_command_is_pending_again_unless_a_newer_one_came() -> None:
    pending = work()
    pending.lead_or_follow(facts("a-0", 1))
    pending.lead_or_follow(facts("b-0", 1))
    failed = pending.take()
    assert failed is not None
    pending.lead_or_follow(facts("a-0", 2))
    pending.give_back(failed)
    assert commands(pending) == [
        "lead a-0 leader=1 epoch=2 isr=1",
        "lead b-0 leader=1 epoch=1 isr=1",
    ]


def test_metadata_that_failed_names_the_brokers_again() -> None:
    pending = work()
    pending.set_brokers((ONE, TWO))
    failed = pending.take()
    assert failed is not None
    pending.give_back(failed)
    assert commands(pending) == ["brokers 1,2"]


def test_a_deferred_command_is_dropped_when_a_removal_was_sent_since() -> None:
    pending = work()
    pending.defer(facts("a-0", 1))
    pending.defer(facts("b-0", 1))
    pending.stop(removal("a-0"))
    assert commands(pending) == ["delete a-0 epoch=-2"]
    pending.resume(TopicPartition("a", 0))
    pending.resume(TopicPartition("b", 0))
    assert commands(pending) == ["lead b-0 leader=1 epoch=1 isr=1"]


class Refusing:
    """A channel whose broker refuses the first commands, up to a number."""

    def __init__(self, attempts: int) -> None:
        self.left = attempts
        self.done = asyncio.Event()

    async def close(self) -> None:
        pass

    async def leader_and_isr(self, command: LeaderAndIsr) -> Mapping[TopicPartition, ErrorCode]:
        raise AssertionError(command)

    async def stop_replica(self, command: StopReplica) -> Mapping[TopicPartition, ErrorCode]:
        raise AssertionError(command)

    async def update_metadata(self, command: UpdateMetadata) -> None:
        self.left -= 1
        if self.left < 0:
            self.done.set()
        else:
            raise BrokerError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)


async def test_a_broker_that_refuses_for_long_does_not_fill_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    pending, channel = PendingWork(ONE, controller_id=2, controller_epoch=5), Refusing(100)
    pending.set_brokers((ONE,))
    sender = BrokerSender(ONE, channel, pending, lambda event: None, Backoff(0, 0))
    sender.start()
    sender.wake()
    await in_time(channel.done.wait())
    await sender.close()
    lines = [each for each in caplog.messages if each.startswith("command failed broker=1")]
    assert len(lines) == 8 and "attempt=64" in lines[-1]


def test_pauses_grow_up_to_a_limit() -> None:
    backoff = Backoff(initial_s=0.1, max_s=1.0)
    assert [backoff.pause_s(attempt) for attempt in (0, 1, 2, 3, 4, 99)] == [
        0.1,
        0.2,
        0.4,
        0.8,
        1.0,
        1.0,
    ]


def full_commands(pending: PendingWork) -> list[LeaderAndIsr | UpdateMetadata]:
    """Take all pending commands. Return those with Extent.ALL."""
    commands = []
    while (command := pending.take()) is not None:
        if isinstance(command, LeaderAndIsr | UpdateMetadata) and command.extent is Extent.ALL:
            commands.append(command)
    return commands


def test_roles_and_metadata_wait_until_all_of_them_are_known() -> None:
    pending = PendingWork(ONE, controller_id=2, controller_epoch=5)
    pending.set_brokers((ONE,))
    pending.stop(removal("b-0"))
    pending.lead_or_follow(facts("a-0", 1))
    pending.describe(facts("a-0", 1))
    assert commands(pending) == ["brokers 1", "delete b-0 epoch=-2"]
    pending.lead_or_follow(facts("a-1", 1))
    pending.complete(full_roles=True, full_metadata=True)
    roles, metadata = full_commands(pending)
    assert [str(item.topic_partition) for item in roles.partitions] == ["a-0", "a-1"]
    assert [str(item.topic_partition) for item in metadata.partitions] == ["a-0"]
    pending.lead_or_follow(facts("a-2", 1))
    pending.describe(facts("a-2", 1))
    assert full_commands(pending) == []


def test_a_broker_without_replicas_gets_empty_full_roles() -> None:
    pending = PendingWork(ONE, controller_id=2, controller_epoch=5)
    pending.complete(full_roles=True, full_metadata=True)
    assert [command.partitions for command in full_commands(pending)] == [(), ()]


def test_a_failed_full_command_is_full_again_with_newer_facts() -> None:
    pending = PendingWork(ONE, controller_id=2, controller_epoch=5)
    pending.lead_or_follow(facts("a-0", 1))
    pending.lead_or_follow(facts("a-1", 1))
    pending.complete(full_roles=True, full_metadata=False)
    failed = pending.take()
    assert failed is not None
    pending.stop(removal("a-1"))
    pending.lead_or_follow(facts("a-2", 1))
    pending.give_back(failed)
    (roles,) = full_commands(pending)
    assert sorted(str(item.topic_partition) for item in roles.partitions) == ["a-0", "a-2"]


@pytest.mark.parametrize("moment", ("before all is known", "before it is sent", "under way"))
def test_a_broker_that_keeps_a_replica_without_a_role_gets_no_full_roles(moment: str) -> None:
    """A broker in controlled shutdown follows no leader any more but may still be in an ISR. Full
    roles without those replicas would make the broker treat their logs as left over from deleted
    topics."""
    pending = PendingWork(ONE, controller_id=2, controller_epoch=5)
    stop = StopReplicaPartition(key("a-0"), 1, delete=False)
    pending.lead_or_follow(facts("a-0", 1))
    pending.lead_or_follow(facts("a-1", 1))
    if moment == "before all is known":
        pending.stop(stop)
    pending.complete(full_roles=True, full_metadata=False)
    if moment == "under way":
        failed = pending.take()
        assert failed is not None
        pending.stop(stop)
        pending.give_back(failed)
    elif moment == "before it is sent":
        pending.stop(stop)
    commands = []
    while (command := pending.take()) is not None:
        commands.append(command)
    assert [line for each in commands for line in Note(1, each).lines] == [
        "stop a-0 epoch=1",
        "lead a-1 leader=1 epoch=1 isr=1",
    ]
    assert [each.extent for each in commands if isinstance(each, LeaderAndIsr)] == [Extent.SOME]
