"""Tests of the limits on what peers can use: connections, memory, files, log lines."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
import struct
from collections.abc import Awaitable
from contextlib import AsyncExitStack

import pytest

from pybroker.clock import ManualClock, SystemClock
from pybroker.config.broker_config import BrokerConfig
from pybroker.errors import MalformedInput
from pybroker.server.acceptor import RETRY_S, Acceptor, CreationRate
from pybroker.server.connection import Answer, Peer
from pybroker.server.listener import Bind, Server, bind
from pybroker.server.refusals import mistaken_protocol
from pybroker.server.request_memory import SMALL_REQUEST_BYTES, RequestMemory
from unit_tests.idle_loop import idle
from unit_tests.patience import MOMENT_S, in_time
from unit_tests.server.test_connection import connect, echo, framed, read_frame, serving

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def asked(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    """Send one request, and return its answer."""
    writer.write(framed(b"?"))
    return await in_time(read_frame(reader))


async def is_closed(reader: asyncio.StreamReader) -> bool:
    try:
        return await in_time(reader.read()) == b""
    except ConnectionResetError:
        return True


async def stays_silent(reader: asyncio.StreamReader) -> bool:
    try:
        await asyncio.wait_for(reader.readexactly(1), MOMENT_S)
    except TimeoutError:
        return True
    return False


# connections


async def test_a_connection_above_max_connections_waits_until_another_closes() -> None:
    async with serving(echo, BrokerConfig(max_connections=2)) as (server, port):
        first, second, third = [await connect(port) for _ in range(3)]
        assert await asked(*first) == await asked(*second) == b"?"
        third[1].write(framed(b"late"))
        assert await stays_silent(third[0])
        assert server.connection_count == 2
        first[1].close()
        assert await in_time(read_frame(third[0])) == b"late"
        second[1].close()
        third[1].close()


async def test_a_waiting_connection_is_accepted_when_the_limit_is_raised() -> None:
    async with serving(echo, BrokerConfig(max_connections=1)) as (server, port):
        first, second = [await connect(port) for _ in range(2)]
        assert await asked(*first) == b"?"
        second[1].write(framed(b"late"))
        assert await stays_silent(second[0])
        server.reconfigure(BrokerConfig(max_connections=2))
        assert await in_time(read_frame(second[0])) == b"late"
        assert await asked(*first) == b"?"
        first[1].close()
        second[1].close()


async def test_a_broker_above_max_connections_replaces_the_most_idle_client() -> None:
    names = "CLIENTS://:0,BROKERS://:1"
    config = BrokerConfig(max_connections=2, listeners=names, inter_broker_listener_name="BROKERS")
    clock = ManualClock()
    server = Server(handle=echo, config=config, clock=clock)
    sockets = {name: bind(Bind(name, "127.0.0.1", 0)) for name in ("CLIENTS", "BROKERS")}
    ports = {name: opened.getsockname()[1] for name, opened in sockets.items()}
    await server.open(list(sockets.items()))
    try:
        silent, busy = await connect(ports["CLIENTS"]), await connect(ports["CLIENTS"])
        assert await asked(*silent) == b"?"
        clock.advance(1)
        assert await asked(*busy) == b"?"
        broker = await connect(ports["BROKERS"])
        assert await asked(*broker) == b"?"
        assert await is_closed(silent[0])
        assert await asked(*busy) == b"?"
        for _, writer in (silent, busy, broker):
            writer.close()
    finally:
        await server.close(1)


def test_connections_are_created_at_the_allowed_rate() -> None:
    clock = ManualClock()
    rate = CreationRate(10, clock)
    for _ in range(10):
        assert rate.delay_s() == 0
        rate.take()
    assert rate.delay_s() == pytest.approx(0.1)
    clock.advance(0.1)
    assert rate.delay_s() == pytest.approx(0)
    rate.take()
    assert rate.delay_s() == pytest.approx(0.1)
    clock.advance(3600)
    for _ in range(10):
        assert rate.delay_s() == 0
        rate.take()
    assert rate.delay_s() > 0, "unused seconds are not saved up"


async def test_connections_above_the_creation_rate_wait_and_are_not_refused() -> None:
    async with serving(echo, BrokerConfig(max_connection_creation_rate=20)) as (_, port):
        begin = SystemClock().monotonic()  # the server's clock
        peers = [await connect(port) for _ in range(26)]
        assert [await asked(*peer) for peer in peers] == [b"?"] * 26
        assert SystemClock().monotonic() - begin >= 0.299, "six wait for 1/20 s each"
        for _, writer in peers:
            writer.close()


class FailingSocket:
    """A listening socket that has no descriptor for the next `failures` connections."""

    def __init__(self, real: socket.socket, number: int, failures: int) -> None:
        self._real = real
        self._number = number
        self.failures = failures

    def __getattr__(self, name: str) -> object:
        return getattr(self._real, name)

    def accept(self) -> tuple[socket.socket, object]:
        if self.failures:
            self.failures -= 1
            raise OSError(self._number, "Too many open files")
        return self._real.accept()


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.EPERM])
async def test_accepting_pauses_without_file_descriptors_and_resumes(
    number: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    listening = FailingSocket(bind(Bind("PLAINTEXT", "127.0.0.1", 0)), number, failures=3)
    came: asyncio.Future[socket.socket] = asyncio.get_running_loop().create_future()
    acceptor = Acceptor(
        "PLAINTEXT",
        listening,  # type: ignore[arg-type]  # as a socket, but for its accept
        clock=SystemClock(),
        delay_s=lambda: 0.0,
        adopt=came.set_result,
    )
    acceptor.open(5)
    with socket.create_connection(listening.getsockname()):  # type: ignore[operator]
        (await in_time(came)).close()
    acceptor.close()
    assert listening.failures == 0
    if number != errno.EPERM:
        told = [record.getMessage() for record in caplog.records]
        assert len(told) == 2, "one line when it begins, one when it is over"
        assert "no connection can be accepted" in told[0] and "ulimit -n" in told[0]
        assert "accepting connections again" in told[1]


async def test_connections_do_not_get_the_last_descriptors(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    came: list[socket.socket] = []
    changed = asyncio.Event()
    limit = 0

    def adopt(connected: socket.socket) -> None:
        came.append(connected)
        changed.set()

    listening = bind(Bind("PLAINTEXT", "127.0.0.1", 0))
    acceptor = Acceptor(
        "PLAINTEXT",
        listening,
        clock=SystemClock(),
        delay_s=lambda: 0.0,
        adopt=adopt,
        descriptors_max=lambda: limit,
    )
    acceptor.open(5)
    with contextlib.ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(socket.create_connection(listening.getsockname()))
        await in_time(changed.wait())
        changed.clear()
        with pytest.raises(TimeoutError):  # except for the one that showed how few are left
            await asyncio.wait_for(changed.wait(), 3 * RETRY_S)
        limit = 1_000_000
        while len(came) < 3:
            changed.clear()
            await in_time(changed.wait())
        for connected in came:
            connected.close()
    acceptor.close()
    assert [each.split(" ")[0] for each in caplog.messages] == ["no", "accepting"]


async def test_per_address_limits_refuse_in_a_bounded_number_of_lines(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serving(echo, BrokerConfig(max_connections_per_ip=0)) as (_, port):
        for _ in range(30):
            reader, writer = await connect(port)
            assert await is_closed(reader)
            writer.close()
    lines = [each for each in caplog.messages if "max.connections.per.ip=0" in each]
    assert len(lines) == 10


# time


def partial_frame(arrived: int, size: int = 1_000_000) -> bytes:
    return struct.pack(">i", size) + bytes(arrived)


async def test_a_request_that_does_not_arrive_closes_its_connection() -> None:
    """Single bytes that arrive now and then do not prevent this."""
    clock = ManualClock()
    async with serving(echo, clock=clock) as (server, port):
        slow, fine = await connect(port), await connect(port)
        slow[1].write(partial_frame(10))
        assert await asked(*fine) == b"?"
        for _ in range(3):
            server.reap()
            clock.advance(10)
            slow[1].write(b"x")
            assert await asked(*fine) == b"?"
        server.reap()
        assert server.connection_count == 2, "30 s are not over"
        clock.advance(1)
        server.reap()
        assert await is_closed(slow[0])
        assert await asked(*fine) == b"?"
        for _, writer in (slow, fine):
            writer.close()


async def ask_slowly(
    writer: asyncio.StreamWriter, witness: Streams, server: Server, clock: ManualClock
) -> None:
    """Send 1 MB at 5 kB a second. The witness shows when the written bytes have been received."""
    writer.write(struct.pack(">i", 1_000_000))
    for _ in range(20):
        writer.write(bytes(50_000))
        await writer.drain()
        assert await asked(*witness) == b"?"
        server.reap()
        clock.advance(10)


async def test_a_large_request_may_take_long_if_it_keeps_arriving() -> None:
    clock = ManualClock()
    async with serving(echo, clock=clock) as (server, port):
        reader, writer = await connect(port)
        witness = await connect(port)
        await ask_slowly(writer, witness, server, clock)
        assert await in_time(read_frame(reader)) == bytes(1_000_000)
        writer.close()
        witness[1].close()


async def test_requests_one_after_the_other_are_never_too_slow() -> None:
    """The time limit applies to each request, not to the connection."""
    clock = ManualClock()
    async with serving(echo, clock=clock) as (server, port):
        reader, writer = await connect(port)
        for _ in range(20):
            writer.write(framed(b"12345678") + partial_frame(1, 3))
            assert await read_frame(reader) == b"12345678"
            server.reap()
            clock.advance(10)
            writer.write(b"23")
            assert await read_frame(reader) == b"\x0023"
        writer.close()


@pytest.mark.parametrize(("idle_ms", "closes"), [(600_000, True), (-1, False)])
async def test_a_quiet_connection_is_closed_after_its_time_if_there_is_one(
    idle_ms: int, closes: bool
) -> None:
    clock = ManualClock()
    async with serving(echo, BrokerConfig(connections_max_idle_ms=idle_ms), clock) as (
        server,
        port,
    ):
        reader, writer = await connect(port)
        assert await asked(reader, writer) == b"?"
        clock.advance(601)
        server.reap()
        if closes:
            assert await is_closed(reader)
        else:
            assert await asked(reader, writer) == b"?"
        writer.close()


async def test_a_peer_that_never_reads_its_answers_is_closed_after_that_time() -> None:
    clock = ManualClock()

    def much(frame: memoryview, peer: Peer) -> Answer:
        return [framed(bytes(8_000_000) if bytes(frame) == b"much" else b"?")]

    async with serving(much, clock=clock) as (server, port):
        witness = await connect(port)
        with socket.create_connection(("127.0.0.1", port)) as deaf:
            deaf.sendall(framed(b"much") * 3)
            while server.unsent_bytes == 0:
                assert await asked(*witness) == b"?"
            clock.advance(601)
            assert await asked(*witness) == b"?"
            server.reap()
            while server.connection_count > 1:
                assert await asked(*witness) == b"?"
            assert server.unsent_bytes == 0
        witness[1].close()


# what arrived before the end


async def test_requests_received_before_the_peer_closed_its_side_are_answered() -> None:
    gate = asyncio.Event()

    async def slow(payload: bytes) -> Answer:
        await gate.wait()
        return [framed(payload)]

    async with serving(lambda frame, peer: slow(bytes(frame))) as (_, port):
        reader, writer = await connect(port)
        for payload in (b"one", b"two", b"three"):
            writer.write(framed(payload))
        writer.write_eof()
        await idle()
        gate.set()
        assert [await read_frame(reader) for _ in range(3)] == [b"one", b"two", b"three"]
        assert await is_closed(reader)
        writer.close()


# memory

LARGE = 10 * SMALL_REQUEST_BYTES


class Gate:
    """A handler whose requests wait until they are released."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.inside = 0

    def __call__(self, frame: memoryview, peer: Peer) -> Answer | Awaitable[Answer]:
        return self._answer(bytes(frame[:1])) if len(frame) > 1 else [framed(bytes(frame))]

    async def _answer(self, payload: bytes) -> Answer:
        self.inside += 1
        await self.open.wait()
        self.inside -= 1
        return [framed(payload)]


