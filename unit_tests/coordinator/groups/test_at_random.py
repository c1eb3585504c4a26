"""Tests with random clients, faults and failovers, checked against invariants:

- all members of a generation get the same assignment: no partition has two owners, not even across
  coordinators;
- a generation never gets a second assignment;
- the next coordinator of a Stable group has the same group;
- every request gets an answer.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from typing import Any

import pytest

from pybroker.config.broker_config import BrokerConfig
from pybroker.coordinator.groups.calls import Identity, Join, Joined, Sync, Synced
from pybroker.coordinator.groups.coordinator import GroupCoordinator
from pybroker.coordinator.groups.dependencies import GroupDependencies, UnmirroredGroups
from pybroker.coordinator.groups.group import Group, from_record
from pybroker.coordinator.groups.records import RecordedGroup, decode_group_value
from pybroker.coordinator.groups.states import GroupState
from pybroker.errors import BrokerError, ErrorCode
from unit_tests.coordinator.groups.memory_offsets import MemoryOffsets
from unit_tests.coordinator.runtime.vocabulary import MemoryShard
from unit_tests.idle_loop import idle

GROUP = "g"
SEEDS = 12
STEPS = 300
PARTITIONS = 6
LONGEST_S = 400.0
"""A time longer than any deadline of a group, in seconds."""
OPTIONS = BrokerConfig(group_max_size=5)
SETS = (("range", "sticky"), ("sticky", "range"), ("sticky",))


class Client:
    """A random client, which may ignore the answers that it gets."""

    def __init__(self, name: str, instance: str | None) -> None:
        self.name = name
        self.instance = instance
        self.member_id = ""
        self.generation = -1
        self.members: tuple[str, ...] = ()
        self.leads = False
        self.wants = "join"
        """The next request of a client that follows the protocol."""


class World:
    """One group, its clients, and their answers."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.clients = [
            Client(f"c{number}", f"s{number}" if number < 2 else None) for number in range(6)
        ]
        self.shard = MemoryShard(seed=seed)
        self.coordinator = self._host()
        self.owners: dict[tuple[int, str], str] = {}
        """(generation, partition) -> the client that got the partition."""
        self.waiting: set[asyncio.Task[None]] = set()
        self.answered = 0
        self.synced = 0

    def _host(self) -> GroupCoordinator:
        return self.shard.host(
            lambda context: GroupCoordinator(
                context, MemoryOffsets(), UnmirroredGroups(), GroupDependencies(OPTIONS)
            )
        )

    @property
    def group(self) -> Group | None:
        return self.coordinator._groups.get(GROUP)

    # what clients do

    async def join(self, client: Client) -> None:
        call = Join(
            member_id=client.member_id if self.random.random() < 0.95 else "",
            session_timeout_ms=self.random.choice((6_000, 10_000, 40_000)),
            rebalance_timeout_ms=self.random.choice((3_000, 20_000, 60_000)),
            protocol_type="consumer",
            protocols=tuple(
                (name, self.random.choice((b"", b"more"))) for name in self.random.choice(SETS)
            ),
            instance_id=client.instance,
            client_id=client.name,
            requires_known_id=client.instance is None and self.random.random() < 0.5,
        )
        client.wants = "nothing"
        try:
            joined = await self.coordinator.join(GROUP, call)
        except BrokerError as error:
            joined = Joined(error.code, call.member_id)
        self.answered += 1
        client.wants = "join"
        if joined.error in (ErrorCode.NONE, ErrorCode.MEMBER_ID_REQUIRED):
            client.member_id = joined.member_id
        elif joined.error is ErrorCode.UNKNOWN_MEMBER_ID:
            client.member_id = ""
        if joined.error is ErrorCode.NONE:
            client.wants = "sync"
            client.generation = joined.generation
            client.members = tuple(each.member_id for each in joined.members)
            client.leads = joined.leader == joined.member_id

    async def sync(self, client: Client) -> None:
        generation, member_id = client.generation, client.member_id
        shares: dict[str, list[str]] = {}
        if client.leads and client.members:
            for partition in range(PARTITIONS):
                shares.setdefault(self.random.choice(client.members), []).append(str(partition))
        call = Sync(
            member_id=member_id,
            generation=generation,
            instance_id=client.instance,
            assignments={to: ",".join(given).encode() for to, given in shares.items()},
        )
        client.wants = "nothing"
        try:
            synced = await self.coordinator.sync(GROUP, call)
        except BrokerError as error:
            synced = Synced(error.code)
        self.answered += 1
        client.wants = "beat" if synced.error is ErrorCode.NONE else "join"
        if synced.error is ErrorCode.NONE:
            self.synced += 1
            self._owns(client.instance or member_id, generation, synced.assignment)

    def _owns(self, owner: str, generation: int, assignment: bytes) -> None:
        for partition in assignment.decode().split(",") if assignment else ():
            other = self.owners.setdefault((generation, partition), owner)
            assert other == owner, f"{partition} of generation {generation}: {other} and {owner}"

    # what happens

    async def step(self) -> None:
        client = self.random.choice(self.clients)
        who = Identity(client.member_id, client.instance)
        chosen = self.random.choices(
            ("wanted", "join", "sync", "beat", "commit", "leave", "wait", "fault", "delete"),
            (80, 1, 1, 1, 3, 0.5, 10, 2, 0.5),
        )[0]
        match client.wants if chosen == "wanted" else chosen:
            case "join":
                self._begin(self.join(client))
            case "sync":
                self._begin(self.sync(client))
            case "beat":
                code = self.coordinator.heartbeat(GROUP, who, client.generation)
                client.wants = "beat" if code is ErrorCode.NONE else "join"
            case "commit":
                self.coordinator.may_commit(GROUP, who, client.generation)
            case "leave":
                self.leave(who)
            case "wait":
                self.shard.advance(self.random.choice((0.5, 1.0, 3.0)))
            case "fault":
                await self.fault()
            case "delete":
                self._begin(self.delete())
        if self.shard.log.holds and self.random.random() < 0.1:
            self.release()
        if self.random.random() < 0.8:
            await self.settle()

    def leave(self, who: Identity) -> None:
        try:
            self.coordinator.leave(GROUP, [who])
        except BrokerError as error:
            assert error.code is ErrorCode.COORDINATOR_NOT_AVAILABLE

    async def delete(self) -> None:
        """Delete the group. The deletion may fail, also because of a failover."""
        try:
            await self.coordinator.delete(GROUP)
        except BrokerError as error:
            assert error.code in (
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
                ErrorCode.NOT_COORDINATOR,
            )
        else:
            if self.group is None:
                self.owners.clear()  # a new group of this id starts with generation 1 again

    async def fault(self) -> None:
        match self.random.choice(("hold", "hold", "refuse", "fail over", "lose")):
            case "hold":
                self.shard.log.holds = True
            case "refuse":
                self.shard.log.refuse(ErrorCode.NOT_ENOUGH_REPLICAS)
            case "fail over":
                await self.fail_over(keeps_uncommitted=True)
            case "lose":
                await self.fail_over(keeps_uncommitted=False)

    def release(self) -> None:
        self.shard.log.holds = False
        self.shard.log.commit()

    async def fail_over(self, *, keeps_uncommitted: bool) -> None:
        self.shard = self.shard.fail_over(keeps_uncommitted=keeps_uncommitted)
        self.coordinator = self._host()
        await self.settle()
        await self.shard.load()

    async def settle(self) -> None:
        await idle()
        self.waiting = {task for task in self.waiting if not self._is_done(task)}

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        self.waiting.add(asyncio.ensure_future(work))

    def _is_done(self, task: asyncio.Task[None]) -> bool:
        if task.done():
            task.result()
        return task.done()

    # what must hold

    def check(self) -> None:
        group = self.group
        if group is None:
            return
        assert (group.leader is None) == (not group.members)
        assert group.leader is None or group.leader in group.members
        assert not group.pending.keys() & group.members.keys()
        assert group.owes_sync <= group.members.keys()
        assert group.static == {
            member.instance_id: member_id
            for member_id, member in group.members.items()
            if member.instance_id is not None
        }
        if group.state is not GroupState.PREPARING_REBALANCE:  # late members leave at its end
            assert len(group.members) - len(group.static) <= OPTIONS.group_max_size
        if group.state is GroupState.EMPTY:
            assert not group.members
        if group.state is not GroupState.COMPLETING_REBALANCE:
            assert not any(member.sync for member in group.members.values())
        if group.state is GroupState.STABLE and not self.shard.log.holds:
            again = from_record(GROUP, self.last_record(), 0.0)
            assert shape(group) == shape(again)

    def last_record(self) -> RecordedGroup:
        value = self.shard.log.records()[-1].value
        assert value is not None
        return decode_group_value(value)


def shape(group: Group) -> object:
    """Return the group's facts that members can see."""
    members = [(m.member_id, m.instance_id, m.assignment) for m in group.members.values()]
    return group.state, group.generation, group.protocol, group.leader, members


async def play(seed: int) -> World:
    world = World(seed)
    await world.shard.load()
    for _ in range(STEPS):
        await world.step()
        await world.settle()
        world.check()
    world.release()
    await world.settle()
    for _ in range(2):  # a client that got its answer in the first round may send one more request
        world.shard.advance(LONGEST_S)
        await world.settle()
    return world


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_the_invariants_hold(seed: int) -> None:
    world = await play(seed)
    assert not world.waiting, f"{len(world.waiting)} requests got no answer"
    group = world.group
    assert group is None or (group.state is GroupState.EMPTY and not group.pending)
    assert world.answered > STEPS / 10
    world.shard.end()


async def test_generations_get_assignments() -> None:
    """Without any assignment the other tests would pass trivially."""
    worlds = [await play(seed) for seed in range(8)]
    assert sum(world.synced for world in worlds) > 50
