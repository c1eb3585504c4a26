"""Tests of idle connections (connections.max.idle.ms): a connection on which bytes still arrive
is not idle."""

from __future__ import annotations

import asyncio
import socket
import struct
from dataclasses import replace

import pytest

from pybroker.clock import ManualClock
from pybroker.config.broker_config import BrokerConfig
from pybroker.server.connection import Answer, Connection, Peer
from pybroker.server.listener import Server
from unit_tests.server.test_connection import connect, echo, framed, read_frame, serving
from unit_tests.server.test_limits import Streams, ask_slowly, asked, is_closed

IDLE_S = 60
SMALL_BYTES = 32 * 1024
STEP_BYTES = 1024 * 1024
STEPS = 12


def much(frame: memoryview, peer: Peer) -> Answer:
    """Return an answer with more bytes than a peer reads in all steps of the test."""
    return [framed(bytes(2 * STEPS * STEP_BYTES) if bytes(frame) == b"much" else b"?")]


def slow_reader() -> socket.socket:
    """Return a socket for which the operating system buffers almost no bytes."""
    slow = socket.socket()
    slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BYTES)
    slow.setblocking(False)
    return slow


async def only(witness: Streams, server: Server) -> None:
    """Wait until the witness is the only connected peer."""
    while server.connection_count > 1:
        assert await asked(*witness) == b"?"


async def test_a_connection_with_an_arriving_request_is_not_idle() -> None:
    clock = ManualClock()
    config = BrokerConfig(connections_max_idle_ms=IDLE_S * 1000)
    async with serving(echo, config, clock) as (server, port):
        reader, writer = await connect(port)
        witness = await connect(port)
        for _ in range(100):
            assert await asked(reader, writer) == await asked(*witness) == b"?"
            server.reap()
            clock.advance(IDLE_S - 10)
        await ask_slowly(writer, witness, server, clock)
        assert await read_frame(reader) == bytes(1_000_000)
        writer.close()
        witness[1].close()


async def test_a_peer_that_reads_its_answer_slowly_is_not_idle_until_it_stops() -> None:
    clock = ManualClock()
    config = replace(
        BrokerConfig.parse({"socket.send.buffer.bytes": str(SMALL_BYTES)}),
        connections_max_idle_ms=IDLE_S * 1000,
    )

    async with serving(much, config, clock) as (server, port):
        loop = asyncio.get_running_loop()
        witness = await connect(port)
        with slow_reader() as slow:
            await loop.sock_connect(slow, ("127.0.0.1", port))
            clock.advance(100 * IDLE_S)
            await loop.sock_sendall(slow, framed(b"much"))
            for _ in range(STEPS):
                missing = STEP_BYTES
                while missing:
                    taken = await loop.sock_recv(slow, missing)
                    assert taken, "closed"
                    missing -= len(taken)
                assert await asked(*witness) == b"?"
                server.reap()
                assert server.connection_count == 2
                clock.advance(IDLE_S / 2)
            server.reap()
            clock.advance(IDLE_S + 1)
            assert await asked(*witness) == b"?"
            server.reap()
            await only(witness, server)
        witness[1].close()


async def test_a_peer_that_reads_only_single_bytes_is_idle() -> None:
    """Otherwise the peer could keep an answer in the broker's memory forever."""
    clock = ManualClock()
    config = replace(
        BrokerConfig.parse({"socket.send.buffer.bytes": str(SMALL_BYTES)}),
        connections_max_idle_ms=IDLE_S * 1000,
    )

    async with serving(much, config, clock) as (server, port):
        loop = asyncio.get_running_loop()
        witness = await connect(port)
        with slow_reader() as slow:
            await loop.sock_connect(slow, ("127.0.0.1", port))
            await loop.sock_sendall(slow, framed(b"much"))
            for _ in range(3):
                assert await loop.sock_recv(slow, 100)
                assert await asked(*witness) == b"?"
                server.reap()
                clock.advance(IDLE_S / 2)
            assert await asked(*witness) == b"?"
            server.reap()
            await only(witness, server)
        witness[1].close()