def large(letter: bytes) -> bytes:
    return framed(letter * LARGE)


async def test_large_requests_wait_while_others_take_the_memory_and_small_ones_do_not() -> None:
    gate = Gate()
    config = BrokerConfig(queued_max_request_bytes=2 * LARGE)
    async with serving(gate, config) as (_, port), AsyncExitStack() as stack:
        peers = [await connect(port) for _ in range(6)]
        for _, writer in peers:
            stack.callback(writer.close)
        sending = []
        for number, (_, writer) in enumerate(peers):
            writer.write(large(b"%d" % number))
            sending.append(asyncio.ensure_future(writer.drain()))
        small = await connect(port)
        stack.callback(small[1].close)
        while gate.inside < 2:
            assert await asked(*small) == b"?"
        for _ in range(20):
            assert await asked(*small) == b"?"
        assert gate.inside == 2
        gate.open.set()
        answers = [await in_time(read_frame(reader)) for reader, _ in peers]
        assert answers == [b"%d" % number for number in range(6)]
        await asyncio.gather(*sending)


async def test_one_request_above_the_whole_limit_is_served_alone() -> None:
    async with serving(echo, BrokerConfig(queued_max_request_bytes=1)) as (_, port):
        reader, writer = await connect(port)
        for letter in (b"a", b"b", b"c"):
            writer.write(large(letter))
            assert await in_time(read_frame(reader)) == letter * LARGE
        writer.close()


