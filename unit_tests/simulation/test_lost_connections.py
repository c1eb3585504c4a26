"""Tests of lost connections in the simulated network: the faults of links and machines have their
documented effects.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import pytest

from pybroker.config.broker_config import BrokerConfig
from pybroker.server.connection import Answer, Peer
from pybroker.server.listener import Server
from pybroker.testing.simulation.environment import Environment
from pybroker.testing.simulation.links import Links
from pybroker.testing.simulation.loop import ProcessLoop
from pybroker.testing.simulation.machine import Machine
from pybroker.testing.simulation.network import Network
from unit_tests.handlers.bench import LISTENER

T = TypeVar("T")
PORT = 9092
SEEDS = [str(seed) for seed in range(8)]


def framed(payload: bytes) -> bytes:
    return struct.pack(">i", len(payload)) + payload


async def read_frame(reader: asyncio.StreamReader) -> bytes:
    (size,) = struct.unpack(">i", await reader.readexactly(4))
    return await reader.readexactly(size)


class Lab:
    """Two machines: the server runs on "b", clients on "a"."""

    def __init__(self, seed: str = "1") -> None:
        self.environment = Environment(seed)
        self.links = Links(self.environment)
        self.network = Network(self.links)
        self.a, self.b = Machine(self.environment, "a"), Machine(self.environment, "b")
        self.served: list[bytes] = []
        self.tasks: list[asyncio.Task[Any]] = []
        self.server: Server
        for machine in (self.a, self.b):
            self.network.sockets(machine)

    def echo(self, frame: memoryview, _peer: Peer) -> Answer:
        self.served.append(bytes(frame))
        return [framed(bytes(frame))]

    def serve(self) -> None:
        async def main(_loop: ProcessLoop) -> None:
            self.server = Server(handle=self.echo, config=BrokerConfig(), clock=self.b.clock)
            await self.server.open([(LISTENER, self.network.listen(self.b, "b", PORT))])

        self.start(self.b, main)

    def start(
        self, machine: Machine, main: Callable[[ProcessLoop], Coroutine[Any, Any, object]]
    ) -> None:
        machine.start(main, self.network.sockets(machine))
        self.run(0.1)

    def run(self, seconds: float) -> None:
        self.environment.run(self.environment.now + seconds)

    def ask(self, main: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start the coroutine in a process on "a"."""
        if self.a.loop is None:
            self.start(self.a, lambda _: asyncio.Event().wait())
        assert self.a.loop is not None
        loop, before = self.a.loop, len(self.tasks)
        loop.call_soon(lambda: self.tasks.append(loop.create_task(main)))
        self.environment.run(self.environment.now + 1, stop=lambda: len(self.tasks) > before)
        return self.tasks[-1]

    def result(self, main: Coroutine[Any, Any, T], seconds: float = 60) -> T:
        task = self.ask(main)
        assert self.environment.run(self.environment.now + seconds, stop=task.done), "not done"
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
    """Read to the end of the stream. Return "end", or "reset" for a reset connection."""
    try:
        await reader.read()
    except ConnectionResetError:
        return "reset"
    return "end"


@pytest.fixture(params=SEEDS[:3])
def lab(request: pytest.FixtureRequest) -> Any:
    made = Lab(request.param)
    yield made
    made.end()


@pytest.mark.parametrize("direction", [("a", "b"), ("b", "a")])
def test_a_one_way_cut_holds_requests_or_answers_until_it_is_healed(
    lab: Lab, direction: tuple[str, str]
) -> None:
    lab.serve()
    reader, writer = lab.connected()
    lab.links.cut(direction[0], [direction[1]])
    asking = lab.ask(exchange(reader, writer, b"held"))
    lab.run(10)
    assert not asking.done()
    assert lab.served == ([] if direction == ("a", "b") else [b"held"])
    lab.links.heal(direction[0], [direction[1]])
    lab.run(1)
    assert asking.result() == b"held"


def test_a_reset_is_seen_on_both_sides_and_loses_what_is_under_way(lab: Lab) -> None:
    lab.serve()
    pairs = [lab.connected() for _ in range(3)]
    lab.run(1)
    for _, writer in pairs:
        writer.write(framed(b"lost"))
    assert lab.network.reset("a", "b", one=True) == 1
    assert lab.network.reset("b", "a") == 2
    assert [lab.result(outcome(reader)) for reader, _ in pairs] == ["reset"] * 3
    lab.run(1)
    assert lab.server.connection_count == 0
    assert lab.served == []
    assert lab.network.reset("a", "b") == 0


@pytest.mark.parametrize("seed", SEEDS)
def test_a_connection_is_cut_right_after_a_request_went_through(seed: str) -> None:
    lab = Lab(seed)
    lab.serve()
    reader, writer = lab.connected()
    lab.network.reset_after("a", "b", len(framed(b"second")) + len(framed(b"first")))
    assert lab.result(exchange(reader, writer, b"first")) == b"first"
    writer.write(framed(b"second") + framed(b"third"))
    assert lab.result(outcome(reader)) == "reset"
    lab.run(5)
    assert lab.served == [b"first", b"second"]
    assert lab.server.connection_count == 0
    lab.end()


def test_a_killed_process_ends_or_resets_its_connections() -> None:
    seen = set()
    for seed in range(12):
        lab = Lab(str(seed))
        lab.serve()
        reader, _ = lab.connected()
        lab.b.kill()
        seen.add(lab.result(outcome(reader)))
        lab.end()
    assert seen == {"end", "reset"}


def test_a_reset_that_meets_a_cut_is_lost_until_somebody_sends() -> None:
    """The connection is half-open: the killed process has restarted, but its peer does not know."""
    seen = set()
    for seed in range(12):
        lab = Lab(str(seed))
        lab.serve()
        reader, writer = lab.connected()
        lab.links.cut("b", ["a"])
        lab.b.kill()
        lab.run(1)
        lab.links.heal("b", ["a"])
        lab.serve()
        waiting = lab.ask(outcome(reader))
        lab.run(20)
        seen.add(waiting.done())
        if not waiting.done():
            writer.write(framed(b"anybody?"))
            lab.run(1)
            assert waiting.result() == "reset"
        lab.end()
    assert seen == {True, False}, "the end of data is retransmitted, a reset is not"


def test_a_power_loss_is_noticed_only_by_a_write_after_the_restart(
    lab: Lab,
) -> None:
    lab.serve()
    (reader, writer), (other_reader, _) = lab.connected(), lab.connected()
    asking = lab.ask(exchange(reader, writer, b"first"))
    lab.run(1)
    assert asking.done()
    lab.b.lose_power()
    waiting, silent = lab.ask(outcome(reader)), lab.ask(outcome(other_reader))
    writer.write(framed(b"nobody hears"))
    lab.run(20)
    assert not waiting.done()
    lab.serve()
    lab.run(5)
    assert waiting.result() == "reset"
    assert not silent.done(), "nothing was sent there"
    assert lab.served == [b"first"]
