"""The nodes and sessions of a simulated ZooKeeper, in memory. They behave like those of a real
server; the same tests check both."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from pybroker.clock import ManualClock
from pybroker.errors import (
    BadVersion,
    CoordError,
    MultiFailed,
    NoChildrenForEphemerals,
    NodeExists,
    NoNode,
    NotEmpty,
)
from pybroker.ports import (
    CheckOp,
    Clock,
    CoordOp,
    CreateOp,
    DeleteOp,
    NodeStat,
    OpResult,
    SetOp,
    WatchEvent,
    WatchKind,
)

_FIRST_SESSION_ID: Final = 0x1000_0000_0000_0001


class TreeClient(Protocol):
    """A client of the simulated ZooKeeper that is notified of changes."""

    def node_changed(self, event: WatchEvent) -> None: ...


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
    """The number at the end of the name of the next sequential child. It never decreases."""
    pzxid: int = 0
    """The zxid of the last creation or deletion of a child. A client that reconnects sends its
    watches and the last zxid that it saw. If `pzxid` is larger, the client has missed an event, and
    its watch of the children fires at once. A watch of the node itself is compared with `mzxid`."""
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
    """The nodes of a simulated ZooKeeper. Every change gets the next `zxid`; a multi is one
    change."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock: Clock = clock or ManualClock()
        self.zxid = 0
        now = self.clock.wall_ms()
        self._nodes: dict[str, _Node] = {"/": _Node(b"", 0, 0, now, now)}
        self._before: dict[str, _Node | None] = {}
        self._events: list[WatchEvent] = []
        self._next_session_id = _FIRST_SESSION_ID
        self._clients: dict[int, TreeClient | None] = {}
        self.on_event: Callable[[WatchEvent], object] | None = None
        """A function that is called for every change. It is set if the owner of the tree stores the
        watches of the clients, as `zookeeper_member.py` does."""

    def paths(self) -> list[str]:
        """Return all node paths, sorted."""
        return sorted(self._nodes)

    def node(self, path: str) -> tuple[bytes, NodeStat] | None:
        """Return the data and the stat of a node, None if it does not exist. No session is
        needed."""
        found = self._nodes.get(path)
        return None if found is None else (found.data, found.stat())

    def lookup(self, path: str) -> _Node:
        node = self._nodes.get(check_path(path))
        if node is None:
            raise NoNode(path)
        return node

    def apply(self, ops: Sequence[CoordOp], session_id: int) -> list[OpResult]:
        """Apply all operations in `ops` for the session, or none of them. Return the result of each
        operation. Raises MultiFailed."""
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

    def open_session(self, client: TreeClient | None) -> int:
        session_id = self._next_session_id
        self._next_session_id += 1
        self._clients[session_id] = client
        return session_id

    def end_session(self, session_id: int) -> None:
        """Remove the session, if it exists, and its ephemeral nodes."""
        if session_id not in self._clients:
            return
        del self._clients[session_id]
        self.zxid += 1
        for path in self.owned_by(session_id):
            self._delete(DeleteOp(path))
        self._publish()

    def owned_by(self, session_id: int) -> list[str]:
        """Return the paths of the session's ephemeral nodes, sorted."""
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


def _parent(path: str) -> str:
    return path.rpartition("/")[0] or "/"


def check_path(path: str) -> str:
    """Return `path` unchanged. Raises ValueError if it is not a valid node path."""
    if path != "/" and (not path.startswith("/") or any(not part for part in path[1:].split("/"))):
        raise ValueError(f"{path!r} is not a valid node path")
    return path


def _expect_version(path: str, node: _Node, version: int) -> None:
    if version not in (-1, node.version):
        raise BadVersion(f"{path} has version {node.version}, expected {version}")