async def test_a_peer_that_leaves_frees_its_request_memory() -> None:
    async with serving(echo, BrokerConfig(queued_max_request_bytes=LARGE)) as (_, port):
        holder, waiting, last = [await connect(port) for _ in range(3)]
        witness = await connect(port)
        holder[1].write(partial_frame(SMALL_REQUEST_BYTES * 2))
        assert await asked(*witness) == b"?"
        waiting[1].write(large(b"w"))
        assert await asked(*witness) == b"?"
        waiting[1].transport.abort()
        last[1].write(large(b"l"))
        assert await asked(*witness) == b"?"
        assert await stays_silent(last[0])
        holder[1].transport.abort()
        assert await in_time(read_frame(last[0])) == b"l" * LARGE
        for _, writer in (last, witness):
            writer.close()


def test_request_memory_is_assigned_in_the_order_of_waiting() -> None:
    memory = RequestMemory(100)
    came: list[str] = []

    def asking(name: str, size: int) -> None:
        if memory.take(size, lambda: asking(name, size)):
            came.append(name)

    for name, size in (("a", 60), ("b", 60), ("c", 10), ("d", 500), ("e", 1)):
        asking(name, size)
    assert came == ["a", "b"], "what is left is given whole, then there is none"
    memory.give(60)
    assert came == ["a", "b", "c", "d"]
    memory.give(60)
    memory.give(10)
    assert came[-1] == "d"
    memory.give(500)
    assert came[-1] == "e"
    memory.give(1)
    assert memory.taken_bytes == 0


