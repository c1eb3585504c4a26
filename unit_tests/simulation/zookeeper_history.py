"""What clients of ZooKeeper did and saw, held against what the leader decided."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Final

from pybroker.errors import ConnectionLoss, CoordError, NoNode, SessionExpired
from pybroker.ports import NodeStat, SessionEvent, WatchEvent
from pybroker.testing.simulation.machine import Machine
from pybroker.testing.simulation.world import World
from pybroker.testing.simulation.zookeeper import Change, ZooKeeper

PATHS: Final = [f"/n{number}" for number in range(12)]
SESSION_MS: Final = 3000


class History:
    """The changes of each path in their order; `states` are mzxids, 0 where the node is absent."""

    def __init__(self, world: World, zookeeper: ZooKeeper) -> None:
        self.world = world
        self.zookeeper = zookeeper
        self.by_token: dict[bytes, Change] = {}
        self.counts: Counter[str] = Counter()
        self._states: dict[str, list[tuple[int, int]]] = {path: [(0, 0)] for path in PATHS}
        self._versions: dict[str, int] = {}
        self._zxid = 0
        zookeeper.on_commit.append(self._committed)

    def _committed(self, change: Change) -> None:
        assert change.zxid >= self._zxid
        self._zxid = change.zxid
        if change.data is None:
            del self._versions[change.path]
        else:
            assert change.version == self._versions.get(change.path, -1) + 1, change
            self._versions[change.path] = change.version
            if change.data:
                assert change.data not in self.by_token, "applied twice"
                self.by_token[change.data] = change
        if change.path in self._states:
            mzxid = 0 if change.data is None else change.zxid
            self._states[change.path].append((change.zxid, mzxid))

    def place(self, path: str, mzxid: int, floor: int) -> int:
        """The earliest zxid, not before `floor`, at which the node was in that state."""
        states = self._states[path]
        for index, (zxid, state) in enumerate(states):
            ends = states[index + 1][0] if index + 1 < len(states) else self.zookeeper.zxid + 1
            if state == mzxid and ends > floor:
                return max(zxid, floor)
        raise AssertionError(f"{path} at {mzxid} is older than {floor}: {states[-5:]}")

    def last_change(self, path: str) -> int:
        return self._states[path][-1][0]


class _Watching:
    """A watch that was set by a read which saw the node in the state `mzxid`."""

    def __init__(self, user: User, path: str, generation: int) -> None:
        self.user = user
        self.path = path
        self.generation = generation
        self.mzxid: int | None = None
        self.place = 0
        """Not later than what the read saw; `seen` is not earlier."""
        self.seen = 0

    def __call__(self, event: WatchEvent) -> None:
        user = self.user
        assert event.path == self.path
        assert self.generation == user.coord.generation, "of a session that is over"
        assert self in user.watching, "fired twice, or before the answer"
        user.watching.remove(self)
        assert user.history.last_change(self.path) > self.place, "nothing has changed"
        user.history.counts["watch"] += 1


class User:
    """One process's client, which does something at random, and checks all that it is told."""

    def __init__(self, history: History, machine: Machine) -> None:
        self.history = history
        self.world = history.world
        self.machine = machine
        self.coord = history.zookeeper.session(machine, timeout_ms=SESSION_MS)
        self.watching: list[_Watching] = []
        self.unsure: list[bytes] = []
        """What may have been applied, and no answer is awaited."""
        self.stops = False
        self.problems: list[str] = []
        self._rng: random.Random = self.world.rng(f"user {machine.name}.{machine.pid()}")
        self._floor = 0
        self._tokens = 0

    async def run(self) -> None:
        try:
            await self.coord.start(600)
            self.coord.add_listener(self._session_event)
            while not self.stops:
                await self._guarded()
                await asyncio.sleep(self._rng.random() * 0.1)
            await self._finish()
        except Exception as error:
            self.problems.append(f"{self.machine.name} at {self.world.now}: {error!r}")

    async def _guarded(self) -> None:
        try:
            await self._rng.choice(
                [self._read, self._read, self._write, self._write, self._both, self._sync]
            )()
        except ConnectionLoss:
            self.history.counts["loss"] += 1
        except SessionExpired:
            self.history.counts["no session"] += 1

    def _session_event(self, event: SessionEvent) -> None:
        self.history.counts[event.value] += 1
        if event is SessionEvent.EXPIRED:
            self.watching.clear()
            self._floor = 0
        if event in (SessionEvent.EXPIRED, SessionEvent.RECONNECTED):
            self._settle_unsure()

    def _settle_unsure(self) -> None:
        """From here on nothing comes any more of what was asked before."""
        for token in self.unsure:
            found = self.history.by_token.get(token)
            assert found is None or found.at <= self.world.now
            self.history.counts["unsure applied" if found else "unsure dropped"] += 1
            if found is None:
                self.history.by_token[token] = Change(0, "", b"never", 0, 0, 0.0)
        self.unsure.clear()

    async def _look(self, path: str, watch: _Watching | None, *, by_get: bool) -> int:
        stat: NodeStat | None
        try:
            stat = (
                (await self.coord.get(path, watch))[1]
                if by_get
                else await self.coord.exists(path, watch)
            )
        except NoNode:
            return -1
        mzxid = 0 if stat is None else stat.mzxid
        if watch is not None:
            watch.mzxid = mzxid
        return mzxid

    async def _read(self, path: str | None = None) -> None:
        path = path or self._rng.choice(PATHS)
        generation = self.coord.generation
        watch = _Watching(self, path, generation) if self._rng.random() < 0.4 else None
        seen = await self._look(path, watch, by_get=self._rng.random() < 0.5)
        if generation != self.coord.generation:
            return
        mzxid = max(seen, 0)
        self._floor = self.history.place(path, mzxid, self._floor)
        for each in self.watching:
            assert each.path != path or each.mzxid == mzxid, "a change was read before its watch"
        if watch is not None and seen >= 0:
            watch.place, watch.seen = self._floor, self.coord.seen_zxid
            self.watching.append(watch)
        self.history.counts["read"] += 1

    async def _write(self, path: str | None = None) -> None:
        coord, history = self.coord, self.history
        path = path or self._rng.choice(PATHS)
        self._tokens += 1
        token = f"{self.machine.name}.{self.machine.pid()}.{self._tokens}".encode()
        begun = self.world.now
        generation = coord.generation
        kind = self._rng.choice(["set", "set", "create", "ephemeral", "delete", "cas"])
        was_usable = coord.session_id != 0
        try:
            if kind == "delete":
                await coord.delete(path)
            elif kind in ("create", "ephemeral"):
                await coord.create(path, token, ephemeral=kind == "ephemeral")
            else:
                version = -1 if kind == "set" else self._rng.randint(0, 3)
                await coord.set(path, token, version)
        except ConnectionLoss:
            assert was_usable
            if kind != "delete":
                self.unsure.append(token)
            raise
        except CoordError as error:
            assert token not in history.by_token, f"{error!r}, but applied"
            self.history.counts["refused"] += 1
            return
        if kind != "delete" and generation == coord.generation:
            change = history.by_token[token]
            assert begun <= change.at <= self.world.now, "not applied while it was under way"
            assert change.zxid > self._floor or change.path not in PATHS
            self._floor = change.zxid
        self.history.counts["written"] += 1

    async def _both(self) -> None:
        """A read that follows a write at once, which it has to show."""
        path, before = self._rng.choice(PATHS), self._tokens
        generation = self.coord.generation
        write = asyncio.ensure_future(self._write(path))
        await asyncio.sleep(0)
        read = asyncio.ensure_future(self._look(path, None, by_get=False))
        results = await asyncio.gather(write, read, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result
        token = f"{self.machine.name}.{self.machine.pid()}.{before + 1}".encode()
        change = self.history.by_token.get(token)
        if generation == self.coord.generation and isinstance(results[1], int):
            floor = self._floor if change is None else max(self._floor, change.zxid)
            self._floor = self.history.place(path, results[1], floor)
            self.history.counts["both"] += 1

    async def _sync(self) -> None:
        generation, zxid = self.coord.generation, self.history.zookeeper.zxid
        await self.coord.sync()
        if generation == self.coord.generation:
            self._floor = max(self._floor, zxid)

    async def _finish(self) -> None:
        """All is whole: what has changed has been told."""
        await self.coord.sync()
        for path in PATHS:
            await self._read(path)
        await self.coord.sync()
        for each in self.watching:
            changed = self.history.last_change(each.path) > each.seen
            assert not changed, f"the watch of {each.path} at {each.mzxid} was lost"
        self.history.counts["finished"] += 1
