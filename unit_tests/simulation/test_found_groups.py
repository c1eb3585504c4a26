"""Tests of bugs with consumer groups that the simulation has found. `test_found.py` has other
bugs."""

from __future__ import annotations

import asyncio
from typing import TypeVar

import pytest

from pybroker.client import Admin, CommittedOffset, Consumer, NewTopic, TopicPartition
from pybroker.client.connection import Connection
from pybroker.errors import ErrorCode
from pybroker.testing.simulation import ZOOKEEPER, Simulation
from pybroker.testing.simulation.view import controller_of, is_healthy, stored_states
from pybroker.wire.api import ApiKey
from pybroker.wire.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from pybroker.wire.schema import Message

A = TypeVar("A", bound=Message)

PARTITIONS = {TopicPartition("orders", number) for number in range(3)}


class Members:
    """Two static members of a cooperative group. The member `dies` is processing records of a
    partition that it must revoke, and does not finish.
    """

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.held: dict[str, set[TopicPartition]] = {}
        self.dies: str | None = None
        self.gives_back: set[TopicPartition] = set()

    async def create(self) -> None:
        async with Admin(self.bootstrap) as admin:
            for result in await admin.create_topics([NewTopic("orders", len(PARTITIONS), 3)]):
                result.check()

    async def read(self, name: str) -> None:
        """Read endlessly."""

        async def revoked(gone: list[TopicPartition]) -> None:
            if self.dies == name:
                self.gives_back = {*gone}
                await asyncio.Event().wait()

        consumer = Consumer(
            self.bootstrap,
            group_id="g",
            group_instance_id=name,
            partition_assignment_strategy="cooperative-sticky",
            session_timeout_ms=10_000,
        )
        consumer.subscribe(["orders"], on_revoked=revoked)
        async with consumer:
            while True:
                await consumer.getmany(timeout_ms=100)
                self.held[name] = {*consumer.assignment()}


@pytest.mark.parametrize("seed", range(2))
def test_a_partition_being_revoked_by_a_killed_static_leader_is_read(seed: int) -> None:
    """The new process replaced the dead static member, but not with the partition that the dead
    member had to revoke, and that no other member had yet. Only the dead member, the group leader,
    knew that another rebalance had to follow.
    """
    with Simulation(seed) as simulation:
        members = Members(simulation.bootstrap)
        simulation.run(members.create)
        one = simulation.start(members.read, "one")
        simulation.wait(lambda: members.held.get("one") == PARTITIONS)
        members.dies = "one"
        two = simulation.start(members.read, "two")
        simulation.wait(lambda: bool(members.gives_back))
        one.kill()
        members.dies = None
        members.held.clear()
        one.start()
        simulation.wait(lambda: set().union(*members.held.values()) == PARTITIONS)
        assert one.is_running and two.is_running


COORDINATION = TopicPartition("__consumer_offsets", 0)
ORDERS = TopicPartition("orders", 0)


async def commit(bootstrap: str, offset: int) -> None:
    async with Admin(bootstrap) as admin:
        (error,) = (await admin.alter_offsets("g", {ORDERS: CommittedOffset(offset)})).values()
    assert error is None


async def prefer(bootstrap: str) -> None:
    async with Admin(bootstrap) as admin:
        await admin.elect_leaders(partitions=[COORDINATION])


async def ask(
    bootstrap: str, broker: int, key: ApiKey, request: Message, answer: type[A], version: int
) -> A:
    """Send a request to that broker, whether or not it coordinates the group."""
    port = int(bootstrap.split(",")[0].rpartition(":")[2])
    connection = await Connection.open(f"broker-{broker}", port, client_id="x", timeout_s=5)
    try:
        return await connection.send(key, request, answer, timeout_s=5, version=version)
    finally:
        await connection.close()


async def committed(bootstrap: str, broker: int) -> tuple[int, list[int]]:
    """Return the broker's error code, or the committed offsets."""
    request = OffsetFetchRequest(group_id="g", topics=None)
    answer = await ask(bootstrap, broker, ApiKey.OFFSET_FETCH, request, OffsetFetchResponse, 5)
    rows = answer.topics[0].partitions if answer.topics else []
    return answer.error_code, [row.committed_offset for row in rows]


async def commit_at(bootstrap: str, broker: int, offset: int) -> None:
    partition = OffsetCommitRequestPartition(
        partition_index=ORDERS.partition, committed_offset=offset, committed_metadata=""
    )
    topic = OffsetCommitRequestTopic(name=ORDERS.topic, partitions=[partition])
    request = OffsetCommitRequest(group_id="g", member_id="", topics=[topic])
    while True:
        answer = await ask(
            bootstrap, broker, ApiKey.OFFSET_COMMIT, request, OffsetCommitResponse, 5
        )
        if not answer.topics[0].partitions[0].error_code:
            return
        await asyncio.sleep(0.05)


def lead_out_of_reach(simulation: Simulation) -> tuple[int, int]:
    """Cut a coordinator that is not the preferred leader off from the controller. Return the
    coordinator and the preferred leader.
    """
    cluster = simulation.cluster
    preferred = simulation.leader(*COORDINATION)
    for _ in range(6):
        leader, controller = simulation.leader(*COORDINATION), controller_of(cluster)
        if controller is not None and leader not in (preferred, controller.id):
            simulation.cut(leader, [controller.id])
            return leader, preferred
        simulation.stop(leader)
        simulation.start_broker(leader)
        simulation.wait(lambda: is_healthy(cluster))
    raise AssertionError(
        "no coordinator was found that is neither the controller nor the preferred leader"
    )


@pytest.mark.parametrize("seed", range(3))
def test_a_replaced_coordinator_does_not_answer_for_committed_offsets(
    seed: int,
) -> None:
    """The followers of the old coordinator's partition had all records, and no more offsets were
    committed there. The old coordinator answered as long as its session might still have been
    alive.
    """
    config = {
        "offsets.topic.num.partitions": 1,
        "offsets.storage": "kafka",
        "replica.lag.time.max.ms": 500,
    }
    with Simulation(seed, config=config) as simulation:
        simulation.run(Members(simulation.bootstrap).create)
        simulation.wait(lambda: is_healthy(simulation.cluster))
        simulation.run(commit, simulation.bootstrap, 1)
        leader, preferred = lead_out_of_reach(simulation)
        assert simulation.run(committed, simulation.bootstrap, leader) == (0, [1])
        simulation.run(prefer, simulation.bootstrap)
        assert stored_states(simulation.cluster)[COORDINATION].leader == preferred
        simulation.cut(leader, [ZOOKEEPER])
        simulation.run(commit_at, simulation.bootstrap, preferred, 2)
        told = simulation.run(committed, simulation.bootstrap, leader)
        assert told == (ErrorCode.NOT_COORDINATOR, [])
