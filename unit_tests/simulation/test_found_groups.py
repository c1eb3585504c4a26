"""What the simulation has found in groups of consumers, as `test_found.py` has it of the rest."""

from __future__ import annotations

import asyncio

import pytest

from pybroker.client import Admin, Consumer, NewTopic, TopicPartition
from pybroker.testing.simulation import Simulation

PARTITIONS = {TopicPartition("orders", number) for number in range(3)}


class Members:
    """Two static members of a cooperative group. `dies`: who is at work, without an end, on what it
    has to give back."""

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
        """For ever."""

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
                await consumer.getmany(100)
                self.held[name] = {*consumer.assignment()}


@pytest.mark.parametrize("seed", range(2))
def test_what_a_static_leader_was_giving_back_when_it_died_is_read(seed: int) -> None:
    """It took its predecessor's place, without what that had to give back and nobody had yet; and
    only the predecessor, the leader, knew that a rebalance had to follow."""
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
