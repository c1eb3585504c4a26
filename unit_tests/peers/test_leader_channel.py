"""Tests of a follower's channel to its leader over a real connection: the leader's handlers
answer its requests in a fetch session, and the channel connects again after any failure."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Awaitable
from dataclasses import replace
from pathlib import Path

import pytest

from pybroker.client.errors import ClientError
from pybroker.config.broker_config import BrokerConfig
from pybroker.errors import BrokerError, ErrorCode
from pybroker.handlers.dispatch import Answer
from pybroker.model import (
    Endpoint,
    LeaderAndIsr,
    PartitionFacts,
    PartitionState,
    TopicPartition,
)
from pybroker.peers.leader_channel import Follower, FollowerLeaderChannel
from pybroker.ports import FetchedPartition, FetchLimits, FetchPosition
from pybroker.records.batch import read_header
from unit_tests.handlers.bench import BROKER_ID, LISTENER, NOW_MS, Bench, batch
from unit_tests.replication.vocabulary import T0, T1, TOPIC_ID

FOLLOWER = 2
AT_ONCE = FetchLimits(0, 1, 10_485_760, 1_048_576)


class LeaderPort:
    """A leader behind a port. `requests` are the sizes of the received frames."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.requests: list[int] = []
        self.arrived = asyncio.Event()
        self.endpoint: Endpoint | None = None
        self.connections = 0
        self._writers: list[asyncio.StreamWriter] = []

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        self.endpoint = Endpoint(LISTENER, "127.0.0.1", port)

    async def close(self) -> None:
        self._server.close()
        for writer in self._writers:
            writer.close()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        self.connections += 1
        try:
            while True:
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                frame = memoryview(bytearray(await reader.readexactly(size)))
                self.requests.append(size)
                self.arrived.set()
                answer = self.bench.app.dispatcher.answer(frame, LISTENER, "127.0.0.1")
                buffers: Answer = await answer if isinstance(answer, Awaitable) else answer
                if buffers is not None:
                    writer.writelines(buffers)
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            writer.close()

    async def lead(self, key: TopicPartition = T0, epoch: int = 0) -> None:
        state = PartitionState(BROKER_ID, epoch, (BROKER_ID, FOLLOWER), 1)
        facts = PartitionFacts(key, TOPIC_ID, state, epoch, (BROKER_ID, FOLLOWER), is_new=True)
        command = LeaderAndIsr(BROKER_ID, self.bench.app.controller.epoch, -1, (facts,))
        codes = await self.bench.app.replicas.leader_and_isr(command)
        assert codes == {key: ErrorCode.NONE}

    def append(self, value: bytes, key: TopicPartition = T0) -> bytes:
        data = bytearray(batch(value))
        partition = self.bench.app.replicas.partition(key)
        partition.append(memoryview(data), read_header(data), acks=1, now_ms=NOW_MS)
        self.bench.app.replicas.appended(key, len(data))
        return bytes(data)


@pytest.fixture
async def leader(tmp_path: Path) -> AsyncIterator[LeaderPort]:
    async with Bench(tmp_path) as bench:
        port = LeaderPort(bench)
        await port.open()
        await port.lead()
        yield port
        await port.close()


@pytest.fixture
async def channel(leader: LeaderPort) -> AsyncIterator[FollowerLeaderChannel]:
    follower = Follower(FOLLOWER, incarnation=lambda: 7)
    made = FollowerLeaderChannel(follower, lambda: leader.endpoint, BrokerConfig())
    yield made
    await made.close()


def at(offset: int, last_epoch: int = -1, epoch: int = 0) -> FetchPosition:
    return FetchPosition(offset, 0, epoch, last_epoch)


async def one(
    channel: FollowerLeaderChannel, position: FetchPosition, limits: FetchLimits = AT_ONCE
) -> FetchedPartition:
    (answer,) = await channel.fetch({T0: position}, limits)
    return answer


async def test_the_follower_receives_the_leaders_bytes_unchanged(
    leader: LeaderPort, channel: FollowerLeaderChannel
) -> None:
    data = leader.append(b"a")
    answer = await one(channel, at(0))
    assert bytes(answer.records) == data
    assert (answer.topic_partition, answer.error) == (T0, ErrorCode.NONE)
    assert (answer.high_watermark, answer.log_start_offset) == (0, 0)
    assert (await one(channel, at(1, last_epoch=0))).high_watermark == 1


