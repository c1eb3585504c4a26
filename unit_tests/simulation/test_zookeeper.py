"""The simulated ZooKeeper keeps the contract of the real one, and loses what a real one loses."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator

import pytest

from pybroker.errors import ConnectionLoss, NoNode, StartupError
from pybroker.ports import SessionEvent, WatchKind
from pybroker.testing.simulation.loop import ProcessLoop
from pybroker.testing.simulation.machine import Machine
from pybroker.testing.simulation.zookeeper import Change
from pybroker.testing.simulation.zookeeper_session import ZooKeeperSession
from unit_tests.coordinator.coord_contract import (
    Client,
    CoordContract,
    Heard,
    refused,
    watch_event,
)
from unit_tests.simulation.zookeeper_history import PATHS, SESSION_MS, History, User
from unit_tests.simulation.zookeeper_stage import Nemesis, Stage

SESSION_S = SESSION_MS / 1000


class SimulatedService:
    """The contract's view of it. All clients use the same member: the contract knows no lag."""

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
def test_the_contract_is_kept(stage: Stage, name: str, member: str) -> None:
    test = getattr(CoordContract(), name)
    stage.play(lambda loop: test(SimulatedService(stage, loop, member)))


# ---- sessions


class Held:
    """A process that holds an ephemeral node and does nothing else; what it hears, and when."""

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
        self.coord.add_listener(lambda event: self.events.append((event, self.stage.world.now)))
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


def test_a_killed_processs_session_lives_on_for_its_timeout(stage: Stage) -> None:
    held = Held(stage)
    stage.world.run(10)
    held.machine.kill()
    stage.world.run(10 + 2 / 3 * SESSION_S)
    assert held.holds
    stage.world.run(10.5 + SESSION_S)
    assert not held.holds
    assert stage.zookeeper.session_ids() == []


def test_an_idle_process_keeps_its_session(stage: Stage) -> None:
    held = Held(stage)
    stage.world.run(100)
    assert held.holds
    assert held.events == []
    assert held.coord.silence() < SESSION_S / 3


def test_a_stopped_process_loses_its_session_and_hears_of_it_when_it_goes_on(stage: Stage) -> None:
    held = Held(stage)
    stage.world.run(5)
    loop = held.machine.loop
    assert loop is not None
    loop.pause()
    stage.world.run(5.5 + SESSION_S)
    assert not held.holds
    assert held.events == []
    loop.resume()
    stage.world.run(12)
    expected = [SessionEvent.SUSPENDED, SessionEvent.EXPIRED, SessionEvent.CONNECTED]
    assert held.heard() == expected
    assert held.coord.generation == 2
    assert len(held.coord.earlier_session_ids) == 1


@pytest.mark.parametrize("way", ["up", "down", "both"])
def test_a_process_that_is_cut_off_knows_nothing_until_it_is_back(stage: Stage, way: str) -> None:
    held = Held(stage)
    name, members = held.machine.name, [*stage.zookeeper.members]
    stage.world.run(5)
    if way in ("up", "both"):
        stage.links.cut(name, members)
    if way in ("down", "both"):
        for member in members:
            stage.links.cut(member, [name])
    stage.world.run(30)
    assert held.heard() == [SessionEvent.SUSPENDED]
    suspended_at = held.events[0][1]
    assert 5 + SESSION_S / 3 < suspended_at < 5.5 + SESSION_S
    assert held.coord.silence() > 20
    assert not held.holds
    stage.links.heal_all()
    stage.world.run(40)
    assert held.heard()[1:] == [SessionEvent.EXPIRED, SessionEvent.CONNECTED]


def test_the_next_process_of_a_machine_ends_the_session_of_the_last(stage: Stage) -> None:
    held = Held(stage)
    stage.world.run(5)
    held.machine.kill()
    held.path = "/next"
    held.start()
    stage.world.run(5.5)
    assert stage.zookeeper.nodes() == ["/", "/next"]
    assert len(held.coord.earlier_session_ids) == 1


def test_without_a_majority_nothing_is_decided_and_no_session_ends(stage: Stage) -> None:
    held = Held(stage)
    stage.world.run(5)
    decided = stage.zookeeper.zxid
    stage.zookeeper.down("zk1")
    stage.zookeeper.down("zk2")
    stage.world.run(20)
    assert stage.zookeeper.leader is None
    assert (stage.zookeeper.zxid, held.holds) == (decided, True)
    assert held.heard()[-1] is SessionEvent.SUSPENDED
    stage.zookeeper.up("zk2")
    stage.world.run(30)
    assert held.heard()[-1] is SessionEvent.RECONNECTED
    assert held.coord.generation == 1
    assert held.holds


def test_start_without_a_service_says_so(stage: Stage) -> None:
    for name in stage.zookeeper.members:
        stage.zookeeper.down(name)

    async def main(loop: ProcessLoop) -> None:
        with pytest.raises(StartupError, match="no ZooKeeper answers"):
            await ZooKeeperSession(stage.zookeeper, loop, "m1").start(3)

    stage.play(main)


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
    stage.close()
    assert heard[-1] in (SessionEvent.RECONNECTED, SessionEvent.CONNECTED)
    assert heard.count(SessionEvent.SUSPENDED) == 1


