"""An in-memory cluster for tests of the controller. Its brokers only record the commands that they
receive.

`Cluster` is the ZooKeeper service. `Member` is one broker with its session, its registration and
its controller. A broker's commands read as lines, for example `lead orders-0 leader=1 epoch=0 isr=1
new` or `metadata orders-0 leader=1 epoch=0`.
"""

from __future__ import annotations

import asyncio
import json
import random
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from pybroker.clock import ManualClock
from pybroker.config.broker_config import BrokerConfig
from pybroker.coordinator.controller.broker_notifier import ChannelFactory
from pybroker.coordinator.controller.channel import Backoff
from pybroker.coordinator.controller.controller import Controller
from pybroker.coordinator.controller.policies import policy_of
from pybroker.coordinator.controller.services import ControllerSettings, RebalanceSettings
from pybroker.coordinator.controller.topics import create_topic, random_topic_id, request_deletion
from pybroker.coordinator.zookeeper import paths, schemas
from pybroker.errors import BrokerError, ConnectionLoss, ErrorCode, NodeExists
from pybroker.metrics import TimeMeter
from pybroker.model import (
    Broker,
    Command,
    Endpoint,
    LeaderAndIsr,
    PartitionState,
    StopReplica,
    TopicPartition,
    UpdateMetadata,
    decode_uuid,
)
from pybroker.ports import CreateOp, SetOp
from pybroker.testing.simulation.memory_tree import MemoryTree
from unit_tests.coordinator.memory_coord import MemoryCoord
from unit_tests.patience import until

T = TypeVar("T")


class Note:
    """One command that a broker received."""

    def __init__(self, broker_id: int, command: Command) -> None:
        self.broker_id = broker_id
        self.command = command

    @property
    def lines(self) -> list[str]:
        match self.command:
            case LeaderAndIsr(partitions=items):
                return [
                    f"lead {item.topic_partition} leader={item.state.leader}"
                    f" epoch={item.state.leader_epoch} isr={_numbers(item.state.isr)}"
                    f"{f' eligible={_numbers(item.state.eligible)}' if item.state.eligible else ''}"
                    f"{' new' if item.is_new else ''}"
                    for item in items
                ]
            case UpdateMetadata(partitions=items, brokers=brokers):
                known = ",".join(str(broker.id) for broker in brokers)
                return [f"brokers {known}"] + [
                    f"metadata {item.topic_partition} leader={item.state.leader}"
                    f" epoch={item.state.leader_epoch}"
                    for item in items
                ]
            case StopReplica(partitions=stops):
                return [
                    f"{'delete' if stop.delete else 'stop'} {stop.topic_partition}"
                    f" epoch={stop.leader_epoch}"
                    for stop in stops
                ]
        raise AssertionError(self.command)


def _numbers(broker_ids: Sequence[int]) -> str:
    return ",".join(map(str, broker_ids))


class NotingChannel:
    """A `BrokerChannel` that records each command and answers without an error, unless the cluster
    has a refusal for its broker."""

    def __init__(self, cluster: Cluster, broker: Broker) -> None:
        self._cluster = cluster
        self._broker = broker
        cluster.reached[broker.id] = broker

    async def close(self) -> None:
        """Do nothing: the channel has no connection."""

    async def leader_and_isr(self, command: LeaderAndIsr) -> Mapping[TopicPartition, ErrorCode]:
        keys = [item.topic_partition for item in command.partitions]
        offline = self._cluster.offline.get(self._broker.id, set())
        answers = self._note(command, keys)
        yielding = self._cluster.yielding.get(self._broker.id, set())
        offline = offline | {
            item.topic_partition
            for item in command.partitions
            if item.state.leader == self._broker.id and item.topic_partition in yielding
        }
        return {
            key: ErrorCode.KAFKA_STORAGE_ERROR if key in offline else answers[key] for key in keys
        }

    async def update_metadata(self, command: UpdateMetadata) -> None:
        self._note(command, [])

    async def stop_replica(self, command: StopReplica) -> Mapping[TopicPartition, ErrorCode]:
        keys = [item.topic_partition for item in command.partitions]
        answers = self._note(command, keys)
        await self._cluster.deletion_gate.wait()
        return answers

    def _note(
        self, command: Command, keys: list[TopicPartition]
    ) -> Mapping[TopicPartition, ErrorCode]:
        cluster = self._cluster
        assert command.broker_epoch == self._broker.epoch
        if cluster.refusals:
            refusal = cluster.refusals.pop(0)
            if isinstance(refusal, Exception):
                raise refusal
            return dict.fromkeys(keys, refusal)
        newest = cluster.newest_controller.get(self._broker.epoch, 0)
        if command.controller_epoch < newest:
            raise BrokerError(ErrorCode.STALE_CONTROLLER_EPOCH)
        cluster.newest_controller[self._broker.epoch] = command.controller_epoch
        cluster.notes.append(Note(self._broker.id, command))
        return dict.fromkeys(keys, ErrorCode.NONE)


