"""Tests of a connection to a server that answers in pieces, wrongly, or not at all."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from pybroker.client.connection import Connection
from pybroker.client.errors import (
    AnswerTooLarge,
    ClientError,
    ConnectFailed,
    ConnectionLost,
    NotConnected,
    RequestTimedOut,
    UnsupportedByBroker,
)
from pybroker.errors import ErrorCode
from pybroker.host.run import _LOOP_FACTORY
from pybroker.wire.api import APIS, ApiKey
from pybroker.wire.codec import encode_response
from pybroker.wire.headers import encode_response_header
from pybroker.wire.messages.cluster import ApiVersion, ApiVersionsResponse
from pybroker.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from unit_tests.client.fake_broker import versions
from unit_tests.idle_loop import idle, loop_turns
from unit_tests.patience import PATIENCE_S

Peer = Callable[["Wire"], Awaitable[None]]
AT_ONCE_S = 0.2
"""How long to wait for a silent server."""
SOON_S = 1.0
"""How long to wait for a server that answers."""


class Wire:
    """The server's end. It receives requests as (api key, version, correlation id)."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer

    async def request(self) -> tuple[int, int, int]:
        (size,) = struct.unpack(">i", await self._reader.readexactly(4))
        frame = await self._reader.readexactly(size)
        key, version, correlation_id = struct.unpack_from(">hhi", frame)
        return key, version, correlation_id

    async def read(self) -> bytes:
        return await self._reader.read(2**20)

    def raw(self, data: bytes) -> None:
        self.writer.write(data)

    async def handshake(self, response: ApiVersionsResponse | None = None) -> None:
        _, version, correlation_id = await self.request()
        message = response or versions()
        self.raw(framed(correlation_id, ApiKey.API_VERSIONS, version, message))


def framed(correlation_id: int, key: ApiKey, version: int, message: object) -> bytes:
    api = APIS[key]
    head = encode_response_header(correlation_id, api.response_header_version(version))
    body = encode_response(api, version, message)  # type: ignore[arg-type]
    return struct.pack(">i", len(head) + len(body)) + head + body


def metadata(correlation_id: int, version: int) -> bytes:
    return framed(correlation_id, ApiKey.METADATA, version, MetadataResponse(cluster_id="c"))


@asynccontextmanager
async def serving(peer: Peer) -> AsyncIterator[int]:
    """Yield the port of a server that runs `peer` for each connection."""
    writers = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        try:
            await peer(Wire(reader, writer))
        except (asyncio.IncompleteReadError, OSError):
            pass

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for writer in writers:
            writer.transport.abort()


async def connect(port: int, timeout_s: float = PATIENCE_S, **limits: int) -> Connection:
    return await Connection.open("127.0.0.1", port, client_id="test", timeout_s=timeout_s, **limits)


async def ask(connection: Connection, timeout_s: float = PATIENCE_S) -> MetadataResponse:
    return await connection.send(
        ApiKey.METADATA, MetadataRequest(topics=[]), MetadataResponse, timeout_s=timeout_s
    )


async def hear_after_handshake(
    peer: Peer, timeout_s: float = PATIENCE_S, **limits: int
) -> BaseException | None:
    """Send one request to such a server after the handshake. Return the error."""

    async def whole(wire: Wire) -> None:
        await wire.handshake()
        await peer(wire)

    async with serving(whole) as port:
        connection = await connect(port, **limits)
        try:
            await ask(connection, timeout_s)
            return None
        except (ConnectionLost, RequestTimedOut) as error:
            assert not connection.usable
            with pytest.raises(NotConnected):
                await ask(connection)
            return error
        finally:
            await connection.close()


async def test_an_answer_may_come_in_pieces() -> None:
    async def peer(wire: Wire) -> None:
        _, version, correlation_id = await wire.request()
        for byte in metadata(correlation_id, version):
            wire.raw(bytes([byte]))
            await wire.writer.drain()
        await wire.request()

    assert await hear_after_handshake(peer) is None