def test_what_was_asked_before_a_goodbye_may_be_answered_before_it(stage: Stage) -> None:
    async def main(loop: ProcessLoop) -> None:
        session = ZooKeeperSession(stage.zookeeper, loop, "c")
        await session.start()
        asked = [asyncio.ensure_future(session.exists("/")) for _ in range(3)]
        await asyncio.sleep(0)
        await session.close()
        for each in asked:
            with pytest.raises(ConnectionLoss):
                await each
        assert stage.zookeeper.session_ids() == []

    stage.play(main)


# ---- what members show


def test_a_member_that_lags_shows_old_state_until_sync(stage: Stage) -> None:
    zookeeper = stage.zookeeper
    late, other = (name for name in zookeeper.members if name != zookeeper.leader)

    async def main(loop: ProcessLoop) -> None:
        reader = ZooKeeperSession(zookeeper, loop, "reader", members=[late])
        writer = ZooKeeperSession(zookeeper, loop, "writer", members=[other])
        await reader.start()
        await writer.start()
        heard = Heard()
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


def test_a_client_goes_to_no_member_that_is_behind_it(stage: Stage) -> None:
    zookeeper = stage.zookeeper
    late, other = (name for name in zookeeper.members if name != zookeeper.leader)

    async def main(loop: ProcessLoop) -> None:
        zookeeper.lag(late, 5.0)
        client = ZooKeeperSession(zookeeper, loop, "c", members=[other])
        await client.start()
        heard = Heard()
        client.add_listener(heard)
        await client.create("/a")
        behind = zookeeper.members[late].tree.zxid
        client._members = [late]
        client.break_connection()
        await heard.next(SessionEvent.RECONNECTED)
        assert behind < client.seen_zxid <= zookeeper.members[late].tree.zxid
        assert await client.exists("/a") is not None

    stage.play(main)


def test_a_session_may_end_just_when_a_write_is_made(stage: Stage) -> None:
    async def main(loop: ProcessLoop) -> None:
        client = ZooKeeperSession(stage.zookeeper, loop, "c", session_timeout_ms=SESSION_MS)
        await client.start()
        heard = Heard()
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
        heard = Heard()
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


def test_what_was_asked_on_an_old_connection_does_not_come_after_the_new_one(stage: Stage) -> None:
    async def main(loop: ProcessLoop) -> None:
        client = ZooKeeperSession(stage.zookeeper, loop, "c")
        await client.start()
        heard = Heard()
        client.add_listener(heard)
        await client.create("/a", b"old")
        assert client.member is not None
        before = client.member
        stage.links.cut("c", [before])
        late = asyncio.ensure_future(client.set("/a", b"late"))
        await asyncio.sleep(0.1)
        client.break_connection(arrives=True)
        await refused(ConnectionLoss, late)
        await heard.next(SessionEvent.RECONNECTED)
        assert client.member != before
        stage.links.heal("c", [before])
        await asyncio.sleep(5)
        assert (await client.get("/a"))[0] == b"old"
        assert (await client.set("/a", b"new")).version == 1

    stage.play(main)


# ---- at random


def turbulence(seed: str, seconds: float = 20.0) -> tuple[History, str]:
    """Users and a nemesis, and then peace. Everything that is told is checked as it is told."""
    stage = Stage(seed)
    history = History(stage.world, stage.zookeeper)
    loops: list[ProcessLoop] = []
    users: dict[str, User] = {}
    made: list[User] = []

    async def main(loop: ProcessLoop, machine: Machine) -> None:
        loops.append(loop)
        users[machine.name] = user = User(history, machine)
        made.append(user)
        await user.run()

    def restart(machine: Machine) -> None:
        if machine.loop is None:
            machine.start(lambda loop: main(loop, machine), None)

    victims = [stage.machine() for _ in range(5)]
    for victim in victims:
        restart(victim)
    nemesis = Nemesis(stage, victims, restart)
    nemesis.run(seconds)
    stage.world.run(seconds + 10)
    zookeeper = stage.zookeeper
    assert zookeeper.leader is not None
    living = {user.coord.session_id for user in users.values()}
    assert set(zookeeper.session_ids()) == living
    for user in users.values():
        user.stops = True
    stage.world.run(seconds + 20)
    for path in PATHS:
        node = zookeeper.node(path)
        assert node is None or node[1].ephemeral_owner in {0, *living}
    for member in zookeeper.members.values():
        found = [member.tree.node(path) for path in zookeeper.nodes()]
        assert found == [zookeeper.node(path) for path in zookeeper.nodes()]
    assert [problem for user in made for problem in user.problems] == []
    assert [failure for loop in loops for failure in loop.failures] == []
    assert history.counts["finished"] == len(victims)
    stage.close()
    return history, stage.world.digest


@pytest.mark.parametrize("seed", range(4))
def test_sessions_under_faults_see_one_order_of_changes(seed: int) -> None:
    history, _ = turbulence(f"turbulence {seed}")
    for name in ("read", "written", "both", "watch", "loss", "reconnected", "expired"):
        assert history.counts[name] > 0, name


def test_the_same_seed_gives_the_same_trace() -> None:
    assert turbulence("again", 7)[1] == turbulence("again", 7)[1]
