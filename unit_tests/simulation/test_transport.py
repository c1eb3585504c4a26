"""Tests of the guarantees of asyncio's transports. Each test runs on real sockets and on simulated
sockets.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Callable, Coroutine
from typing import Any, cast

import pytest

from pybroker.server.listener import Bind, bind
from pybroker.testing.simulation.environment import Environment
from pybroker.testing.simulation.links import Links
from pybroker.testing.simulation.loop import ProcessLoop
from pybroker.testing.simulation.machine import Machine
from pybroker.testing.simulation.network import Network
from unit_tests.patience import MOMENT_S, in_time


class Events:
    """A protocol that records the calls it receives, with adjacent data joined."""

    starts_paused = False

    def __init__(self) -> None:
        self.transport: asyncio.Transport
        self.unsent_at_resume = -1
        self.keep_open = False
        self.failure: Exception | None = None
        self.data = bytearray()
        self._heard: list[str] = []
        self._waiting: list[tuple[str, int, asyncio.Future[None]]] = []

    @property
    def heard(self) -> str:
        return " ".join(self._heard)

    def hear(self, event: str) -> None:
        if event != "data" or self._heard[-1:] != ["data"]:
            self._heard.append(event)
        for wanted, length, waiter in self._waiting:
            if self._has(wanted, length) and not waiter.done():
                waiter.set_result(None)

    def _has(self, event: str, length: int) -> bool:
        names = [*self._heard, *(heard.partition(":")[0] for heard in self._heard)]
        return event in names and len(self.data) >= length

    async def until(self, event: str, length: int = 0) -> None:
        """Wait until that event has occurred and `length` bytes have arrived. "lost" matches every
        reason.
        """
        if not self._has(event, length):
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((event, length, waiter))
            await in_time(waiter)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        if self.starts_paused:
            self.transport.pause_reading()
        self.hear("made")

    def eof_received(self) -> bool:
        self.hear("eof")
        return self.keep_open

    def connection_lost(self, error: Exception | None) -> None:
        self.hear("lost" if error is None else f"lost:{type(error).__name__}")

    def pause_writing(self) -> None:
        self.hear("pause")

    def resume_writing(self) -> None:
        self.unsent_at_resume = self.transport.get_write_buffer_size()
        self.hear("resume")

    def take(self, data: bytes) -> None:
        if self.failure is not None:
            raise self.failure
        self.data += data
        self.hear("data")


class Streamed(Events, asyncio.Protocol):
    def data_received(self, data: bytes) -> None:
        self.take(data)


class Buffered(Events, asyncio.BufferedProtocol):
    buffer = memoryview(bytearray(70_000))

    def get_buffer(self, _hint: int) -> memoryview:
        return self.buffer

    def buffer_updated(self, length: int) -> None:
        self.take(bytes(self.buffer[:length]))


Both = type[Streamed] | type[Buffered]


class Place:
    """The network of a test: both ends of connections, on real or simulated sockets."""

    def __init__(self, listening: socket.socket, kind: Both, *, is_real: bool) -> None:
        self.listening = listening
        self.port = listening.getsockname()[1]
        self.kind = kind
        self._is_real = is_real
        self.much = 20_000_000 if is_real else 500_000
        """More bytes than the network can have in transit."""

    async def pair(self) -> tuple[Events, Events]:
        """Connect, and return the client's and the server's protocol."""
        loop = asyncio.get_running_loop()
        self.listening.listen(5)
        accepted: asyncio.Future[Any] = loop.create_future()
        loop.add_reader(
            self.listening.fileno(), lambda: accepted.set_result(self.listening.accept()[0])
        )
        connecting = asyncio.create_task(loop.create_connection(self.kind, "127.0.0.1", self.port))
        sock = await accepted
        loop.remove_reader(self.listening.fileno())
        _, server = await loop.connect_accepted_socket(self.kind, sock)
        _, client = await connecting
        return cast("Events", client), cast("Events", server)

    async def arrived(self) -> None:
        """Wait until sent data has reached the other socket and a reading protocol would have
        received it. On a real loopback the data arrives at once.
        """
        await asyncio.sleep(MOMENT_S if self._is_real else 1)


Scenario = Callable[[Place], Coroutine[Any, Any, None]]
Run = Callable[[Scenario], list[str]]


@pytest.fixture(params=["real", "0", "1"])
def where(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=[Streamed, Buffered])
def run(request: pytest.FixtureRequest, where: str) -> Run:
    """Return a function that runs a scenario and returns the contexts passed to the loop's
    exception handler.
    """

    async def bounded(scenario: Scenario, place: Place) -> None:
        await scenario(place)
        place.listening.close()

    def real(scenario: Scenario) -> list[str]:
        failures: list[str] = []

        async def main() -> None:
            loop = asyncio.get_running_loop()
            loop.set_exception_handler(lambda _, told: failures.append(repr(told["exception"])))
            listening = bind(Bind("PLAINTEXT", "127.0.0.1", 0))
            await bounded(scenario, Place(listening, request.param, is_real=True))

        asyncio.run(main())
        return failures

    def simulated(scenario: Scenario) -> list[str]:
        environment = Environment(where)
        network = Network(Links(environment))
        network.splits = 0.4
        machine = Machine(environment, "m")
        tasks: list[asyncio.Task[None]] = []

        async def main(loop: ProcessLoop) -> None:
            place = Place(network.listen(machine, "", 0), request.param, is_real=False)
            tasks.append(loop.create_task(bounded(scenario, place)))

        loop = machine.start(main, network.sockets(machine))
        assert environment.run(100, stop=lambda: bool(tasks) and tasks[0].done())
        tasks[0].result()
        machine.bury()
        return [each.split(": ", 1)[1] for each in loop.failures]

    return real if where == "real" else simulated


def test_data_passes_both_ways_until_one_side_closes(run: Run) -> None:
    async def scenario(place: Place) -> None:
        client, server = await place.pair()
        client.transport.write(b"ask")
        await server.until("data", 3)
        server.transport.writelines([b"ans", bytearray(b"w"), memoryview(b"er")])
        await client.until("data", 6)
        client.transport.close()
        client.transport.close()
        assert client.transport.is_closing()
        client.transport.write(b"ignored")
        await client.until("lost")
        await server.until("lost")
        assert (client.heard, bytes(client.data)) == ("made data lost", b"answer")
        assert (server.heard, bytes(server.data)) == ("made data eof lost", b"ask")
        ours, theirs = (client.transport.get_extra_info(key) for key in ("sockname", "peername"))
        assert theirs[1] == place.port != ours[1]

    assert run(scenario) == []


def test_close_sends_buffered_data_first(run: Run) -> None:
    async def scenario(place: Place) -> None:
        client, server = await place.pair()
        client.transport.write(b"x" * place.much)
        assert client.transport.get_write_buffer_size() > 0
        client.transport.close()
        await server.until("lost")
        await client.until("lost")
        assert client.heard == "made pause resume lost"
        assert (server.heard, len(server.data)) == ("made data eof lost", place.much)

    assert run(scenario) == []


def test_one_direction_can_be_closed_alone(run: Run) -> None:
    async def scenario(place: Place) -> None:
        client, server = await place.pair()
        server.keep_open = True
        client.transport.write(b"ask")
        client.transport.write_eof()
        client.transport.write_eof()
        with pytest.raises(RuntimeError):
            client.transport.write(b"more")
        await server.until("eof")
        server.transport.write(b"answer")
        server.transport.close()
        await client.until("lost")
        await server.until("lost")
        assert (client.heard, bytes(client.data)) == ("made data eof lost", b"answer")
        assert server.heard == "made data eof lost"

    assert run(scenario) == []


def test_the_end_of_data_comes_after_what_is_buffered(run: Run) -> None:
    async def scenario(place: Place) -> None:
        client, server = await place.pair()
        client.transport.write(b"x" * place.much)
        client.transport.write_eof()
        await server.until("eof")
        assert len(server.data) == place.much
        await client.until("lost")
        assert client.heard == "made pause resume eof lost"

    assert run(scenario) == []


def test_a_peer_that_does_not_read_stops_the_writer(run: Run) -> None:
    async def scenario(place: Place) -> None:
        client, server = await place.pair()
        server.transport.pause_reading()
        server.transport.pause_reading()
        assert not server.transport.is_reading()
        client.transport.set_write_buffer_limits(high=100_000, low=10)
        client.transport.write(b"x" * place.much)
        await client.until("pause")
        assert client.transport.get_write_buffer_size() > 100_000
        await place.arrived()
        assert server.heard == "made"
        server.transport.resume_reading()
        server.transport.resume_reading()
        await client.until("resume")
        assert 0 <= client.unsent_at_resume <= 10
        await server.until("data", place.much)
        client.transport.abort()
        await client.until("lost")
        assert client.heard == "made pause resume lost"

    assert run(scenario) == []


def test_a_protocol_that_pauses_reading_at_once_receives_nothing(run: Run, where: str) -> None:
    if where == "real" and sys.version_info < (3, 11, 4):
        pytest.skip("asyncio before Python 3.11.4 ignores a pause in connection_made")

    async def scenario(place: Place) -> None:
        place.kind = cast("Both", type("Paused", (place.kind,), {"starts_paused": True}))
        client, server = await place.pair()
        client.transport.write(b"data")
        await place.arrived()
        assert server.heard == "made"
        server.transport.resume_reading()
        await server.until("data", 4)
        client.transport.close()
        server.transport.close()

    assert run(scenario) == []


def test_the_end_of_data_is_not_reported_while_reading_is_paused(run: Run) -> None:
    async def scenario(place: Place) -> None:
        client, server = await place.pair()
        server.transport.pause_reading()
        client.transport.close()
        await client.until("lost")
        await place.arrived()
        assert server.heard == "made"
        server.transport.resume_reading()
        await server.until("lost")
        assert server.heard == "made eof lost"

    assert run(scenario) == []


def test_closing_a_socket_with_unread_data_resets_the_connection(run: Run) -> None:
    async def scenario(place: Place) -> None:
        client, server = await place.pair()
        server.transport.pause_reading()
        client.transport.write(b"unread")
        await place.arrived()
        server.transport.close()
        await client.until("lost:ConnectionResetError")
        assert client.heard == "made lost:ConnectionResetError"
        assert server.heard == "made lost"

    assert run(scenario) == []


def test_writing_to_a_closed_socket_causes_a_reset(run: Run) -> None:
    async def scenario(place: Place) -> None:
        client, server = await place.pair()
        client.keep_open = True
        server.transport.close()
        await client.until("eof")
        await server.until("lost")
        client.transport.write(b"too late")
        await place.arrived()
        client.transport.write(b"far too late")
        await client.until("lost:BrokenPipeError")
        assert client.heard == "made eof lost:BrokenPipeError"

    assert run(scenario) == []


def test_abort_drops_buffered_data(run: Run) -> None:
    async def scenario(place: Place) -> None:
        client, server = await place.pair()
        client.transport.write(b"x" * place.much)
        client.transport.close()
        client.transport.abort()
        await client.until("lost")
        assert client.heard == "made pause lost"
        assert client.transport.get_write_buffer_size() == 0
        await server.until("lost")
        assert len(server.data) < place.much

    assert run(scenario) == []


def test_a_failed_protocol_gets_connection_lost_and_the_error_is_reported(run: Run) -> None:
    async def scenario(place: Place) -> None:
        client, server = await place.pair()
        server.failure = ValueError("bad data")
        client.transport.write(b"d")
        await server.until("lost:ValueError")
        await client.until("lost")
        assert server.heard == "made lost:ValueError"

    assert run(scenario) == ["ValueError('bad data')"]


def test_invalid_calls_of_a_transport_raise_errors(run: Run) -> None:
    async def scenario(place: Place) -> None:
        client, _ = await place.pair()
        with pytest.raises(TypeError):
            client.transport.write("text")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="high"):
            client.transport.set_write_buffer_limits(high=1, low=2)
        client.transport.set_write_buffer_limits(low=10)
        assert client.transport.get_write_buffer_limits() == (10, 40)
        assert client.transport.can_write_eof()
        client.transport.write(b"")
        client.transport.close()

    assert run(scenario) == []


def test_a_connection_without_a_listener_is_refused(run: Run) -> None:
    async def scenario(place: Place) -> None:
        loop = asyncio.get_running_loop()
        with pytest.raises(ConnectionRefusedError):
            await loop.create_connection(place.kind, "127.0.0.1", place.port)

    assert run(scenario) == []
