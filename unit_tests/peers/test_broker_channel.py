"""Tests that the controller's commands to another broker arrive as sent, and the broker's errors
are raised at the controller."""

from __future__ import annotations

import asyncio
import itertools
import struct
import uuid
from collections.abc import AsyncIterator, Awaitable, Mapping
from pathlib import Path

import pytest

from pybroker.client.errors import ClientError, ConnectFailed
from pybroker.errors import BrokerError, ErrorCode
from pybroker.handlers.dispatch import Answer
from pybroker.handlers.gate import Gate
from pybroker.model import (
    LEADER_DURING_DELETION,
    Broker,
    Command,
    Endpoint,
    Extent,
    LeaderAndIsr,
    PartitionFacts,
    PartitionState,
    StopReplica,
    StopReplicaPartition,
    TopicPartition,
    UpdateMetadata,
)
from pybroker.peers.broker_channel import PARTITIONS_MAX, RemoteBrokerChannel
from pybroker.wire.api import ApiKey
from unit_tests.handlers.bench import LISTENER, Bench
from unit_tests.idle_loop import idle
from unit_tests.patience import PATIENCE_S

IDS = {"a": uuid.UUID(int=7), "b": uuid.UUID(int=8)}


class Noting:
    """Records commands without carrying them out, and answers as configured."""

    def __init__(self) -> None:
        self.commands: list[Command] = []
        self.answers: dict[TopicPartition, ErrorCode] = {}
        self.refusal: ErrorCode | None = None

    async def close(self) -> None:
        """Do nothing, since there is no connection."""

    async def leader_and_isr(self, command: LeaderAndIsr) -> Mapping[TopicPartition, ErrorCode]:
        return self._note(command, [facts.topic_partition for facts in command.partitions])

    async def update_metadata(self, command: UpdateMetadata) -> None:
        self._note(command, [])

    async def stop_replica(self, command: StopReplica) -> Mapping[TopicPartition, ErrorCode]:
        return self._note(command, [stop.topic_partition for stop in command.partitions])

    def _note(
        self, command: Command, keys: list[TopicPartition]
    ) -> Mapping[TopicPartition, ErrorCode]:
        self.commands.append(command)
        if self.refusal is not None:
            raise BrokerError(self.refusal)
        return {key: self.answers.get(key, ErrorCode.NONE) for key in keys}


class Receiver:
    """A broker's dispatcher behind a port, and the commands that it receives."""

    def __init__(self, bench: Bench) -> None:
        self.told = Noting()
        self.listener = LISTENER
        self.gate = Gate(bench.app.dispatcher.answer)
        object.__setattr__(bench.app.dispatcher._services, "commands", self.told)
        self._writers: list[asyncio.StreamWriter] = []
        self.accepted = self.open = 0
        self.answers_max: int | None = None
        """After this number of answers on a connection, nothing more is read from it."""

    async def start(self) -> None:
        self.gate.let_brokers_in()
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        self.broker = Broker(2, (Endpoint(LISTENER, "127.0.0.1", port),), epoch=44)

    async def stop(self) -> None:
        self._server.close()
        self.cut()
        await self._server.wait_closed()

    def cut(self) -> None:
        while self._writers:
            self._writers.pop().transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        self.accepted += 1
        self.open += 1
        try:
            for number in itertools.count():
                if number == self.answers_max:
                    writer.transport.pause_reading()  # type: ignore[attr-defined]
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                frame = memoryview(bytearray(await reader.readexactly(size)))
                answer = self.gate.answer(frame, self.listener, "127.0.0.1")
                buffers = await answer if isinstance(answer, Awaitable) else answer
                writer.writelines(buffers or [])
        except (asyncio.IncompleteReadError, OSError):
            writer.close()
        finally:
            self.open -= 1


@pytest.fixture
async def receiver(tmp_path: Path) -> AsyncIterator[Receiver]:
    async with Bench(tmp_path) as bench:
        made = Receiver(bench)
        await made.start()
        yield made
        await made.stop()


@pytest.fixture
async def channel(receiver: Receiver) -> AsyncIterator[RemoteBrokerChannel]:
    made = channel_to(receiver.broker)
    yield made
    await made.close()


def channel_to(broker: Broker, listener: str = LISTENER) -> RemoteBrokerChannel:
    return RemoteBrokerChannel(broker, listener, client_id="test", timeout_s=10, connect_s=10)


