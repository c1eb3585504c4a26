"""Tests with random faults of all kinds on three brokers. When the faults have ended, ZooKeeper
and the brokers agree, and every partition has a leader."""

from __future__ import annotations

import random

import pytest

from pybroker.coordinator.zookeeper import paths
from pybroker.errors import BrokerError, NoNode
from pybroker.model import Extent, LeaderAndIsr, PartitionState, TopicPartition, UpdateMetadata
from unit_tests.coordinator.controller.cluster import Cluster, Member, key
from unit_tests.idle_loop import loop_turns
from unit_tests.patience import until

BROKERS = (1, 2, 3)
STEPS = 25


class Storm:
    """Faults and changes, drawn from a seed."""

    def __init__(self, cluster: Cluster, seed: int) -> None:
        self.cluster = cluster
        self.rng = random.Random(seed)
        self.members: dict[int, Member] = {}
        self.steps = (
            self.create,
            self.create,
            self.delete,
            self.grow,
            self.kill_or_restart,
            self.depose,
            self.expire,
            self.lose_a_reply,
            self.suspend,
        )

    async def rage(self) -> None:
        for broker_id in BROKERS:
            await self.restart(broker_id)
        for _ in range(STEPS):
            await self.rng.choice(self.steps)()
            await loop_turns(self.rng.choice((0, 1, 5, 40)))
        for broker_id in BROKERS:
            if broker_id not in self.members:
                await self.restart(broker_id)

    async def restart(self, broker_id: int) -> None:
        member = Member(self.cluster, broker_id, delete_topic_enable=True)
        self.cluster.members.append(member)
        self.members[broker_id] = member
        await member.coord.start()
        await member.register()
        member.controller.start()

    async def create(self) -> None:
        count = self.rng.randrange(1, 4)
        assignment = {
            number: tuple(self.rng.sample(BROKERS, self.rng.randrange(1, 4)))
            for number in range(count)
        }
        try:
            await self.cluster.create(self.topic(), assignment)
        except BrokerError:
            pass

    async def delete(self) -> None:
        try:
            await self.cluster.delete(self.topic())
        except BrokerError:
            pass

    async def grow(self) -> None:
        path = paths.topic(self.topic())
        if self.cluster.exists(path):
            content = self.cluster.json(path)
            grown = content["partitions"]
            assert isinstance(grown, dict)
            grown[str(len(grown))] = [self.rng.choice(BROKERS)]
            try:
                await self.cluster.write_json(path, {"version": 1, "partitions": grown})
            except NoNode:
                pass

    async def kill_or_restart(self) -> None:
        broker_id = self.rng.choice(BROKERS)
        member = self.members.pop(broker_id, None)
        if member is None:
            await self.restart(broker_id)
        else:
            await member.kill()

    async def depose(self) -> None:
        if self.cluster.exists(paths.CONTROLLER):
            try:
                await self.cluster.tool.delete(paths.CONTROLLER)
            except NoNode:
                pass

    async def expire(self) -> None:
        if self.members:
            member = self.rng.choice(list(self.members.values()))
            member.coord.countdown = -1
            member.coord.expire()
            member.controller.session_expired()
            await member.renew()

    async def lose_a_reply(self) -> None:
        if self.members:
            member = self.rng.choice(list(self.members.values()))
            member.lose_request(self.rng.randrange(10), applied=self.rng.random() < 0.5)

    async def suspend(self) -> None:
        if self.members:
            member = self.rng.choice(list(self.members.values()))
            member.coord.suspend()
            await loop_turns(1)
            member.coord.resume()

    def topic(self) -> str:
        return f"topic{self.rng.randrange(4)}"


def last_metadata(cluster: Cluster, broker_id: int) -> dict[TopicPartition, PartitionState]:
    """Return the metadata that the broker has received since its last start."""
    known: dict[TopicPartition, PartitionState] = {}
    registration = cluster.tree.node(paths.broker(broker_id))
    assert registration is not None
    for note in cluster.notes:
        current = note.command.broker_epoch == registration[1].czxid
        if current and isinstance(note.command, UpdateMetadata):
            if note.command.extent is Extent.ALL:
                known.clear()
            known.update({item.topic_partition: item.state for item in note.command.partitions})
    return {name: state for name, state in known.items() if state.leader != -2}


def last_led(cluster: Cluster, name: TopicPartition, broker_id: int) -> PartitionState | None:
    found = None
    for note in cluster.notes:
        if note.broker_id == broker_id and isinstance(note.command, LeaderAndIsr):
            for item in note.command.partitions:
                if item.topic_partition == name:
                    found = item.state
    return found


def disagreements(cluster: Cluster) -> list[str]:
    """Return the differences between ZooKeeper and the brokers, and the partitions without a
    leader."""
    tree = cluster.tree.paths()
    if any(path.startswith(f"{paths.DELETE_TOPICS}/") for path in tree):
        return ["a deletion is under way"]
    wanted = set()
    for path in tree:
        topic = paths.parse_topic(path)
        if topic is not None:
            partitions = cluster.json(path)["partitions"]
            assert isinstance(partitions, dict)
            wanted |= {key(f"{topic}-{number}") for number in partitions}
    faults = []
    for name in sorted(wanted):
        state = cluster.state(str(name))
        if state is None or state.leader == -1:
            faults.append(f"{name} has no leader")
            continue
        assert state.leader in state.isr
        led = last_led(cluster, name, state.leader)
        if led is None or led != state:
            faults.append(f"{name}: {state} is stored, its leader received {led}")
    for broker_id in BROKERS:
        received = last_metadata(cluster, broker_id)
        faults.extend(
            f"broker {broker_id} received {received.get(name)} of {name}"
            for name in sorted(wanted | received.keys())
            if received.get(name) != cluster.state(str(name))
        )
    return faults


@pytest.mark.parametrize("seed", range(40))
async def test_after_a_storm_all_agree(cluster: Cluster, seed: int) -> None:
    storm = Storm(cluster, seed)
    await storm.rage()
    try:
        await until(lambda: not disagreements(cluster))
    except TimeoutError:
        pytest.fail("; ".join(disagreements(cluster)))
    controllers = [member.controller for member in storm.members.values()]
    await until(lambda: sum(controller.is_active for controller in controllers) == 1)
    await until(lambda: len({controller.controller_id for controller in controllers}) == 1)
