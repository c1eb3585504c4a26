"""The simulated ZooKeeper keeps the contract of the real one, and loses what a real one loses."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from pybroker.ports import SessionEvent
from pybroker.testing.simulation.links import Links
from pybroker.testing.simulation.loop import ProcessLoop
from pybroker.testing.simulation.machine import Machine
from pybroker.testing.simulation.world import World
from pybroker.testing.simulation.zookeeper import ZooKeeper
from pybroker.testing.simulation.zookeeper_session import ZooKeeperSession
from unit_tests.coordinator.coord_contract import Client, CoordContract


class Stage:
    """A world with a ZooKeeper; `run` plays a coroutine in a process."""

    def __init__(self, seed: str = "1", members: int = 3) -> None:
        self.world = World(seed, keep_lines=True)
        self.links = Links(self.world)
        names = [f"zk{number}" for number in range(1, members + 1)]
        self.zookeeper = ZooKeeper(self.world, self.links, names)
        self.machines: list[Machine] = []

    def process(self, main: Callable[[ProcessLoop], Coroutine[Any, Any, object]]) -> ProcessLoop:
        machine = Machine(self.world, f"m{len(self.machines) + 1}")
        self.machines.append(machine)
        return machine.start(main, None)

    def play(self, main: Callable[[ProcessLoop], Coroutine[Any, Any, object]]) -> None:
        done: list[BaseException | None] = []

        async def whole(loop: ProcessLoop) -> None:
            try:
                await main(loop)
            except BaseException as error:
                done.append(error)
            else:
                done.append(None)

        loop = self.process(whole)
        assert self.world.run(1000, lambda: bool(done)), "it hangs"
        assert loop.failures == []
        for machine in self.machines:
            machine.bury()
        if done[0] is not None:
            raise done[0]


class SimulatedService:
    """The contract's view of it. All clients use the same member: the contract knows no lag."""

    def __init__(self, stage: Stage, loop: ProcessLoop, member: str) -> None:
        self._stage = stage
        self._loop = loop
        self._member = member

    async def client(self) -> ZooKeeperSession:
        zookeeper = self._stage.zookeeper
        coord = ZooKeeperSession(
            zookeeper,
            self._loop,
            f"c{zookeeper.clients_made}",
            session_timeout_ms=6000,
            members=[self._member],
        )
        await coord.start()
        return coord

    async def expire(self, client: Client) -> None:
        assert self._stage.zookeeper.expire(client.session_id)

    async def break_connection(self, client: Client) -> None:
        assert isinstance(client, ZooKeeperSession)
        self._stage.links.cut(client.machine, [self._member])
        client.break_connection()

    async def mend_connection(self, client: Client) -> None:
        assert isinstance(client, ZooKeeperSession)
        self._stage.links.heal(client.machine, [self._member])


CONTRACT = [name for name, _ in inspect.getmembers(CoordContract) if name.startswith("test_")]


@pytest.mark.parametrize("member", ["zk1", "zk2"])
@pytest.mark.parametrize("name", CONTRACT)
def test_the_contract_is_kept(name: str, member: str) -> None:
    stage = Stage()
    stage.play(lambda loop: getattr(CoordContract(), name)(SimulatedService(stage, loop, member)))


@pytest.mark.parametrize("seed", ["1", "2", "3"])
def test_a_connection_that_is_back_is_not_blamed_for_the_silence_before(seed: str) -> None:
    stage = Stage(seed)
    heard: list[SessionEvent] = []

    async def main(loop: ProcessLoop) -> None:
        session = ZooKeeperSession(stage.zookeeper, loop, "c", session_timeout_ms=6000)
        await session.start()
        session.add_listener(heard.append)
        await session.exists("/", lambda _: None)
        stage.links.cut("c", [*stage.zookeeper.members])
        await asyncio.sleep(5)
        stage.links.heal("c", [*stage.zookeeper.members])
        await asyncio.sleep(10)
        await session.close()

    stage.play(main)
    assert heard[-1] in (SessionEvent.RECONNECTED, SessionEvent.CONNECTED)
    assert heard.count(SessionEvent.SUSPENDED) == 1