async def test_answers_may_come_together() -> None:
    async def peer(wire: Wire) -> None:
        await wire.handshake()
        first, second = await wire.request(), await wire.request()
        wire.raw(metadata(first[2], first[1]) + metadata(second[2], second[1]))
        await wire.request()

    async with serving(peer) as port:
        connection = await connect(port)
        both = await asyncio.gather(ask(connection), ask(connection))
        assert [answer.cluster_id for answer in both] == ["c", "c"]
        await connection.close()


async def wrong_correlation_id(wire: Wire) -> None:
    _, version, correlation_id = await wire.request()
    wire.raw(metadata(correlation_id + 1, version))
    await wire.request()


async def too_large(wire: Wire) -> None:
    await wire.request()
    wire.raw(struct.pack(">i", 5_000))
    await wire.request()


async def negative_length(wire: Wire) -> None:
    await wire.request()
    wire.raw(struct.pack(">i", -1))
    await wire.request()


async def cut_off(wire: Wire) -> None:
    _, version, correlation_id = await wire.request()
    wire.raw(metadata(correlation_id, version)[:-3])
    await wire.writer.drain()
    wire.writer.close()


async def closes(wire: Wire) -> None:
    await wire.request()
    wire.writer.close()


async def nonsense(wire: Wire) -> None:
    _, _, correlation_id = await wire.request()
    wire.raw(struct.pack(">iib", 5, correlation_id, 0) + b"")
    await wire.request()


async def silent(wire: Wire) -> None:
    await wire.request()
    await wire.request()


@pytest.mark.parametrize(
    ("peer", "kind", "text"),
    [
        (wrong_correlation_id, ConnectionLost, "a response has correlation id 2, expected 1"),
        (too_large, AnswerTooLarge, "the response has 5000 bytes"),
        (negative_length, ConnectionLost, "the response size is -1 bytes"),
        (cut_off, ConnectionLost, "in the middle of a response"),
        (closes, ConnectionLost, "before the response"),
        (nonsense, ConnectionLost, "cannot be read"),
        (silent, RequestTimedOut, "no response to METADATA within"),
    ],
)
async def test_a_bad_answer_ends_the_connection(
    peer: Peer, kind: type[Exception], text: str
) -> None:
    timeout_s = AT_ONCE_S if peer is silent else PATIENCE_S
    error = await hear_after_handshake(peer, timeout_s, response_max_bytes=4_000)
    assert isinstance(error, kind) and isinstance(error, ClientError)
    assert text in str(error)
    assert not error.definite


async def test_requests_behind_a_late_answer_fail() -> None:
    async def peer(wire: Wire) -> None:
        await wire.handshake()
        await asyncio.Event().wait()

    async with serving(peer) as port:
        connection = await connect(port)
        patient = asyncio.ensure_future(ask(connection))
        with pytest.raises(RequestTimedOut):
            await ask(connection, AT_ONCE_S)
        with pytest.raises(ConnectionLost):
            await patient
        await connection.close()