# words for the mistaken

SPOKEN = {
    "TLS": bytes.fromhex("16030100c8010000c40303") + bytes(200),
    "HTTP": b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n",
}


@pytest.mark.parametrize("protocol", SPOKEN)
async def test_a_peer_with_another_protocol_is_named_in_the_log(
    protocol: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(echo) as (_, port):
        for _ in range(30):
            reader, writer = await connect(port)
            writer.write(SPOKEN[protocol])
            assert await is_closed(reader)
            writer.close()
    assert all(protocol in each for each in caplog.messages)
    assert 1 <= len(caplog.messages) <= 10


@pytest.mark.parametrize("begin", [b"", b"\x16", b"\x00\x00\x00\x10", b"GE", b"\x16\x04"])
def test_other_first_bytes_name_no_protocol(begin: bytes) -> None:
    assert mistaken_protocol(begin) is None


async def test_garbage_from_many_peers_logs_few_lines(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    def refuse(frame: memoryview, peer: Peer) -> Answer:
        raise MalformedInput("garbage")

    server = Server(handle=refuse, config=BrokerConfig(), clock=SystemClock())
    opened = bind(Bind("PLAINTEXT", "127.0.0.1", 0))
    await server.open([("PLAINTEXT", opened)])
    port = opened.getsockname()[1]
    for _ in range(50):
        reader, writer = await connect(port)
        writer.write(framed(b"x"))
        assert await is_closed(reader)
        writer.close()
    await server.close(1)
    assert len([each for each in caplog.messages if "garbage" in each]) == 10