class Cluster:
    """The ZooKeeper tree and all commands to brokers. Each command uses up one of the `refusals`:
    an exception for the whole command, or a code for each partition. `offline`: broker -> replicas
    that it cannot open. `yielding`: broker -> replicas with which it refuses to lead."""

    def __init__(self, tree: MemoryTree | None = None) -> None:
        self.clock = ManualClock()
        self.tree = tree or MemoryTree(self.clock)
        self.notes: list[Note] = []
        self.refusals: list[Exception | ErrorCode] = []
        self.offline: dict[int, set[TopicPartition]] = {}
        self.yielding: dict[int, set[TopicPartition]] = {}
        self.config = BrokerConfig()
        self.journal: list[dict[str, object]] = []
        self.elections = TimeMeter()
        self.newest_controller: dict[int, int] = {}
        """Broker epoch -> the highest controller epoch that this broker has received."""
        self.deletion_gate = asyncio.Event()
        self.deletion_gate.set()
        self.members: list[Member] = []
        self.reached: dict[int, Broker] = {}
        """Broker id -> the registration to which the last channel was opened."""
        self.channels: ChannelFactory = lambda broker: NotingChannel(self, broker)
        self.rng = random.Random(7)

    async def prepare(self) -> None:
        self.tool = ForgetfulCoord(self.tree, name="tool")
        await self.tool.start()
        for path in (*paths.PERSISTENT_PARENTS, paths.DELETE_TOPICS):
            prefix = ""
            for part in path.strip("/").split("/"):
                prefix = f"{prefix}/{part}"
                try:
                    await self.tool.create(prefix)
                except NodeExists:
                    pass

    async def close(self) -> None:
        self.deletion_gate.set()
        for member in self.members:
            await member.controller.stop()

    # ---- doing

    async def member(
        self,
        broker_id: int,
        *,
        delete_topic_enable: bool = True,
        lose: tuple[int, bool] | None = None,
        rebalance: RebalanceSettings | None = None,
    ) -> Member:
        """Start a broker: session, registration, controller. `lose`: see `lose_request`."""
        member = Member(self, broker_id, delete_topic_enable, rebalance)
        self.members.append(member)
        await member.coord.start()
        await member.register()
        if lose is not None:
            member.lose_request(lose[0], applied=lose[1])
        member.controller.start()
        await until(lambda: member.controller.controller_id is not None)
        return member

    async def create(self, name: str, assignment: Mapping[int, tuple[int, ...]]) -> None:
        await create_topic(self.tool, name, assignment, {}, random_topic_id(self.rng))

    async def set_options(self, topic: str, **options: str) -> None:
        """Set the topic's own options, with underscores for dots, and notify the controller."""
        config = {name.replace("_", "."): text for name, text in options.items()}
        await self.write_json(paths.topic_config(topic), {"version": 1, "config": config})
        for member in self.members:
            member.controller.policies_changed({topic})

    async def delete(self, name: str) -> None:
        await request_deletion(self.tool, name)

    async def write_json(self, path: str, content: object) -> None:
        """Write a node as another tool does."""
        data = json.dumps(content).encode()
        if self.exists(path):
            await self.tool.set(path, data)
        else:
            await self.tool.create(path, data)

    async def prepare_state(self, name: str, content: object) -> None:
        """Create a state node before its topic exists. The topic's node is created without data, so
        no controller reads it as a topic."""
        path = paths.partition_state(key(name))
        for parent in (paths.topic(key(name).topic), paths.partitions(key(name).topic)):
            await self.tool.create(parent)
        await self.tool.create(paths.partition(key(name)))
        await self.write_json(path, content)

    # ---- seeing

    def exists(self, path: str) -> bool:
        return self.tree.node(path) is not None

    def json(self, path: str) -> dict[str, object]:
        node = self.tree.node(path)
        assert node is not None, path
        content = json.loads(node[0])
        assert isinstance(content, dict)
        return content

    def state(self, name: str) -> PartitionState | None:
        """Return the stored state of the partition; `name` as in `orders-0`."""
        path = paths.partition_state(key(name))
        node = self.tree.node(path)
        return None if node is None else schemas.decode_state(path, node[0])

    def topic_id(self, name: str) -> uuid.UUID:
        return decode_uuid(str(self.json(paths.topic(name))["topic_id"]))

    def stored_epoch(self, name: str) -> int:
        state = self.state(name)
        return -1 if state is None else state.leader_epoch

    def lines(self, broker_id: int | None = None) -> list[str]:
        return [
            line
            for note in self.notes
            if broker_id in (None, note.broker_id)
            for line in note.lines
        ]

    async def received(self, broker_id: int, line: str) -> None:
        """Wait until the broker has received a command with this line."""
        await until(lambda: line in self.lines(broker_id))


