"""Two machines and the network between them: the vocabulary of the tests of the network."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from pybroker.client.connection import Connection
from pybroker.client.errors import ConnectFailed
from pybroker.server.connection import Answer, Peer
from pybroker.server.limits import ServerLimits
from pybroker.server.listener import Server
from pybroker.testing.simulation.links import Links
from pybroker.testing.simulation.loop import ProcessLoop
from pybroker.testing.simulation.machine import Machine
from pybroker.testing.simulation.network import Network
from pybroker.testing.simulation.world import World
from unit_tests.handlers.bench import LISTENER

T = TypeVar("T")
PORT = 9092
SEEDS = [str(seed) for seed in range(8)]
Handle = Callable[[memoryview, Peer], Answer | Awaitable[Answer]]


def framed(payload: bytes) -> bytes:
    return struct.pack(">i", len(payload)) + payload


async def read_frame(reader: asyncio.StreamReader) -> bytes:
    (size,) = struct.unpack(">i", await reader.readexactly(4))
    return await reader.readexactly(size)


class Lab:
    """Two machines: a server can run on "b", clients on "a"."""

    def __init__(self, seed: str = "1", *, keep_lines: bool = False) -> None:
        self.world = World(seed, keep_lines=keep_lines)
        self.links = Links(self.world)
        self.network = Network(self.links)
        self.a, self.b = Machine(self.world, "a"), Machine(self.world, "b")
        self.served: list[bytes] = []
        self.tasks: list[asyncio.Task[Any]] = []
        self.server: Server
        for machine in (self.a, self.b):
            self.network.sockets(machine)

    def echo(self, frame: memoryview, _peer: Peer) -> Answer:
        self.served.append(bytes(frame))
        return [framed(bytes(frame))]

    def serve(self, handle: Handle | None = None, limits: ServerLimits | None = None) -> None:
        async def main(_loop: ProcessLoop) -> None:
            self.server = Server(
                handle=handle or self.echo, limits=limits or ServerLimits(), clock=self.b.clock
            )
            await self.server.open([(LISTENER, self.network.listen(self.b, "b", PORT))])

        self.start(self.b, main)

    def start(
        self, machine: Machine, main: Callable[[ProcessLoop], Coroutine[Any, Any, object]]
    ) -> None:
        machine.start(main, self.network.sockets(machine))
        self.run(0.1)

    def run(self, seconds: float) -> None:
        self.world.run(self.world.now + seconds)

    def ask(self, main: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Begin it on "a"."""
        if self.a.loop is None:
            self.start(self.a, lambda _: asyncio.Event().wait())
        assert self.a.loop is not None
        loop, before = self.a.loop, len(self.tasks)
        loop.call_soon(lambda: self.tasks.append(loop.create_task(main)))
        self.world.run(self.world.now + 1, stop=lambda: len(self.tasks) > before)
        return self.tasks[-1]

    def result(self, main: Coroutine[Any, Any, T], seconds: float = 60) -> T:
        task = self.ask(main)
        assert self.world.run(self.world.now + seconds, stop=task.done), "not done"
        return task.result()

    def connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return self.result(asyncio.open_connection("b", PORT))

    def end(self) -> None:
        for machine in (self.a, self.b):
            if machine.loop is not None:
                assert machine.loop.failures == []
            machine.bury()


async def exchange(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, payload: bytes
) -> bytes:
    writer.write(framed(payload))
    return await read_frame(reader)


async def outcome(reader: asyncio.StreamReader) -> str:
    """What a reader sees at the end."""
    try:
        await reader.read()
    except ConnectionResetError:
        return "reset"
    return "end"


async def close(writer: asyncio.StreamWriter) -> None:
    writer.close()


async def connect_error() -> str:
    try:
        await Connection.open("b", PORT, client_id="c", timeout_s=5)
    except ConnectFailed as error:
        return str(error)
    return ""
