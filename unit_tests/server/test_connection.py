"""Tests of a connection: the order of answers, one request at a time, and the close after invalid
bytes."""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import pairwise

import pytest

from pybroker.clock import SystemClock
from pybroker.config.broker_config import BrokerConfig
from pybroker.errors import CloseConnection, MalformedInput, StartupError
from pybroker.host.run import _LOOP_FACTORY
from pybroker.ports import Clock
from pybroker.server.connection import Answer, Connection, Peer
from pybroker.server.limits import ServerLimits
from pybroker.server.listener import Bind, Server, bind
from unit_tests.patience import PATIENCE_S, in_time, until

Handle = Callable[[memoryview, Peer], Answer | Awaitable[Answer]]


def framed(payload: bytes) -> bytes:
    return struct.pack(">i", len(payload)) + payload


@asynccontextmanager
async def serving(
    handle: Handle,
    config: BrokerConfig | None = None,
    clock: Clock | None = None,
    *,
    limits: ServerLimits | None = None,
) -> AsyncIterator[tuple[Server, int]]:
    server = Server(
        handle=handle,
        config=config or BrokerConfig(),
        clock=clock or SystemClock(),
        limits=limits,
    )
    opened = bind(Bind("PLAINTEXT", "127.0.0.1", 0))
    port = opened.getsockname()[1]
    await server.open([("PLAINTEXT", opened)])
    try:
        yield server, port
    finally:
        await server.close(1)


