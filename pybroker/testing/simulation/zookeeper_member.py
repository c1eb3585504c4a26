"""One member of the simulated ZooKeeper ensemble: its own copy of the tree, which may lag, and its
clients' connections.

A member answers reads from its copy, and forwards other requests to the leader. The answers on a
connection keep the order of the requests.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pybroker.errors import CoordError, NoNode
from pybroker.ports import NodeStat, WatchEvent, WatchKind
from pybroker.testing.simulation.links import Links, Pipe
from pybroker.testing.simulation.memory_tree import MemoryTree
from pybroker.testing.simulation.zookeeper_wire import (
    Answer,
    CloseSession,
    Connect,
    Forwardable,
    Granted,
    Read,
    ReadKind,
    Request,
    SetWatches,
    Signal,
    Sync,
    Wire,
    Write,
)

_WatchesOf = dict[str, dict[int, None]]
"""By path, the numbers of the connections that have a watch on the node."""


@dataclass(slots=True, eq=False)
class Forwarded:
    """A client's request that a ZooKeeper member forwards to the leader."""

    member: Member
    wire: int
    """The number of the client's connection; 0 for the service itself."""
    session_id: int
    request: Forwardable | Connect


@dataclass(slots=True, eq=False)
class Transaction:
    """A decision of the ZooKeeper leader. Every member applies all transactions in the order of
    `zxid`."""

    zxid: int
    wall_ms: int
    wire: int
    session_id: int
    request: Write | CloseSession | Connect
    answer: Answer


class TransactionClock:
    """The clock of a `MemoryTree`. It shows the time at which the leader decided the transaction
    that the tree applies now or has applied last."""

    def __init__(self, wall_ms: int) -> None:
        self.now_ms = wall_ms

    def wall_ms(self) -> int:
        return self.now_ms

    def monotonic(self) -> float:
        return self.now_ms / 1000

    boottime = monotonic


class _ClientConnection:
    __slots__ = ("queue", "session_id", "wire")

    def __init__(self, wire: Wire, session_id: int) -> None:
        self.wire = wire
        self.session_id = session_id
        """The session id; 0 until the leader has granted a session."""
        self.queue: deque[Request] = deque()
        """The requests without an answer. The first of them waits for the leader."""