def facts(topic: str, partition: int, *, is_new: bool = False) -> PartitionFacts:
    return PartitionFacts(
        topic_partition=TopicPartition(topic, partition),
        topic_id=IDS[topic],
        state=PartitionState(
            leader=2, leader_epoch=3, isr=(2, 1), controller_epoch=1, eligible=(3,)
        ),
        partition_epoch=9,
        replicas=(1, 2, 3),
        is_new=is_new,
    )


async def test_roles_arrive_as_they_were_sent(
    receiver: Receiver, channel: RemoteBrokerChannel
) -> None:
    command = LeaderAndIsr(1, 1, 44, (facts("a", 0), facts("a", 1, is_new=True), facts("b", 0)))
    refused = TopicPartition("a", 1)
    receiver.told.answers = {refused: ErrorCode.KAFKA_STORAGE_ERROR}
    answers = await channel.leader_and_isr(command)
    assert receiver.told.commands == [command]
    assert answers == {
        TopicPartition("a", 0): ErrorCode.NONE,
        refused: ErrorCode.KAFKA_STORAGE_ERROR,
        TopicPartition("b", 0): ErrorCode.NONE,
    }


async def test_stops_arrive_as_they_were_sent(
    receiver: Receiver, channel: RemoteBrokerChannel
) -> None:
    gone, kept = TopicPartition("a", 0), TopicPartition("b", 5)
    command = StopReplica(
        1,
        1,
        44,
        (
            StopReplicaPartition(gone, LEADER_DURING_DELETION, delete=True),
            StopReplicaPartition(kept, 7, delete=False),
        ),
    )
    receiver.told.answers = {kept: ErrorCode.FENCED_LEADER_EPOCH}
    answers = await channel.stop_replica(command)
    assert receiver.told.commands == [command]
    assert answers == {gone: ErrorCode.NONE, kept: ErrorCode.FENCED_LEADER_EPOCH}


async def test_descriptions_arrive_as_they_were_sent(
    receiver: Receiver, channel: RemoteBrokerChannel
) -> None:
    brokers = (
        Broker(1, (Endpoint("A", "one", 1), Endpoint("B", "one", 2, "SSL")), rack="r1"),
        Broker(2, (Endpoint("A", "two", 3),)),
    )
    state = PartitionState(leader=2, leader_epoch=3, isr=(2,), controller_epoch=1)
    described = PartitionFacts(
        TopicPartition("a", 0), IDS["a"], state, 9, (1, 2, 3), offline_replicas=(3,)
    )
    for command in (
        UpdateMetadata(1, 1, 44, (described,), brokers),
        UpdateMetadata(1, 1, 44, (), brokers),
    ):
        await channel.update_metadata(command)
        assert receiver.told.commands.pop() == command


async def test_a_large_command_is_split_and_its_answers_are_merged(
    receiver: Receiver, channel: RemoteBrokerChannel
) -> None:
    many = tuple(facts("a", number) for number in range(2 * PARTITIONS_MAX + 1))
    answers = await channel.leader_and_isr(LeaderAndIsr(1, 1, 44, many))
    parts = [command.partitions for command in receiver.told.commands]  # type: ignore[attr-defined]
    assert [len(part) for part in parts] == [PARTITIONS_MAX, PARTITIONS_MAX, 1]
    assert sum(parts, ()) == many
    assert answers == {each.topic_partition: ErrorCode.NONE for each in many}


@pytest.mark.parametrize(
    ("count", "extents"),
    [
        (0, [Extent.ALL]),
        (1, [Extent.ALL]),
        (PARTITIONS_MAX + 1, [Extent.BEGINS, Extent.ENDS]),
        (3 * PARTITIONS_MAX, [Extent.BEGINS, Extent.GOES_ON, Extent.ENDS]),
    ],
)
async def test_a_split_full_command_is_still_full(
    receiver: Receiver, channel: RemoteBrokerChannel, count: int, extents: list[Extent]
) -> None:
    many = tuple(facts("a", number) for number in range(count))
    await channel.leader_and_isr(LeaderAndIsr(1, 1, 44, many, Extent.ALL))
    await channel.update_metadata(UpdateMetadata(1, 1, 44, many, (), Extent.ALL))
    told = receiver.told.commands
    assert [command.extent for command in told] == [*extents, *extents]  # type: ignore[attr-defined]