async def connect(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", port)


async def read_frame(reader: asyncio.StreamReader) -> bytes:
    (size,) = struct.unpack(">i", await reader.readexactly(4))
    return await reader.readexactly(size)


def reset_on_close(writer: asyncio.StreamWriter) -> None:
    """Make the close send RST, as when the peer's process is killed while bytes are unread."""
    writer.get_extra_info("socket").setsockopt(
        socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
    )


def echo(frame: memoryview, peer: Peer) -> Answer:
    return [framed(bytes(frame))]


async def test_pipelined_requests_are_answered_in_order() -> None:
    gates: dict[bytes, asyncio.Event] = {b"slow": asyncio.Event()}

    async def after(gate: asyncio.Event, payload: bytes) -> Answer:
        await gate.wait()
        return [framed(payload)]

    def handle(frame: memoryview, peer: Peer) -> Answer | Awaitable[Answer]:
        payload = bytes(frame)
        if payload in gates:
            return after(gates[payload], payload)
        return [framed(payload)]

    async with serving(handle) as (_, port):
        reader, writer = await connect(port)
        writer.write(framed(b"slow") + framed(b"quick") + framed(b"quicker"))
        await writer.drain()
        gates[b"slow"].set()
        assert [await read_frame(reader) for _ in range(3)] == [b"slow", b"quick", b"quicker"]
        writer.close()


async def test_only_one_request_of_a_connection_is_in_the_handlers() -> None:
    running: set[bytes] = set()
    most = 0

    async def work(payload: bytes) -> Answer:
        nonlocal most
        running.add(payload)
        most = max(most, len(running))
        await asyncio.sleep(0)
        running.discard(payload)
        return [framed(payload)]

    def handle(frame: memoryview, peer: Peer) -> Awaitable[Answer]:
        return work(bytes(frame))

    async with serving(handle) as (_, port):
        reader, writer = await connect(port)
        for number in range(20):
            writer.write(framed(b"%d" % number))
        for number in range(20):
            assert await read_frame(reader) == b"%d" % number
        assert most == 1
        writer.close()


@pytest.mark.parametrize("error", [MalformedInput("bad"), CloseConnection("no")])
@pytest.mark.parametrize("later", [False, True])
async def test_a_request_that_cannot_be_answered_closes_the_connection(
    error: Exception, later: bool
) -> None:
    async def fail() -> Answer:
        raise error

    def handle(frame: memoryview, peer: Peer) -> Answer | Awaitable[Answer]:
        if later:
            return fail()
        raise error

    async with serving(handle) as (_, port):
        reader, writer = await connect(port)
        writer.write(framed(b"x"))
        assert await reader.read() == b""
        writer.close()


@pytest.mark.parametrize("first", [b"at once", b"later"])
async def test_a_fault_of_a_handler_closes_that_connection_only(
    first: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """The request may be read while another request is in flight."""

    async def later(payload: bytes) -> Answer:
        await asyncio.sleep(0)
        return [framed(payload)]

    def handle(frame: memoryview, peer: Peer) -> Answer | Awaitable[Answer]:
        payload = bytes(frame)
        if payload == b"bad":
            raise ZeroDivisionError("a fault")
        return later(payload) if payload == b"later" else [framed(payload)]

    async with serving(handle) as (server, port):
        witness, other = await connect(port)
        reader, writer = await connect(port)
        writer.write(framed(first) + framed(b"bad") + framed(b"never"))
        with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
            async with asyncio.timeout(PATIENCE_S):
                for _ in range(3):
                    await read_frame(reader)
        other.write(framed(b"fine"))
        assert await read_frame(witness) == b"fine"
        assert server.connection_count == 1
        assert "a fault" in caplog.text
        writer.close()
        other.close()


async def test_the_frame_is_unchanged_while_its_request_waits() -> None:
    gate = asyncio.Event()
    started = asyncio.Event()

    async def slow(frame: memoryview) -> Answer:
        started.set()
        await gate.wait()
        return [framed(bytes(frame))]

    async with serving(lambda frame, peer: slow(frame)) as (_, port):
        reader, writer = await connect(port)
        first = b"1" * 3000
        writer.write(framed(first))
        await started.wait()
        writer.write(framed(b"2" * 100_000))
        gate.set()
        assert await read_frame(reader) == first
        assert await read_frame(reader) == b"2" * 100_000
        writer.close()


async def test_an_oversized_frame_closes_only_its_connection() -> None:
    async with serving(echo, BrokerConfig(socket_request_max_bytes=100)) as (_, port):
        good_reader, good_writer = await connect(port)
        reader, writer = await connect(port)
        writer.write(struct.pack(">i", 101))
        assert await reader.read() == b""
        good_writer.write(framed(b"still here"))
        assert await read_frame(good_reader) == b"still here"
        writer.close()
        good_writer.close()


async def test_a_request_without_a_response_gets_none() -> None:
    def handle(frame: memoryview, peer: Peer) -> Answer:
        return None if bytes(frame) == b"mute" else [framed(bytes(frame))]

    async with serving(handle) as (_, port):
        reader, writer = await connect(port)
        writer.write(framed(b"mute") + framed(b"loud"))
        assert await read_frame(reader) == b"loud"
        writer.close()


async def test_connection_limits() -> None:
    async with serving(echo, BrokerConfig(max_connections_per_ip=1)) as (_, port):
        reader, writer = await connect(port)
        writer.write(framed(b"one"))
        assert await read_frame(reader) == b"one"
        refused_reader, refused_writer = await connect(port)
        with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
            await read_frame(refused_reader)
        writer.close()
        refused_writer.close()


@pytest.mark.parametrize("how", ["closed", "lost"])
async def test_a_peer_that_leaves_cancels_its_request(how: str) -> None:
    """After a peer has closed only its sending side, it may still read, so the cancellation takes a
    moment."""
    started = asyncio.Event()
    cancelled = asyncio.Event()

    async def wait_forever() -> Answer:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return None

    limits = ServerLimits(linger_ms_max=100 if how == "closed" else 600_000)
    async with serving(lambda frame, peer: wait_forever(), limits=limits) as (_, port):
        _, writer = await connect(port)
        writer.write(framed(b"x"))
        await started.wait()
        if how == "lost":
            reset_on_close(writer)
        writer.close()
        await in_time(cancelled.wait())


async def test_a_refusal_after_the_peer_left_is_not_logged_as_a_fault(
    caplog: pytest.LogCaptureFixture,
) -> None:
    started = asyncio.Event()
    refused = asyncio.Event()

    async def refuse_at_last() -> Answer:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            refused.set()
            raise CloseConnection("too late") from None
        return None

    async with serving(lambda frame, peer: refuse_at_last()) as (server, port):
        _, writer = await connect(port)
        writer.write(framed(b"x"))
        await started.wait()
        reset_on_close(writer)
        writer.close()
        await in_time(refused.wait())
        assert server.connection_count == 0
    gc.collect()
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


@pytest.mark.skipif(not socket.has_ipv6, reason="there is no IPv6 here")
async def test_an_address_is_the_same_on_a_listener_that_takes_ipv6_too() -> None:
    config = BrokerConfig(max_connections_per_ip_overrides="127.0.0.1:1")
    server = Server(handle=echo, config=config, clock=SystemClock())
    opened = bind(Bind("PLAINTEXT", "::", 0))
    port = opened.getsockname()[1]
    await server.open([("PLAINTEXT", opened)])
    reader, writer = await connect(port)
    writer.write(framed(b"x"))
    assert await read_frame(reader) == b"x"
    one_too_many, other_writer = await connect(port)
    other_writer.write(framed(b"x"))
    with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
        await read_frame(one_too_many)
    writer.close()
    other_writer.close()
    await server.close(1)


async def test_close_lets_the_request_in_flight_be_answered() -> None:
    gate = asyncio.Event()
    started = asyncio.Event()

    async def slow() -> Answer:
        started.set()
        await gate.wait()
        return [framed(b"done")]

    server = Server(handle=lambda f, p: slow(), config=BrokerConfig(), clock=SystemClock())
    opened = bind(Bind("PLAINTEXT", "127.0.0.1", 0))
    port = opened.getsockname()[1]
    await server.open([("PLAINTEXT", opened)])
    reader, writer = await connect(port)
    writer.write(framed(b"x"))
    await started.wait()
    closing = asyncio.create_task(server.close(5))
    gate.set()
    assert await read_frame(reader) == b"done"
    assert await reader.read() == b""
    await closing
    assert server.connection_count == 0
    writer.close()


async def test_bytes_beyond_the_buffer_wait_for_the_request_in_flight() -> None:
    gate = asyncio.Event()

    async def slow(payload: bytes) -> Answer:
        await gate.wait()
        return [framed(payload)]

    big = b"b" * 200_000
    async with serving(lambda frame, peer: slow(bytes(frame))) as (_, port):
        reader, writer = await connect(port)
        writer.write(framed(b"first") + framed(big))
        gate.set()
        assert await read_frame(reader) == b"first"
        assert await read_frame(reader) == big
        writer.close()


async def test_a_port_in_use_is_a_one_line_startup_error() -> None:
    async with serving(echo) as (_, port):
        with pytest.raises(StartupError, match=f"127.0.0.1:{port}.*another process has the port"):
            bind(Bind("PLAINTEXT", "127.0.0.1", port))


async def test_a_peer_that_does_not_read_is_not_served_further() -> None:
    served = 0

    def handle(frame: memoryview, peer: Peer) -> Answer:
        nonlocal served
        served += 1
        return [framed(b"r" * 100_000)]

    limits = ServerLimits(write_buffer_bytes_max=200_000)
    async with serving(handle, limits=limits) as (_, port):
        reader, writer = await connect(port)
        request = framed(b"q" * 1000)
        writer.write(request * 300)
        witness, other = await connect(port)
        other.write(framed(b"x"))
        await read_frame(witness)
        assert served < 200
        for _ in range(300):
            assert len(await read_frame(reader)) == 100_000
        writer.close()
        other.close()


async def test_unread_answers_are_counted_until_peers_read_them_or_leave() -> None:
    size = 10_000_000

    def handle(frame: memoryview, peer: Peer) -> Answer:
        return [framed(b"r" * size)]

    async with serving(handle) as (server, port):
        slow, slow_writer = await connect(port)
        _gone, gone_writer = await connect(port)
        for writer in (slow_writer, gone_writer):
            writer.write(framed(b"q"))
        await until(lambda: server.unsent_bytes > size)
        gone_writer.transport.abort()
        await until(lambda: 0 < server.unsent_bytes < size)
        await read_frame(slow)
        await until(lambda: server.unsent_bytes == 0)
        slow_writer.close()


async def test_one_connection_with_many_requests_does_not_keep_the_others_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    arrived = 0
    buffer_updated = Connection.buffer_updated

    def counting(connection: Connection, nbytes: int) -> None:
        nonlocal arrived
        arrived += nbytes
        buffer_updated(connection, nbytes)

    monkeypatch.setattr(Connection, "buffer_updated", counting)
    gate = asyncio.Event()
    served: list[bytes] = []

    async def after_the_gate() -> Answer:
        await gate.wait()
        return None

    def handle(frame: memoryview, peer: Peer) -> Answer | Awaitable[Answer]:
        served.append(bytes(frame))
        return after_the_gate() if served[-1] == b"wait" else None

    limits = ServerLimits(requests_per_turn_max=10)
    async with serving(handle, limits=limits) as (_, port):
        _, busy = await connect(port)
        busy.write(framed(b"large" * 1000))  # makes the buffer large
        busy.write(framed(b"wait"))
        await until(lambda: b"wait" in served)
        busy.write(framed(b"x") * 500)
        turns: list[int] = []

        def turn() -> None:
            turns.append(len(served))
            if len(served) < 502:
                asyncio.get_running_loop().call_soon(turn)

        await until(lambda: arrived == 5004 + 8 + 500 * 5)
        gate.set()
        turn()
        await until(lambda: len(served) == 502)
        assert max(b - a for a, b in pairwise(turns)) <= 20
        busy.close()


async def test_a_request_that_is_cancelled_closes_its_connection() -> None:
    """Otherwise the peer would wait for the answer forever."""

    async def cancelled() -> Answer:
        raise asyncio.CancelledError

    def handle(frame: memoryview, peer: Peer) -> Awaitable[Answer]:
        return cancelled()

    async with serving(handle) as (_, port):
        reader, writer = await connect(port)
        writer.write(framed(b"x"))
        async with asyncio.timeout(PATIENCE_S):
            assert await reader.read() == b""
        writer.close()


@pytest.mark.parametrize("loop_factory", [asyncio.new_event_loop, _LOOP_FACTORY])
def test_no_answer_waits_for_the_acknowledgement_of_an_earlier_one(
    loop_factory: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    """Otherwise the system would delay the second answer by 40 ms if a client sent two requests at
    once."""

    async def connected() -> None:
        async with serving(echo) as (server, port):
            _, writer = await connect(port)
            await until(lambda: server.connection_count == 1)
            (accepted,) = server._connections
            assert accepted._transport is not None
            opened = accepted._transport.get_extra_info("socket")
            assert opened.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            writer.close()

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(connected())
