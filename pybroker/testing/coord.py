"""An in-memory twin of the coordination service, for tests that decide when sessions break.

`MemoryTree` is the service: nodes, versions, sessions, watches. `MemoryCoord` is one client of it,
a `Coord` with handles to break its session. Both follow what a ZooKeeper server does, held to it by
the contract suite that runs against the two. No thread, no socket, no real time may appear here.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeVar

from pybroker.clock import ManualClock
from pybroker.coordinator.zookeeper.limits import check_request_size
from pybroker.coordinator.zookeeper.watches import WatchTable
from pybroker.errors import (
    BadVersion,
    ConnectionLoss,
    CoordError,
    MultiFailed,
    NoChildrenForEphemerals,
    NodeExists,
    NoNode,
    NotEmpty,
    SessionExpired,
)
from pybroker.ports import (
    CheckOp,
    Clock,
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
    WatchKind,
)

T = TypeVar("T")
_FIRST_SESSION_ID: Final = 0x1000_0000_0000_0001


@dataclass(slots=True)
class _Node:
    data: bytes
    czxid: int
    mzxid: int
    ctime_ms: int
    mtime_ms: int
    ephemeral_owner: int = 0
    version: int = 0
    children_created: int = 0
    """Never goes back: the suffix of the next sequential child."""
    pzxid: int = 0
    """When a child last came or went; with mzxid it tells whether a watch was missed."""
    children: set[str] = field(default_factory=set)

    def stat(self) -> NodeStat:
        return NodeStat(
            czxid=self.czxid,
            mzxid=self.mzxid,
            version=self.version,
            ephemeral_owner=self.ephemeral_owner,
            ctime_ms=self.ctime_ms,
            mtime_ms=self.mtime_ms,
            data_length=len(self.data),
            num_children=len(self.children),
        )

    def copied(self) -> _Node:
        other = copy.copy(self)
        other.children = set(self.children)
        return other


class MemoryTree:
    """The state that all clients share. Every change gets one `zxid`; a multi is one change."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock: Clock = clock or ManualClock()
        self.zxid = 0
        now = self.clock.wall_ms()
        self._nodes: dict[str, _Node] = {"/": _Node(b"", 0, 0, now, now)}
        self._before: dict[str, _Node | None] = {}
        self._events: list[WatchEvent] = []
        self._next_session_id = _FIRST_SESSION_ID
        self._clients: dict[int, MemoryCoord | None] = {}
        self.on_event: Callable[[WatchEvent], object] | None = None
        """Hears every change, for services that keep the watches of their clients themselves."""

    def paths(self) -> list[str]:
        """All nodes, sorted; for assertions."""
        return sorted(self._nodes)

    def node(self, path: str) -> tuple[bytes, NodeStat] | None:
        """Look at a node without a session; for assertions."""
        found = self._nodes.get(path)
        return None if found is None else (found.data, found.stat())

    def lookup(self, path: str) -> _Node:
        node = self._nodes.get(check_path(path))
        if node is None:
            raise NoNode(path)
        return node

    def apply(self, ops: Sequence[CoordOp], session_id: int) -> list[OpResult]:
        """Apply all of `ops` or none. Raises MultiFailed."""
        self.zxid += 1
        results: list[OpResult] = []
        for index, op in enumerate(ops):
            try:
                results.append(self._apply_one(op, session_id))
            except CoordError as error:
                self._roll_back()
                raise MultiFailed(index, error) from error
        self._publish()
        return results

    def open_session(self, client: MemoryCoord | None) -> int:
        session_id = self._next_session_id
        self._next_session_id += 1
        self._clients[session_id] = client
        return session_id

    def end_session(self, session_id: int) -> None:
        """Remove the session and its ephemeral nodes. No error if it is gone already."""
        if session_id not in self._clients:
            return
        del self._clients[session_id]
        self.zxid += 1
        for path in self.owned_by(session_id):
            self._delete(DeleteOp(path))
        self._publish()

    def owned_by(self, session_id: int) -> list[str]:
        """The ephemeral nodes of a session, sorted."""
        return sorted(p for p, node in self._nodes.items() if node.ephemeral_owner == session_id)

    def is_alive(self, session_id: int) -> bool:
        return session_id in self._clients

    def _apply_one(self, op: CoordOp, session_id: int) -> OpResult:
        check_path(op.path)
        match op:
            case CreateOp():
                return self._create(op, session_id)
            case SetOp():
                return self._set(op)
            case DeleteOp():
                self._delete(op)
            case CheckOp():
                _expect_version(op.path, self.lookup(op.path), op.version)
        return None

    def _create(self, op: CreateOp, session_id: int) -> str:
        parent_path = _parent(op.path)
        parent = self.lookup(parent_path)
        path = f"{op.path}{parent.children_created:010d}" if op.sequence else op.path
        if path in self._nodes:
            raise NodeExists(path)
        if parent.ephemeral_owner:
            raise NoChildrenForEphemerals(path)
        self._remember(parent_path)
        self._remember(path)
        now = self.clock.wall_ms()
        owner = session_id if op.ephemeral else 0
        self._nodes[path] = _Node(op.data, self.zxid, self.zxid, now, now, owner, pzxid=self.zxid)
        parent.children.add(path.rpartition("/")[2])
        parent.children_created += 1
        parent.pzxid = self.zxid
        self._events.append(WatchEvent(WatchKind.CREATED, path))
        self._events.append(WatchEvent(WatchKind.CHILD, parent_path))
        return path

    def _set(self, op: SetOp) -> NodeStat:
        node = self.lookup(op.path)
        _expect_version(op.path, node, op.version)
        self._remember(op.path)
        node.data = op.data
        node.version += 1
        node.mzxid = self.zxid
        node.mtime_ms = self.clock.wall_ms()
        self._events.append(WatchEvent(WatchKind.CHANGED, op.path))
        return node.stat()

    def _delete(self, op: DeleteOp) -> None:
        node = self.lookup(op.path)
        _expect_version(op.path, node, op.version)
        if node.children:
            raise NotEmpty(op.path)
        parent_path = _parent(op.path)
        self._remember(parent_path)
        self._remember(op.path)
        del self._nodes[op.path]
        parent = self._nodes[parent_path]
        parent.children.discard(op.path.rpartition("/")[2])
        parent.pzxid = self.zxid
        self._events.append(WatchEvent(WatchKind.DELETED, op.path))
        self._events.append(WatchEvent(WatchKind.CHILD, parent_path))

    def _remember(self, path: str) -> None:
        if path not in self._before:
            node = self._nodes.get(path)
            self._before[path] = None if node is None else node.copied()

    def _roll_back(self) -> None:
        for path, node in self._before.items():
            if node is None:
                self._nodes.pop(path, None)
            else:
                self._nodes[path] = node
        self._before.clear()
        self._events.clear()

    def _publish(self) -> None:
        self._before.clear()
        events, self._events = self._events, []
        for event in events:
            if self.on_event is not None:
                self.on_event(event)
            for client in list(self._clients.values()):
                if client is not None:
                    client.node_changed(event)