class Member:
    """A member of the simulated ZooKeeper. `forward` sends a request to the leader. `lag_s` is the
    maximum delay in seconds before the member applies a transaction."""

    def __init__(
        self,
        links: Links,
        name: str,
        rng: random.Random,
        wall_ms: int,
        forward: Callable[[Forwarded], None],
    ) -> None:
        self.name = name
        self.is_up = True
        self.is_serving = False
        self.lag_s = 0.0
        self.contact_at = 0.0
        """The time of the last contact with the leader."""
        self.touched: dict[int, None] = {}
        """The sessions from which this member has received a message since its last report to the
        leader."""
        self.to_leader: Pipe | None = None
        self.from_leader: Pipe | None = None
        self.clock = TransactionClock(wall_ms)
        self.tree = MemoryTree(self.clock)
        self.tree.on_event = self._changed
        self._links = links
        self._environment = links.environment
        self._rng = rng
        self._forward = forward
        self._served: dict[int, _ClientConnection] = {}
        self._data: _WatchesOf = {}
        self._child: _WatchesOf = {}
        self._inbox: deque[Transaction | tuple[int, Sync]] = deque()
        self._applies_at = 0.0

    # ---- start and stop

    def serve(self, log: Sequence[Transaction]) -> None:
        """Apply all transactions of `log` that are new to this member, and start to serve."""
        for transaction in log[self.tree.zxid :]:
            self._apply(transaction)
        self.is_serving = True

    def stop(self, *, silently: bool = False) -> None:
        """Stop serving, and close all connections. With `silently` the clients are not notified.
        Idempotent."""
        self.is_serving = False
        for served in self._served.values():
            served.wire.close_by_server(silently=silently)
        self._served.clear()
        self._data.clear()
        self._child.clear()
        self._inbox.clear()
        self._applies_at = 0.0
        self.touched.clear()
        for pipe in (self.to_leader, self.from_leader):
            if pipe is not None:
                pipe.close()
        self.to_leader = self.from_leader = None

    # ---- clients

    def hear(self, wire: Wire, message: Any) -> None:
        """Handle a message that a client has sent on the connection `wire`."""
        served = self._served.get(wire.number)
        if served is None:
            self._greet(wire, message)
        elif message is Signal.END:
            self.forget(wire)
        elif message is Signal.PING:
            self.touched[served.session_id] = None
            wire.tell(Signal.PONG)
        else:
            self.touched[served.session_id] = None
            self._take(served, message)

    def forget(self, wire: Wire) -> None:
        """Remove a connection that its client has closed. Earlier requests of the client are still
        processed."""
        served = self._served.pop(wire.number, None)
        if served is not None:
            for watches in (self._data, self._child):
                for numbers in watches.values():
                    numbers.pop(wire.number, None)

    def _greet(self, wire: Wire, message: Any) -> None:
        if not self._links.passes(self.name, wire.machine):
            return  # a link that works in one direction only does not connect
        if not isinstance(message, Connect) or not self.is_serving:
            if self.is_up:
                wire.close_by_server(silently=False)
        elif message.zxid > self.tree.zxid:
            wire.close_by_server(silently=False)
        else:
            self._served[wire.number] = _ClientConnection(wire, 0)
            self._forward(Forwarded(self, wire.number, message.session_id, message))

    def _take(self, served: _ClientConnection, request: Request) -> None:
        if isinstance(request, (Read, SetWatches)):
            if served.queue:
                served.queue.append(request)
            else:
                served.wire.tell(self._read(served, request))
        else:
            served.queue.append(request)
            number = served.wire.number
            self._forward(Forwarded(self, number, served.session_id, request))

    def _drain(self, served: _ClientConnection) -> None:
        """Answer the queued requests of a connection in order, up to the first one that waits for
        the leader."""
        queue = served.queue
        while queue:
            first = queue[0]
            if isinstance(first, (Read, SetWatches)):
                answer = self._read(served, first)
            elif first.answer is None:
                return
            else:
                answer = first.answer
                answer.zxid = self.tree.zxid
            queue.popleft()
            served.wire.tell(answer)

    # ---- reads and watches

    def _read(self, served: _ClientConnection, request: Read | SetWatches) -> Answer:
        if isinstance(request, SetWatches):
            self._rewatch(served, request)
            return Answer(self.tree.zxid)
        tree, path = self.tree, request.path
        value: list[str] | tuple[bytes, NodeStat] | NodeStat | None = None
        try:
            if request.kind is ReadKind.CHILDREN:
                value = sorted(tree.lookup(path).children)
            elif request.kind is ReadKind.GET:
                node = tree.lookup(path)
                value = node.data, node.stat()
            elif (found := tree.node(path)) is not None:
                value = found[1]
        except CoordError as error:
            return Answer(tree.zxid, error=error.with_traceback(None))
        if request.watch:
            watches = self._child if request.kind is ReadKind.CHILDREN else self._data
            watches.setdefault(path, {})[served.wire.number] = None
        return Answer(tree.zxid, value)

    def _rewatch(self, served: _ClientConnection, request: SetWatches) -> None:
        tell, number = served.wire.tell, served.wire.number
        groups = (
            (request.data, WatchKind.CHANGED, self._data),
            (request.missing, WatchKind.CREATED, self._data),
            (request.child, WatchKind.CHILD, self._child),
        )
        for paths, kind, watches in groups:
            for path in paths:
                missed = self._missed(path, kind, request.zxid)
                if missed is None:
                    watches.setdefault(path, {})[number] = None
                else:
                    tell(WatchEvent(missed, path))

    def _missed(self, path: str, kind: WatchKind, zxid: int) -> WatchKind | None:
        """Return the event that a watch of this kind on the node would have reported since `zxid`;
        None if there is none."""
        try:
            node = self.tree.lookup(path)
        except NoNode:
            return None if kind is WatchKind.CREATED else WatchKind.DELETED
        if kind is WatchKind.CREATED:
            return kind
        changed = node.pzxid if kind is WatchKind.CHILD else node.mzxid
        return kind if changed > zxid else None

    def _changed(self, event: WatchEvent) -> None:
        numbers: dict[int, None] = {}
        if event.kind is not WatchKind.CHILD:
            numbers.update(self._data.pop(event.path, {}))
        if event.kind in (WatchKind.CHILD, WatchKind.DELETED):
            numbers.update(self._child.pop(event.path, {}))
        for number in numbers:
            served = self._served.get(number)
            if served is not None:
                served.wire.tell(event)

    # ---- messages from the leader

    def learn(self, item: Transaction | tuple[int, Sync]) -> None:
        """Handle a message from the leader: a transaction to apply, or (connection number, Sync)
        when the leader has answered a client's Sync."""
        if self.lag_s == 0 and not self._inbox:
            self._do(item)
            return
        self._inbox.append(item)
        self._applies_at = max(
            self._applies_at, self._environment.now + self._rng.random() * self.lag_s
        )
        self._environment.at(self._applies_at, self._do_next, item)

    def _do_next(self, item: Transaction | tuple[int, Sync]) -> None:
        if self._inbox and self._inbox[0] is item:  # not if the member was stopped meanwhile
            self._inbox.popleft()
            self._do(item)

    def _do(self, item: Transaction | tuple[int, Sync]) -> None:
        if isinstance(item, Transaction):
            self._apply(item)
        else:
            number, request = item
            request.answer = Answer(0)
            served = self._served.get(number)
            if served is not None:
                self._drain(served)

    def _apply(self, transaction: Transaction) -> None:
        tree, request = self.tree, transaction.request
        assert transaction.zxid == tree.zxid + 1, (transaction, tree.zxid)
        self.clock.now_ms = transaction.wall_ms
        if isinstance(request, Connect):
            tree.zxid += 1
            session_id = tree.open_session(None)
            assert session_id == transaction.session_id
            self.grant(transaction.wire, transaction.answer.value)
            return
        if isinstance(request, CloseSession):
            tree.end_session(transaction.session_id)
        elif transaction.answer.error is not None:
            tree.zxid += 1
        else:
            tree.apply(request.ops, transaction.session_id)
        served = self._served.get(transaction.wire)
        if served is not None:
            request.answer = transaction.answer
            self._drain(served)
        if isinstance(request, CloseSession):
            self._end_session(transaction.session_id)

    def grant(self, number: int, granted: Granted) -> None:
        """Send `granted`, the leader's answer to a Connect request, to the client. `number` is the
        number of the client's connection."""
        served = self._served.get(number)
        if served is None:
            return
        served.session_id = granted.session_id
        served.wire.tell(granted)
        if granted.session_id == 0:
            self.forget(served.wire)

    def send_away(self, number: int) -> None:
        """Close the connection with this number, because its session has ended or uses another
        connection now."""
        served = self._served.get(number)
        if served is not None:
            self.forget(served.wire)
            served.wire.close_by_server(silently=False)

    def _end_session(self, session_id: int) -> None:
        for served in [*self._served.values()]:
            if served.session_id == session_id:
                self.forget(served.wire)
                served.wire.close_by_server(silently=False)