async def test_a_peer_that_stops_in_a_request_and_does_not_read_is_idle() -> None:
    """The broker does not read the peer's next request while the peer leaves an answer unread."""
    clock = ManualClock()
    config = BrokerConfig(connections_max_idle_ms=IDLE_S * 1000)

    async with serving(much, config, clock) as (server, port):
        witness = await connect(port)
        with socket.create_connection(("127.0.0.1", port)) as deaf:
            deaf.sendall(framed(b"much") + struct.pack(">i", 100) + b"the beginning")
            while server.unsent_bytes == 0:
                assert await asked(*witness) == b"?"
            clock.advance(IDLE_S + 1)
            assert await asked(*witness) == b"?"
            server.reap()
            await only(witness, server)
        witness[1].close()


async def test_a_large_request_that_stops_arriving_is_idle() -> None:
    """Most of the request has arrived and takes memory. The connection is closed as idle long
    before the time limit for slow requests."""
    clock = ManualClock()
    config = BrokerConfig(connections_max_idle_ms=IDLE_S * 1000)
    async with serving(echo, config, clock) as (server, port):
        reader, writer = await connect(port)
        witness = await connect(port)
        writer.write(struct.pack(">i", STEP_BYTES) + bytes(STEP_BYTES - 1))
        stalled = next(iter(server._connections))
        while stalled._buffer.unread_bytes < STEP_BYTES + 3:
            assert await asked(*witness) == b"?"
        for _ in range(3):
            assert await asked(*witness) == b"?"
            server.reap()
            assert server.connection_count == 2
            clock.advance(IDLE_S / 2)
        assert await asked(*witness) == b"?"
        server.reap()
        assert await is_closed(reader)
        for each in (writer, witness[1]):
            each.close()


async def test_a_peer_without_a_request_is_idle_after_its_time() -> None:
    clock = ManualClock()
    async with serving(echo, BrokerConfig(connections_max_idle_ms=IDLE_S * 1000), clock) as (
        server,
        port,
    ):
        reader, writer = await connect(port)
        assert await asked(reader, writer) == b"?"
        for _ in range(3):
            server.reap()
            assert server.connection_count == 1
            clock.advance(IDLE_S / 2)
        server.reap()
        assert await is_closed(reader)
        writer.close()


async def test_a_resting_connection_costs_nothing_until_it_wakes_or_is_idle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked = 0
    idle_s = Connection.idle_s

    def counted(connection: Connection, now: float) -> float:
        nonlocal looked
        looked += 1
        return idle_s(connection, now)

    monkeypatch.setattr(Connection, "idle_s", counted)
    clock = ManualClock()
    config = BrokerConfig(connections_max_idle_ms=IDLE_S * 10 * 1000)
    async with serving(echo, config, clock) as (server, port):
        streams = [await connect(port) for _ in range(20)]
        for each in streams:
            assert await asked(*each) == b"?"
        clock.advance(11)
        server.reap()
        assert looked == 20
        clock.advance(11)
        server.reap()
        assert looked == 20, "all rest"
        assert await asked(*streams[3]) == b"?"
        server.reap()
        clock.advance(11)
        server.reap()
        server.reap()
        assert looked == 22, "the one that woke, until it rests again"
        clock.advance(IDLE_S * 10 - 22)
        server.reap()
        await only(streams[3], server)
        assert server.connection_count == 1
        clock.advance(IDLE_S * 10 + 1)
        server.reap()
        assert await is_closed(streams[3][0])
        for _, writer in streams:
            writer.close()


async def test_half_a_request_wakes_a_resting_connection() -> None:
    clock = ManualClock()
    config = BrokerConfig(
        connections_max_idle_ms=IDLE_S * 1000_000, pybroker_request_read_timeout_ms=5_000
    )
    async with serving(echo, config, clock) as (server, port):
        witness = await connect(port)
        reader, writer = await connect(port)
        assert await asked(reader, writer) == await asked(*witness) == b"?"
        clock.advance(11)
        server.reap()
        writer.write(framed(bytes(1000))[:500])
        await writer.drain()
        assert await asked(*witness) == b"?"
        server.reap()
        clock.advance(11)
        server.reap()
        assert await is_closed(reader)
        for each in (writer, witness[1]):
            each.close()


async def test_without_a_limit_resting_connections_stay() -> None:
    clock = ManualClock()
    async with serving(echo, BrokerConfig(connections_max_idle_ms=-1), clock) as (server, port):
        reader, writer = await connect(port)
        assert await asked(reader, writer) == b"?"
        for _ in range(3):
            clock.advance(11)
            server.reap()
        clock.advance(10**9)
        server.reap()
        assert await asked(reader, writer) == b"?"
        writer.close()