@pytest.mark.parametrize("code", [ErrorCode.STALE_CONTROLLER_EPOCH, ErrorCode.STALE_BROKER_EPOCH])
async def test_a_rejection_of_the_whole_command_is_raised(
    receiver: Receiver, channel: RemoteBrokerChannel, code: ErrorCode
) -> None:
    receiver.told.refusal = code
    stop = StopReplicaPartition(TopicPartition("a", 0), 1, delete=False)
    for asked in (
        channel.leader_and_isr(LeaderAndIsr(1, 1, 44, (facts("a", 0),))),
        channel.stop_replica(StopReplica(1, 1, 44, (stop,))),
        channel.update_metadata(UpdateMetadata(1, 1, 44, (), ())),
    ):
        with pytest.raises(BrokerError) as refused:
            await asked
        assert refused.value.code is code


async def test_a_command_with_an_unknown_controller_epoch_is_refused(
    receiver: Receiver, channel: RemoteBrokerChannel
) -> None:
    """Such an epoch would make the broker reject the real controller forever."""
    for claimed in (2, 2**31 - 1):
        with pytest.raises(BrokerError) as refused:
            await channel.leader_and_isr(LeaderAndIsr(9, claimed, -1, (facts("a", 0),)))
        assert refused.value.code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert receiver.told.commands == []


async def test_commands_are_rejected_on_client_listeners(
    receiver: Receiver, channel: RemoteBrokerChannel
) -> None:
    receiver.listener = "EXTERNAL"
    with pytest.raises(BrokerError) as refused:
        await channel.update_metadata(UpdateMetadata(1, 1, 44, (), ()))
    assert refused.value.code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert receiver.told.commands == []


async def test_a_lost_connection_is_opened_again(
    receiver: Receiver, channel: RemoteBrokerChannel
) -> None:
    command = UpdateMetadata(1, 1, 44, (), ())
    await channel.update_metadata(command)
    receiver.cut()
    with pytest.raises(ClientError):
        async with asyncio.timeout(PATIENCE_S):
            while True:
                await channel.update_metadata(command)
                receiver.cut()
    await channel.update_metadata(command)
    await channel.close()
    await channel.update_metadata(command)


async def test_a_broker_without_the_listener_for_brokers_is_named(receiver: Receiver) -> None:
    channel = channel_to(receiver.broker, "INTERNAL")
    with pytest.raises(ConnectFailed, match=r"broker 2.*no inter-broker listener INTERNAL"):
        await channel.update_metadata(UpdateMetadata(1, 1, 44, (), ()))


async def test_connections_wait_until_the_broker_is_registered() -> None:
    answered: list[int] = []

    def answer(frame: memoryview, _listener: str, _peer: str) -> Answer:
        answered.append(frame[1])
        return []

    gate = Gate(answer)
    keys = ApiKey.API_VERSIONS, ApiKey.METADATA, ApiKey.LEADER_AND_ISR
    asked = [gate.answer(memoryview(struct.pack(">h", key)), LISTENER, "") for key in keys]
    client, controller = (
        asyncio.ensure_future(each) for each in asked if isinstance(each, Awaitable)
    )
    await idle()
    assert answered == [ApiKey.API_VERSIONS]
    gate.let_brokers_in()
    await controller
    assert answered == [ApiKey.API_VERSIONS, ApiKey.LEADER_AND_ISR]
    gate.open()
    await client
    assert answered == [ApiKey.API_VERSIONS, ApiKey.LEADER_AND_ISR, ApiKey.METADATA]


async def test_clients_wait_at_the_gate_and_the_controller_does_not(receiver: Receiver) -> None:
    frame = memoryview(bytearray(struct.pack(">hhih", 3, 1, 5, -1) + struct.pack(">i", 0)))
    waiting = receiver.gate.answer(frame, LISTENER, "127.0.0.1")
    assert isinstance(waiting, Awaitable)
    answer = asyncio.ensure_future(waiting)
    channel = channel_to(receiver.broker)
    await channel.update_metadata(UpdateMetadata(1, 1, 44, (), ()))
    await channel.close()
    assert not answer.done()
    receiver.gate.open()
    assert await answer
    assert isinstance(receiver.gate.answer(frame, LISTENER, "127.0.0.1"), list)
