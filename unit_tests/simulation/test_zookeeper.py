"""Tests of the simulated ZooKeeper: it fulfils the contract of a real ZooKeeper, and loses the same
data at the same faults.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Final

import pytest

from pybroker.errors import ConnectionLoss, NoNode
from pybroker.ports import SessionEvent, WatchKind
from pybroker.testing.simulation.environment import Environment
from pybroker.testing.simulation.links import Links
from pybroker.testing.simulation.loop import ProcessLoop
from pybroker.testing.simulation.machine import Machine
from pybroker.testing.simulation.zookeeper import Change, ZooKeeper
from pybroker.testing.simulation.zookeeper_session import ZooKeeperSession
from unit_tests.coordinator.coord_contract import (
    Client,
    CoordContract,
    SeenEvents,
    refused,
    watch_event,
)

SESSION_MS = 3000
SESSION_S = SESSION_MS / 1000
Main = Callable[[ProcessLoop], Coroutine[Any, Any, object]]
LIMIT_S: Final = 1000.0
"""The limit of a test in seconds of virtual time."""


class Stage:
    """A simulated ZooKeeper and its clients. `play` runs a coroutine to its end in its own
    process.
    """

    def __init__(self, seed: str = "1") -> None:
        self.environment = Environment(seed, keep_lines=True)
        self.links = Links(self.environment)
        self.zookeeper = ZooKeeper(self.environment, self.links)
        self.machines: list[Machine] = []

    def machine(self) -> Machine:
        machine = Machine(self.environment, f"m{len(self.machines) + 1}")
        self.machines.append(machine)
        return machine

    def play(self, main: Main) -> None:
        done: list[BaseException | None] = []

        async def whole(loop: ProcessLoop) -> None:
            try:
                await main(loop)
            except BaseException as error:
                done.append(error)
            else:
                done.append(None)

        loop = self.machine().start(whole, None)
        assert self.environment.run(self.environment.now + LIMIT_S, lambda: bool(done)), "it hangs"
        assert loop.failures == []
        if done[0] is not None:
            raise done[0]

    def close(self) -> None:
        for machine in self.machines:
            machine.bury()


class SimulatedService:
    """The service for the contract tests. All clients use the same member, as the contract has no
    lag.
    """

    def __init__(self, stage: Stage, loop: ProcessLoop, member: str) -> None:
        self._stage = stage
        self._loop = loop
        self._member = member
        self._clients = 0

    async def client(self) -> ZooKeeperSession:
        self._clients += 1
        coord = ZooKeeperSession(
            self._stage.zookeeper,
            self._loop,
            f"c{self._clients}",
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


@pytest.fixture
def stage() -> Iterator[Stage]:
    stage = Stage()
    yield stage
    stage.close()


@pytest.mark.parametrize("member", ["zk1", "zk2"])
@pytest.mark.parametrize("name", CONTRACT)
def test_the_simulated_zookeeper_fulfils_the_contract_of_coord(
    stage: Stage, name: str, member: str
) -> None:
    test = getattr(CoordContract(), name)
    stage.play(lambda loop: test(SimulatedService(stage, loop, member)))


# ---- sessions


class Held:
    """A process with an ephemeral node, which only records session events and their times."""

    def __init__(self, stage: Stage, path: str = "/held") -> None:
        self.stage = stage
        self.machine = stage.machine()
        self.events: list[tuple[SessionEvent, float]] = []
        self.path = path
        self.start()

    def start(self) -> None:
        self.machine.start(self._main, None)

    async def _main(self, _loop: ProcessLoop) -> None:
        self.coord = self.stage.zookeeper.session(self.machine, timeout_ms=SESSION_MS)
        await self.coord.start()
        self.coord.add_listener(
            lambda event: self.events.append((event, self.stage.environment.now))
        )
        await self.coord.create(self.path, ephemeral=True)
        await asyncio.Event().wait()

    @property
    def holds(self) -> bool:
        return self.stage.zookeeper.node(self.path) is not None

    def heard(self) -> list[SessionEvent]:
        return [event for event, _ in self.events]

    def cut(self) -> None:
        self.stage.links.cut(self.machine.name, self.stage.zookeeper.members)

    def heal(self) -> None:
        self.stage.links.heal(self.machine.name, self.stage.zookeeper.members)


def test_the_session_of_a_killed_process_lasts_for_its_timeout(stage: Stage) -> None:
    held = Held(stage)
    stage.environment.run(10)
    held.machine.kill()
    stage.environment.run(10 + 2 / 3 * SESSION_S)
    assert held.holds
    stage.environment.run(10.5 + SESSION_S)
    assert not held.holds
    assert stage.zookeeper.session_ids() == []


def test_a_stopped_process_is_notified_of_its_expired_session_after_it_continues(
    stage: Stage,
) -> None:
    held = Held(stage)
    stage.environment.run(5)
    loop = held.machine.loop
    assert loop is not None
    loop.pause()
    stage.environment.run(5.5 + SESSION_S)
    assert not held.holds
    assert held.events == []
    loop.resume()
    stage.environment.run(12)
    expected = [SessionEvent.SUSPENDED, SessionEvent.EXPIRED, SessionEvent.CONNECTED]
    assert held.heard() == expected
    assert held.coord.generation == 2
    assert len(held.coord.earlier_session_ids) == 1


@pytest.mark.parametrize("way", ["up", "down", "both"])
def test_an_isolated_process_is_notified_of_its_expired_session_after_healing(
    stage: Stage, way: str
) -> None:
    held = Held(stage)
    name, members = held.machine.name, [*stage.zookeeper.members]
    stage.environment.run(5)
    if way in ("up", "both"):
        stage.links.cut(name, members)
    if way in ("down", "both"):
        for member in members:
            stage.links.cut(member, [name])
    stage.environment.run(30)
    assert held.heard() == [SessionEvent.SUSPENDED]
    suspended_at = held.events[0][1]
    assert 5 + SESSION_S / 3 < suspended_at < 5.5 + SESSION_S
    assert held.coord.silence() > 20
    assert not held.holds
    stage.links.heal_all()
    stage.environment.run(40)
    assert held.heard()[1:] == [SessionEvent.EXPIRED, SessionEvent.CONNECTED]


def test_without_a_quorum_no_write_is_applied_and_no_session_expires(stage: Stage) -> None:
    held = Held(stage)
    stage.environment.run(5)
    decided = stage.zookeeper.zxid
    stage.zookeeper.down("zk1")
    stage.zookeeper.down("zk2")
    stage.environment.run(20)
    assert stage.zookeeper.leader is None
    assert (stage.zookeeper.zxid, held.holds) == (decided, True)
    assert held.heard()[-1] is SessionEvent.SUSPENDED
    stage.zookeeper.up("zk2")
    stage.environment.run(30)
    assert held.heard()[-1] is SessionEvent.RECONNECTED
    assert held.coord.generation == 1
    assert held.holds


# ---- what members show


def test_a_lagging_member_returns_old_state_until_a_sync(stage: Stage) -> None:
    zookeeper = stage.zookeeper
    late, other = (name for name in zookeeper.members if name != zookeeper.leader)

    async def main(loop: ProcessLoop) -> None:
        reader = ZooKeeperSession(zookeeper, loop, "reader", members=[late])
        writer = ZooKeeperSession(zookeeper, loop, "writer", members=[other])
        await reader.start()
        await writer.start()
        heard = SeenEvents()
        await writer.create("/a", b"old")
        await reader.sync()
        assert (await reader.get("/a", heard))[0] == b"old"
        zookeeper.lag(late, 3.0)
        await writer.set("/a", b"new")
        assert (await writer.get("/a"))[0] == b"new"
        assert (await reader.get("/a"))[0] == b"old"
        assert heard.events == []
        await reader.sync()
        assert heard.events == [watch_event(WatchKind.CHANGED, "/a")]
        assert (await reader.get("/a"))[0] == b"new"
        assert (await reader.set("/a", b"own")).version == 2
        assert (await reader.get("/a"))[0] == b"own"

    stage.play(main)


def test_a_session_may_expire_during_a_write(stage: Stage) -> None:
    async def main(loop: ProcessLoop) -> None:
        client = ZooKeeperSession(stage.zookeeper, loop, "c", session_timeout_ms=SESSION_MS)
        await client.start()
        heard = SeenEvents()
        client.add_listener(heard)
        client.lose_reply(applied=False, expires=True)
        with pytest.raises(ConnectionLoss):
            await client.create("/a")
        await heard.next(SessionEvent.EXPIRED)
        await heard.next(SessionEvent.CONNECTED)
        await client.create("/a")

    stage.play(main)


@pytest.mark.parametrize("applied", [True, False])
def test_a_lost_reply_may_hide_an_applied_write(stage: Stage, applied: bool) -> None:
    changes: list[Change] = []
    stage.zookeeper.on_commit.append(changes.append)

    async def main(loop: ProcessLoop) -> None:
        client = ZooKeeperSession(stage.zookeeper, loop, "c")
        await client.start()
        heard = SeenEvents()
        client.add_listener(heard)
        client.lose_reply(applied=applied)
        await refused(ConnectionLoss, client.create("/a", b"data"))
        await heard.next(SessionEvent.RECONNECTED)
        await client.sync()
        if applied:
            assert (await client.get("/a"))[0] == b"data"
        else:
            await refused(NoNode, client.get("/a"))

    stage.play(main)
    assert [(change.path, change.data) for change in changes] == [("/a", b"data")] * applied