class ForgetfulCoord(MemoryCoord):
    """A client that loses the reply of one chosen request."""

    countdown = -1
    applied = True

    async def _request(self, work: Callable[[], T]) -> T:
        if self.countdown == 0:
            self.lose_reply(applied=self.applied)
        self.countdown -= 1
        return await super()._request(work)


class Member:
    """One broker of the cluster."""

    def __init__(
        self,
        cluster: Cluster,
        broker_id: int,
        delete_topic_enable: bool,
        rebalance: RebalanceSettings | None = None,
    ) -> None:
        self.cluster = cluster
        self.id = broker_id
        self.coord = ForgetfulCoord(cluster.tree, name=f"broker-{broker_id}")
        self.controller = Controller(
            coord=self.coord,
            broker_id=broker_id,
            clock=cluster.clock,
            rng=cluster.rng,
            channels=cluster.channels,
            settings=ControllerSettings(
                delete_topic_enable=delete_topic_enable,
                journal=cluster.journal.append,
                elections=cluster.elections,
                policy_of=lambda overrides: policy_of(cluster.config, overrides),
                backoff=Backoff(0.001, 0.01),
                rebalance=rebalance,
            ),
        )

    async def register(self) -> None:
        path = paths.broker(self.id)
        await self.coord.multi(
            [CreateOp(path, b"", ephemeral=True), SetOp(path, self.registration, 0)]
        )

    @property
    def registration(self) -> bytes:
        return schemas.encode_broker((Endpoint("PLAINTEXT", f"host{self.id}", 9092),), None, 0)

    def lose_request(self, position: int, *, applied: bool) -> None:
        """Lose the reply of the request at `position` (from 0), counted from now."""
        self.coord.countdown, self.coord.applied = position, applied

    async def renew(self) -> None:
        """Open a new session and register in it, as a broker does after its session expired."""
        await until(lambda: self.coord.session_id != 0)
        try:
            await self.register()
        except ConnectionLoss:
            if not self.cluster.exists(paths.broker(self.id)):
                await self.register()
        self.controller.session_renewed()

    async def kill(self) -> None:
        """End the broker's process and its session."""
        self.controller.session_expired()
        await self.controller.stop()
        await self.coord.close()


def key(name: str) -> TopicPartition:
    topic, _, partition = name.rpartition("-")
    return TopicPartition(topic, int(partition))


def refused(code: ErrorCode) -> BrokerError:
    return BrokerError(code)