@pytest.mark.parametrize("loop_factory", [asyncio.new_event_loop, _LOOP_FACTORY])
def test_no_request_waits_for_the_acknowledgement_of_an_earlier_one(
    loop_factory: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    async def peer(wire: Wire) -> None:
        await wire.handshake()
        await asyncio.Event().wait()

    async def connected() -> None:
        async with serving(peer) as port:
            connection = await connect(port)
            opened = connection._writer.get_extra_info("socket")
            assert opened.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            await connection.close()

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(connected())


@pytest.mark.parametrize("loop_factory", [asyncio.new_event_loop, _LOOP_FACTORY])
def test_nothing_is_written_to_a_connection_that_broke_a_moment_ago(
    loop_factory: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    """The transport knows that the connection broke, and has not called `connection_lost` yet."""

    async def peer(wire: Wire) -> None:
        await wire.handshake()
        await asyncio.Event().wait()

    async def ask_too_late() -> None:
        async with serving(peer) as port:
            connection = await connect(port)
            connection._writer.transport.abort()
            with pytest.raises(NotConnected, match="the connection broke"):
                await ask(connection)
            assert not connection.usable
            await connection.close()

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(ask_too_late())


@pytest.mark.parametrize("times_out", [True, False])
@pytest.mark.parametrize("loop_factory", [asyncio.new_event_loop, _LOOP_FACTORY])
def test_an_abandoned_request_does_not_arrive_later(
    loop_factory: Callable[[], asyncio.AbstractEventLoop], times_out: bool
) -> None:
    """Otherwise the operating system would still deliver the bytes, and a command of the
    controller, or a batch, would arrive after the request that replaced it."""

    async def play() -> str:
        given_up = asyncio.Event()
        heard: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        async def peer(wire: Wire) -> None:
            await wire.handshake()
            await given_up.wait()
            try:
                while await wire.read():
                    pass
                heard.set_result("all of it, and a regular end")
            except ConnectionResetError:
                heard.set_result("a reset")

        async with serving(peer) as port:
            connection = await connect(port)
            topics = [MetadataRequestTopic(name="n" * 200) for _ in range(100_000)]
            asking = asyncio.ensure_future(
                connection.send(
                    ApiKey.METADATA,
                    MetadataRequest(topics=topics),
                    MetadataResponse,
                    timeout_s=AT_ONCE_S if times_out else PATIENCE_S,
                )
            )
            await loop_turns(1)
            if not times_out:
                await connection.close(flush=False)
            with pytest.raises((ConnectionLost, RequestTimedOut)):
                await asking
            given_up.set()
            async with asyncio.timeout(PATIENCE_S):
                outcome = await heard
            await connection.close()
            return outcome

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        assert runner.run(play()) == "a reset"


async def test_an_answer_to_a_cancelled_request_is_skipped() -> None:
    async def peer(wire: Wire) -> None:
        await wire.handshake()
        first, second = await wire.request(), await wire.request()
        wire.raw(metadata(first[2], first[1]) + metadata(second[2], second[1]))
        await wire.request()

    async with serving(peer) as port:
        connection = await connect(port)
        given_up = asyncio.ensure_future(ask(connection))
        await idle()
        given_up.cancel()
        assert (await ask(connection)).cluster_id == "c"
        await connection.close()


async def test_a_dead_connection_ends_although_its_callers_give_up_early() -> None:
    """Otherwise a caller that gives up early would get the same dead connection again and again."""

    async def peer(wire: Wire) -> None:
        await wire.handshake()
        await asyncio.Event().wait()

    async with serving(peer) as port:
        connection = await connect(port)
        impatient = asyncio.ensure_future(ask(connection, AT_ONCE_S))
        await idle()
        impatient.cancel()
        with pytest.raises(ConnectionLost, match="no response to METADATA within"):
            async with asyncio.timeout(PATIENCE_S):
                await ask(connection, 2 * PATIENCE_S)
        assert not connection.usable
        await connection.close()


async def test_a_cancelled_request_does_not_end_a_connection_that_answers() -> None:
    async def peer(wire: Wire) -> None:
        await wire.handshake()
        while True:
            _, version, correlation_id = await wire.request()
            wire.raw(metadata(correlation_id, version))

    async with serving(peer) as port:
        connection = await connect(port)
        impatient = asyncio.ensure_future(ask(connection, SOON_S))
        await idle()
        impatient.cancel()
        assert (await ask(connection)).cluster_id == "c"
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(SOON_S + AT_ONCE_S):
                await asyncio.shield(connection._writer.wait_closed())
        assert connection.usable
        await connection.close()


async def test_a_close_that_is_cancelled_leaves_nothing_to_a_peer_that_does_not_read() -> None:
    async def peer(wire: Wire) -> None:
        await wire.handshake()
        wire.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await asyncio.Event().wait()

    async with serving(peer) as port:
        connection = await connect(port)
        large = MetadataRequest(topics=[MetadataRequestTopic(name="x" * 30_000)] * 1_000)
        telling = asyncio.ensure_future(
            connection.tell(ApiKey.METADATA, large, timeout_s=PATIENCE_S)
        )
        await idle()
        closing = asyncio.ensure_future(connection.close())
        await idle()
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(connection._writer.wait_closed(), return_exceptions=True)
            with pytest.raises(ConnectionLost):
                await telling


@pytest.mark.parametrize("leaves", [False, True])
async def test_a_request_without_an_answer_fails_if_the_peer_does_not_take_it(leaves: bool) -> None:
    leave = asyncio.Event()

    async def peer(wire: Wire) -> None:
        await wire.handshake()
        wire.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await leave.wait()
        wire.writer.transport.abort()

    async with serving(peer) as port:
        connection = await connect(port)
        large = MetadataRequest(topics=[MetadataRequestTopic(name="x" * 30_000)] * 1_000)
        limit_s = PATIENCE_S if leaves else AT_ONCE_S
        telling = asyncio.ensure_future(connection.tell(ApiKey.METADATA, large, timeout_s=limit_s))
        await idle()
        if leaves:
            leave.set()
        with pytest.raises(ConnectionLost if leaves else RequestTimedOut):
            await telling
        assert not connection.usable
        await connection.close()


# Agreeing on versions


async def test_an_old_broker_is_asked_again_in_the_version_it_names() -> None:
    asked = []

    async def peer(wire: Wire) -> None:
        _, version, correlation_id = await wire.request()
        asked.append(version)
        old = ApiVersionsResponse(
            error_code=ErrorCode.UNSUPPORTED_VERSION,
            api_keys=[ApiVersion(api_key=18, min_version=0, max_version=2)],
        )
        wire.raw(framed(correlation_id, ApiKey.API_VERSIONS, 0, old))
        _, version, correlation_id = await wire.request()
        asked.append(version)
        wire.raw(framed(correlation_id, ApiKey.API_VERSIONS, version, versions()))
        await wire.request()

    async with serving(peer) as port:
        connection = await connect(port)
        assert asked == [3, 2]
        await connection.close()


async def test_the_version_is_the_highest_that_both_know() -> None:
    async def peer(wire: Wire) -> None:
        rows = [(ApiKey.METADATA, 1, 5), (ApiKey.PRODUCE, 0, 99), (ApiKey.FETCH, 90, 99)]
        await wire.handshake(
            ApiVersionsResponse(
                api_keys=[
                    ApiVersion(api_key=key, min_version=low, max_version=high)
                    for key, low, high in rows
                ]
            )
        )
        await wire.request()

    async with serving(peer) as port:
        connection = await connect(port)
        assert connection.version_of(ApiKey.METADATA) == 5
        assert connection.version_of(ApiKey.PRODUCE) == APIS[ApiKey.PRODUCE].max_version
        for key in (ApiKey.FETCH, ApiKey.CREATE_TOPICS):
            with pytest.raises(UnsupportedByBroker, match=key.name):
                connection.version_of(key)
        await connection.close()


async def hangs_up(wire: Wire) -> None:
    wire.writer.close()


async def web_server(wire: Wire) -> None:
    await wire.request()
    wire.raw(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    await wire.request()


@pytest.mark.parametrize(
    ("peer", "text"),
    [
        (hangs_up, "not to a Kafka broker"),
        (web_server, "not to a Kafka broker"),
        (silent, "no Kafka broker responded"),
    ],
)
async def test_a_peer_that_is_no_broker_is_named_in_the_error(peer: Peer, text: str) -> None:
    async with serving(peer) as port:
        with pytest.raises(ConnectFailed, match=text):
            await connect(port, AT_ONCE_S if peer is silent else PATIENCE_S)