class MemoryCoord:
    """One client of a `MemoryTree`: the `Coord` of ports.py, and the handles of a test.

    Call `start` first. Everything that a client hears (answers, watches, session events) comes
    through the event loop in the order in which the service did it, so a watch is heard before the
    answer that shows the change.
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
        """End the session in good order: its ephemeral nodes vanish at once. Idempotent."""
        self._closed = True
        session_id, self._session_id = self._session_id, 0
        self._watches = WatchTable()
        self._fail_waiting()
        self._tree.end_session(session_id)
        await self._turn()

    # ---- handles of a test

    def expire(self) -> None:
        """The service ends this session. The client hears of it at once, or, while it is
        suspended, at `resume`."""
        self._tree.end_session(self._session_id)
        if self._suspended_at is None:
            self._begin_anew()

    def suspend(self) -> None:
        """The connection breaks. Requests under way and new ones fail with ConnectionLoss."""
        if self._suspended_at is None:
            self._suspended_at = self._tree.clock.boottime()
            self._fail_waiting()
            self._announce(SessionEvent.SUSPENDED)

    def resume(self) -> None:
        """The connection is back: the session goes on, or a new one begins if it expired."""
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
        """The next request fails with ConnectionLoss, after it was applied or before. May be
        called several times, for as many requests."""
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
        """Sessions of this client that have ended."""
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
        """Do the work at the service, then hear its answer in turn with everything else."""
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
        """Wait until the loop has delivered everything that happened before this call."""
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


def _parent(path: str) -> str:
    return path.rpartition("/")[0] or "/"


def check_path(path: str) -> str:
    """Gives the path back. Raises ValueError if no node can have it."""
    if path != "/" and (not path.startswith("/") or any(not part for part in path[1:].split("/"))):
        raise ValueError(f"{path!r} is not the path of a node")
    return path


def _expect_version(path: str, node: _Node, version: int) -> None:
    if version not in (-1, node.version):
        raise BadVersion(f"{path} has version {node.version}, not {version}")
