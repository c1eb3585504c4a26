"""An in-memory client of ZooKeeper, for tests that decide when sessions break.

`MemoryCoord` is one client of a `MemoryTree`: a `Coord` with methods to break its session. The same
contract tests run against `MemoryCoord` and a real server. This module may use no threads, sockets
or real time.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from pybroker.coordinator.zookeeper.limits import check_request_size
from pybroker.coordinator.zookeeper.watches import WatchTable
from pybroker.errors import (
    ConnectionLoss,
    CoordError,
    MultiFailed,
    SessionExpired,
)
from pybroker.ports import (
    CoordOp,
    CreateOp,
    DeleteOp,
    NodeStat,
    OpResult,
    SessionEvent,
    SessionListener,
    SetOp,
    Watch,
    WatchEvent,
)
from pybroker.testing.simulation.memory_tree import MemoryTree, check_path

T = TypeVar("T")


class MemoryCoord:
    """One client of a `MemoryTree`: the `Coord` of ports.py, and methods for tests.

    Call `start` first. The client receives answers, watch events and session events through the
    event loop, in the order in which the service sent them. So a watch fires before the answer that
    shows the change.
    """

    def __init__(self, tree: MemoryTree, *, name: str = "") -> None:
        self._tree = tree
        self._name = name
        self._generation = 0
        self._session_id = 0
        self._watches = WatchTable()
        self._listeners: list[SessionListener] = []
        self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._suspended_at: float | None = None
        self._missed: deque[WatchEvent] = deque()
        self._waiting: set[asyncio.Future[None]] = set()
        self._lost_replies: deque[bool] = deque()
        self._earlier_session_ids: set[int] = set()

    # ---- life

    async def start(self, timeout_s: float = 10.0) -> None:
        """Open the first session."""
        self._loop = asyncio.get_running_loop()
        await self._turn()
        self._open_session()
        await self._turn()

    async def close(self) -> None:
        """Close the session: its ephemeral nodes are deleted at once. Idempotent."""
        self._closed = True
        session_id, self._session_id = self._session_id, 0
        self._watches = WatchTable()
        self._fail_waiting()
        self._tree.end_session(session_id)
        await self._turn()

    # ---- for tests

    def expire(self) -> None:
        """End this session at the service. The client is notified at once, or if it is suspended,
        at `resume`."""
        self._tree.end_session(self._session_id)
        if self._suspended_at is None:
            self._begin_anew()

    def suspend(self) -> None:
        """Break the connection. Pending and new requests fail with ConnectionLoss."""
        if self._suspended_at is None:
            self._suspended_at = self._tree.clock.boottime()
            self._fail_waiting()
            self._announce(SessionEvent.SUSPENDED)

    def resume(self) -> None:
        """Restore the connection. The session continues; if it has expired, a new session
        begins."""
        if self._suspended_at is None:
            return
        self._suspended_at = None
        if self._session_id == 0:
            self._soon(self._open_session)
            return
        if not self._tree.is_alive(self._session_id):
            self._begin_anew()
            return
        self._announce(SessionEvent.RECONNECTED)
        while self._missed:
            self.node_changed(self._missed.popleft())

    def lose_reply(self, *, applied: bool = True) -> None:
        """Make the next request fail with ConnectionLoss, either after or before it is applied.
        Further calls affect further requests."""
        self._lost_replies.append(applied)

    # ---- Coord

    @property
    def generation(self) -> int:
        return self._generation

    @property
    def session_id(self) -> int:
        return self._session_id

    @property
    def earlier_session_ids(self) -> frozenset[int]:
        """The ids of this client's ended sessions."""
        return frozenset(self._earlier_session_ids)

    def silence(self) -> float:
        if self._suspended_at is None:
            return 0.0
        return self._tree.clock.boottime() - self._suspended_at

    def add_listener(self, listener: SessionListener) -> None:
        self._listeners.append(listener)

    async def get(self, path: str, watch: Watch | None = None) -> tuple[bytes, NodeStat]:
        def read() -> tuple[bytes, NodeStat]:
            node = self._tree.lookup(path)
            if watch is not None:
                self._watches.add_data(path, watch)
            return node.data, node.stat()

        return await self._request(read)

    async def exists(self, path: str, watch: Watch | None = None) -> NodeStat | None:
        def read() -> NodeStat | None:
            found = self._tree.node(check_path(path))
            if watch is not None:
                self._watches.add_data(path, watch, exists=found is not None)
            return None if found is None else found[1]

        return await self._request(read)

    async def children(self, path: str, watch: Watch | None = None) -> list[str]:
        def read() -> list[str]:
            names = sorted(self._tree.lookup(path).children)
            if watch is not None:
                self._watches.add_child(path, watch)
            return names

        return await self._request(read)

    async def create(
        self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequence: bool = False
    ) -> str:
        result = await self._single(CreateOp(path, data, ephemeral, sequence))
        assert isinstance(result, str)
        return result

    async def set(self, path: str, data: bytes, version: int = -1) -> NodeStat:
        result = await self._single(SetOp(path, data, version))
        assert isinstance(result, NodeStat)
        return result

    async def delete(self, path: str, version: int = -1) -> None:
        await self._single(DeleteOp(path, version))

    async def multi(self, ops: Sequence[CoordOp]) -> list[OpResult]:
        if not ops:
            return []
        check_request_size(ops)
        return await self._request(lambda: self._tree.apply(ops, self._session_id))

    async def sync(self, path: str = "/") -> None:
        await self._request(lambda: None)

    # ---- called by the tree

    def node_changed(self, event: WatchEvent) -> None:
        if self._suspended_at is not None:
            self._missed.append(event)
            return
        generation = self._generation
        for watch in self._watches.take(event):
            fire = partial(self._fire, generation, watch, event)
            self._soon(partial(self._soon, fire))  # after the answer of the read that set it

    # ---- private

    async def _single(self, op: CoordOp) -> OpResult:
        check_request_size([op])

        def change() -> OpResult:
            try:
                return self._tree.apply([op], self._session_id)[0]
            except MultiFailed as error:
                raise error.cause from None

        return await self._request(change)

    async def _request(self, work: Callable[[], T]) -> T:
        """Run `work` at the service, and return its result in order with all other events."""
        if self._session_id == 0:
            raise SessionExpired(f"{self._name}: there is no session")
        if self._suspended_at is not None:
            raise ConnectionLoss(f"{self._name}: suspended")
        if self._lost_replies:
            if self._lost_replies.popleft():
                with contextlib.suppress(CoordError):
                    work()
            await self._turn()
            raise ConnectionLoss(f"{self._name}: the reply was lost")
        failure: CoordError | None = None
        try:
            result = work()
        except CoordError as error:
            failure = error
        await self._turn()
        if failure is not None:
            raise failure
        return result

    async def _turn(self) -> None:
        """Wait until the loop has delivered all events from before this call."""
        answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(answered)
        self._soon(lambda: None if answered.done() else answered.set_result(None))
        try:
            await answered
        finally:
            self._waiting.discard(answered)

    def _fail_waiting(self, error: type[CoordError] = ConnectionLoss) -> None:
        for answered in self._waiting:
            if not answered.done():
                answered.set_exception(error(f"{self._name}: the connection broke"))

    def _open_session(self) -> None:
        if self._closed or self._session_id or self._suspended_at is not None:
            return
        self._generation += 1
        self._session_id = self._tree.open_session(self)
        self._announce(SessionEvent.CONNECTED)

    def _begin_anew(self) -> None:
        self._earlier_session_ids.add(self._session_id)
        self._session_id = 0
        self._watches = WatchTable()
        self._missed.clear()
        self._fail_waiting()
        self._announce(SessionEvent.EXPIRED)
        self._soon(self._open_session)

    def _announce(self, event: SessionEvent) -> None:
        for listener in self._listeners:
            self._soon(partial(listener, event))

    def _fire(self, generation: int, watch: Watch, event: WatchEvent) -> None:
        if generation == self._generation and self._session_id:
            watch(event)

    def _soon(self, action: Callable[[], None]) -> None:
        loop = self._loop or asyncio.get_running_loop()
        loop.call_soon(action)