async def test_a_stored_batch_of_any_size_is_fetched(
    leader: LeaderPort, channel: FollowerLeaderChannel
) -> None:
    """Otherwise none of the leader's partitions would be copied any more, since max.message.bytes
    has no upper limit."""
    data = leader.append(bytes(80_000_000))
    assert (await one(channel, at(0))).records == data


async def test_a_fetch_names_the_follower_to_the_leader(
    leader: LeaderPort, channel: FollowerLeaderChannel, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted = []
    replicas = leader.bench.app.replicas
    monkeypatch.setattr(replicas, "follower_fetched", lambda *args: noted.append(args[1]))
    leader.append(b"a")
    await one(channel, at(1, last_epoch=0))
    (fetch,) = noted
    assert (fetch.replica_id, fetch.fetch_offset, fetch.incarnation) == (FOLLOWER, 1, 7)


async def test_a_diverging_log_gets_the_diverging_epoch(
    leader: LeaderPort, channel: FollowerLeaderChannel
) -> None:
    leader.append(b"a")
    await leader.lead(epoch=2)
    leader.append(b"b")
    answer = await one(channel, at(3, last_epoch=1, epoch=2))
    assert (answer.diverging_epoch, answer.diverging_end_offset) == (0, 1)
    assert not answer.records


async def test_errors_are_returned_for_each_partition(
    leader: LeaderPort, channel: FollowerLeaderChannel
) -> None:
    answers = await channel.fetch({T0: at(0, epoch=5), T1: at(0)}, AT_ONCE)
    assert {each.topic_partition: each.error for each in answers} == {
        T0: ErrorCode.UNKNOWN_LEADER_EPOCH,
        T1: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }


async def test_a_session_sends_only_changes(
    leader: LeaderPort, channel: FollowerLeaderChannel
) -> None:
    await leader.lead(T1)
    positions = {T0: at(0), T1: at(0)}
    assert len(await channel.fetch(positions, AT_ONCE)) == 2
    data = leader.append(b"a", T1)
    (answer,) = await channel.fetch(positions, AT_ONCE)
    assert (answer.topic_partition, bytes(answer.records)) == (T1, data)
    assert leader.requests[-1] < leader.requests[-2]


async def test_earliest_and_latest_offsets_of_the_leader(
    leader: LeaderPort, channel: FollowerLeaderChannel
) -> None:
    leader.append(b"a")
    assert await channel.earliest_offset(T0, 0) == 0
    assert await channel.latest_offset(T0, 0) == 1
    with pytest.raises(BrokerError) as caught:
        await channel.latest_offset(T0, 5)
    assert caught.value.code is ErrorCode.UNKNOWN_LEADER_EPOCH


async def test_a_cancelled_fetch_does_not_delay_the_next_one(
    leader: LeaderPort, channel: FollowerLeaderChannel
) -> None:
    await one(channel, at(0))
    leader.arrived.clear()
    waiting = asyncio.create_task(one(channel, at(0), replace(AT_ONCE, max_wait_ms=3_600_000)))
    await leader.arrived.wait()
    waiting.cancel()
    await asyncio.wait([waiting])
    assert waiting.cancelled()
    assert (await one(channel, at(0))).error is ErrorCode.NONE
    assert leader.connections == 2


async def test_a_leader_with_a_new_address_is_found(
    leader: LeaderPort, channel: FollowerLeaderChannel
) -> None:
    await one(channel, at(0))
    await leader.close()
    with pytest.raises((ClientError, OSError)):
        await one(channel, at(0))
    await leader.open()
    assert (await one(channel, at(0))).error is ErrorCode.NONE


async def test_the_receive_buffer_has_the_configured_size(leader: LeaderPort) -> None:
    config = BrokerConfig.parse({"replica.socket.receive.buffer.bytes": "20000"})
    follower = Follower(FOLLOWER, incarnation=lambda: 7)
    channel = FollowerLeaderChannel(follower, lambda: leader.endpoint, config)
    await one(channel, at(0))
    assert channel._connection is not None
    opened = channel._connection._writer.get_extra_info("socket")
    assert opened.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) == 2 * 20_000, "Linux doubles it"
    await channel.close()


async def test_a_fetch_from_an_unknown_leader_fails(
    leader: LeaderPort, channel: FollowerLeaderChannel
) -> None:
    leader.endpoint = None
    with pytest.raises(BrokerError) as caught:
        await one(channel, at(0))
    assert caught.value.code is ErrorCode.BROKER_NOT_AVAILABLE
