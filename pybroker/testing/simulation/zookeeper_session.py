"""A ZooKeeper client (`Coord`) for one simulated process. Like the real `Coord` over kazoo, the
client fails requests at once while the connection is lost, and sends heartbeats even while the
event loop is blocked."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from pybroker.coordinator.zookeeper.handshake import SessionKey
from pybroker.coordinator.zookeeper.limits import check_request_size
from pybroker.coordinator.zookeeper.session_store import NoSessionStore, SessionStore
from pybroker.coordinator.zookeeper.watches import WatchTable
from pybroker.errors import ConnectionLoss, CoordError, SessionExpired, StartupError
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
from pybroker.testing.simulation.environment import Entry
from pybroker.testing.simulation.loop import ProcessLoop
from pybroker.testing.simulation.memory_tree import check_path
from pybroker.testing.simulation.zookeeper_takeover import end_session
from pybroker.testing.simulation.zookeeper_wire import (
    Answer,
    CloseSession,
    Connect,
    Granted,
    Read,
    ReadKind,
    Request,
    Service,
    SetWatches,
    Signal,
    Sync,
    Wire,
    Write,
)

_BEATS_PER_SESSION: Final = 3
_PROBES_PER_SESSION: Final = 6
_SILENCE_OF_SESSION_MAX: Final = 2 / 3
_RETRY_S: Final = 0.05
_RETRY_MAX_S: Final = 1.0
_CLOSE_TIMEOUT_S: Final = 2.0
_PAUSE_POLL_S: Final = 0.02


@dataclass(slots=True, eq=False)
class _Asked:
    future: asyncio.Future[Any]
    on_value: Callable[[Any], None] | None
    sent_at: float
    by_leader: bool


class ZooKeeperSession:
    """The ZooKeeper client (`Coord`) of the simulated process that runs `loop` on `machine`. Call
    `start` first. `members` are the ZooKeeper members to connect to, by default all."""

    def __init__(
        self,
        service: Service,
        loop: ProcessLoop,
        machine: str,
        *,
        session_timeout_ms: int = 18_000,
        store: SessionStore | None = None,
        members: Sequence[str] | None = None,
    ) -> None:
        self.machine = machine
        self.loop = loop
        self._service = service
        self._environment = service.environment
        self._session_timeout_ms = session_timeout_ms
        self._store: SessionStore = store or NoSessionStore()
        self._members = [*(service.members if members is None else members)]
        service.clients_made += 1
        self._rng = service.environment.rng(f"zookeeper client {machine} {service.clients_made}")
        self._listeners: list[SessionListener] = []
        self._watches = WatchTable()
        self._asked: deque[_Asked] = deque()
        self._wire: Wire | None = None
        self._round: list[str] = []
        self._retry_s = _RETRY_S
        self._key: SessionKey | None = None
        self._earlier: list[SessionKey] = []
        self._zxid = 0
        self._seen_zxid: int | None = None
        self._is_connected = False
        self._is_closed = False
        self._generation = 0
        self._heard_at = 0.0
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._beat_entry: Entry | None = None
        self._lost_replies: deque[tuple[bool, bool]] = deque()
        self._first = asyncio.Event()

    # ---- start and close

    async def start(self, timeout_s: float = 10.0) -> None:
        """Open the first session. Raises StartupError if no session begins within `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                await self.close_previous_session()
                self._connect()
                await self._first.wait()
        except TimeoutError:
            await self.close()
            raise StartupError(
                f"no ZooKeeper member answers {self.machine} within {timeout_s:g} s"
            ) from None

    async def close_previous_session(self) -> None:
        """Read from the session store which sessions earlier processes have left open, and end
        these sessions. Their ids stay in `earlier_session_ids`."""
        for key in self._store.load():
            if key not in self._earlier:
                await end_session(self._service, self.loop, self.machine, key.id, self._members)
                self._earlier.append(key)

    async def close(self) -> None:
        """End the session: ZooKeeper deletes its ephemeral nodes. Idempotent."""
        wire, key = self._wire, self._key
        told = False
        if not self._is_closed and self._is_connected and wire is not None:
            self._is_closed = True
            asked = self._asked
            self._fail_asked()
            self._asked = asked  # their answers arrive before the answer to the close request
            self._watches.clear()
            goodbye = self._ask(CloseSession())
            self._key = None
            with suppress(TimeoutError, CoordError):
                async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                    await goodbye
                    told = True
        self._is_closed = True
        self._key = None
        self._is_connected = False
        self._watches.clear()
        self._fail_asked()
        self._drop_wire(lose=False)
        self._cancel_timers()
        if key is not None and told:
            self._save_keys([])

    # ---- faults

    def break_connection(self, *, arrives: bool | None = None) -> None:
        """Break the connection now; the client connects again by itself. `arrives` tells whether
        data in transit still reaches ZooKeeper; None means a random choice."""
        wire = self._wire
        if wire is not None and not self.loop.is_dead:
            self._environment.note(f"zk {self.loop.name} connection breaks")
            lose = self._rng.random() < 0.5 if arrives is None else not arrives
            wire.close(lose=lose)
            self.loop.call_soon(self._broken, wire)

    def lose_reply(self, *, applied: bool = True, expires: bool = False) -> None:
        """Break the connection at the next write. `applied`: ZooKeeper applies the write, but the
        client gets no answer; otherwise the write is lost. `expires`: the session expires, too."""
        self._lost_replies.append((applied, expires))

    def expire(self) -> None:
        """Let ZooKeeper expire this session, if there is a quorum."""
        self._service.expire(self.session_id)

    # ---- state

    @property
    def generation(self) -> int:
        return self._generation

    @property
    def session_id(self) -> int:
        return 0 if self._key is None else self._key.id

    @property
    def earlier_session_ids(self) -> frozenset[int]:
        """Return the ids of all ended sessions of this machine, from this and earlier processes."""
        return frozenset(key.id for key in self._earlier)

    @property
    def session_timeout_ms(self) -> int:
        """Return the granted session timeout (ms); before `start`, the requested one."""
        return self._session_timeout_ms

    @property
    def member(self) -> str | None:
        """Return the name of the ZooKeeper member to which the client is connected or connecting;
        None if there is none."""
        return None if self._wire is None else self._wire.server.name

    def silence(self) -> float:
        """Return the seconds since the client sent the latest write or sync that ZooKeeper has
        answered without an error. Without such an answer, count from the start of the session."""
        return self._environment.now - self._heard_at

    def add_listener(self, listener: SessionListener) -> None:
        self._listeners.append(listener)

    # ---- requests

    async def get(self, path: str, watch: Watch | None = None) -> tuple[bytes, NodeStat]:
        found = await self._read(ReadKind.GET, path, watch)
        assert isinstance(found, tuple)
        return found

    async def exists(self, path: str, watch: Watch | None = None) -> NodeStat | None:
        found = await self._read(ReadKind.EXISTS, path, watch)
        assert found is None or isinstance(found, NodeStat)
        return found

    async def children(self, path: str, watch: Watch | None = None) -> list[str]:
        found = await self._read(ReadKind.CHILDREN, path, watch)
        assert isinstance(found, list)
        return found

    async def create(
        self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequence: bool = False
    ) -> str:
        made = await self._write([CreateOp(path, data, ephemeral, sequence)], alone=True)
        assert isinstance(made, str)
        return made

    async def set(self, path: str, data: bytes, version: int = -1) -> NodeStat:
        stat = await self._write([SetOp(path, data, version)], alone=True)
        assert isinstance(stat, NodeStat)
        return stat

    async def delete(self, path: str, version: int = -1) -> None:
        await self._write([DeleteOp(path, version)], alone=True)

    async def multi(self, ops: Sequence[CoordOp]) -> list[OpResult]:
        if not ops:
            return []
        results = await self._write([*ops], alone=False)
        assert isinstance(results, list)
        return [*results]

    async def sync(self, path: str = "/") -> None:
        check_path(path)
        self._check_usable()
        await self._ask(Sync())

    # ---- private: requests

    async def _read(self, kind: ReadKind, path: str, watch: Watch | None) -> object:
        check_path(path)
        self._check_usable()
        remember: Callable[[Any], None] | None = None
        if watch is not None:

            def remember(value: Any) -> None:
                if kind is ReadKind.CHILDREN:
                    self._watches.add_child(path, watch)
                else:
                    self._watches.add_data(path, watch, exists=value is not None)

        return await self._ask(Read(kind, path, watch is not None), remember)

    async def _write(self, ops: Sequence[CoordOp], *, alone: bool) -> object:
        for op in ops:
            check_path(op.path)
        check_request_size(ops)
        self._check_usable()
        answer = self._ask(Write(ops, alone))
        if self._lost_replies:
            arrives, expires = self._lost_replies.popleft()
            self.break_connection(arrives=arrives)
            if expires:
                self.expire()
        return await answer

    def _check_usable(self) -> None:
        if self._key is None:
            raise SessionExpired("there is no ZooKeeper session")
        if not self._is_connected:
            raise ConnectionLoss("the connection to ZooKeeper is lost")

    def _ask(
        self, request: Request, on_value: Callable[[Any], None] | None = None
    ) -> asyncio.Future[Any]:
        assert self._wire is not None
        future: asyncio.Future[Any] = self.loop.create_future()
        by_leader = not isinstance(request, (Read, SetWatches))
        self._asked.append(_Asked(future, on_value, self._environment.now, by_leader))
        self._wire.send(request)
        return future

    def _fail_asked(self) -> None:
        asked, self._asked = self._asked, deque()
        for each in asked:
            if not each.future.done():
                each.future.set_exception(ConnectionLoss("the connection to ZooKeeper was lost"))

    # ---- private: what arrives

    def _arrive(self, wire: Wire, message: Any) -> None:
        """Handle an answer to a ping at once. Leave any other message to the event loop."""
        if message is Signal.PONG:
            wire.unanswered_ping = False
        else:
            self.loop.call_soon(self._hear, wire, message)

    def _hear(self, wire: Wire, message: Any) -> None:
        if wire is not self._wire:
            return
        if isinstance(message, Answer):
            self._settle(message)
        elif isinstance(message, WatchEvent):
            for watch in self._watches.take(message):
                # One turn later, so that the read that set the watch is answered first.
                self.loop.call_soon(self._fire, self.session_id, watch, message)
        elif isinstance(message, Granted):
            self._granted(wire, message)
        elif message is Signal.END:
            self._broken(wire)

    def _settle(self, answer: Answer) -> None:
        asked = self._asked.popleft()
        self._zxid = max(self._zxid, answer.zxid)
        if asked.by_leader and answer.error is None:
            self._heard_at = max(self._heard_at, asked.sent_at)
        if answer.error is None and asked.on_value is not None:
            asked.on_value(answer.value)
        if asked.future.done():
            return
        if answer.error is not None:
            asked.future.set_exception(answer.error)
        else:
            asked.future.set_result(answer.value)

    def _fire(self, session_id: int, watch: Watch, event: WatchEvent) -> None:
        if session_id == self.session_id and not self._is_closed:
            watch(event)

    # ---- private: connection and session

    def _connect(self) -> None:
        if self._is_closed or self._wire is not None:
            return
        if not self._round:
            self._round = self._rng.sample(self._members, len(self._members))
        member = self._service.members[self._round.pop()]
        self._wire = wire = Wire(self._service.links, self.machine, member, self._rng, self._arrive)
        wire.send(Connect(self.session_id, self._zxid, self._session_timeout_ms))
        patience_s = self._session_timeout_ms / 1000 / 3 / len(self._members)
        self._later("attempt", patience_s, self._broken, wire)

    def _granted(self, wire: Wire, granted: Granted) -> None:
        self._timers.pop("attempt").cancel()
        if granted.session_id == 0:
            self._session_ended()
            return
        self._is_connected = True
        self._retry_s = _RETRY_S
        self._round.clear()
        self._session_timeout_ms = granted.timeout_ms
        self._beat(wire)
        if self._key is None:
            self._session_began(granted.session_id)
        else:
            self._connection_returned()

    def _session_began(self, session_id: int) -> None:
        self._key = key = SessionKey(session_id, session_id.to_bytes(16, "big"))
        self._generation += 1
        self._seen_zxid = None
        self._heard_at = self._environment.now
        self._save_keys([*self._earlier, key])
        self._first.set()
        self._announce(SessionEvent.CONNECTED)
        self._probe_later()

    def _connection_returned(self) -> None:
        table = self._watches
        seen = self._seen_zxid or 0

        def done(_: Any) -> None:
            self._seen_zxid = None

        watches = SetWatches(seen, table.existing(), table.missing(), table.parents())
        answer = self._ask(watches, done)
        answer.add_done_callback(lambda each: each.cancelled() or each.exception())
        self._probe_later(is_fresh=True)
        self._announce(SessionEvent.RECONNECTED)

    def _broken(self, wire: Wire) -> None:
        if wire is not self._wire:
            return
        self._drop_wire(lose=self._rng.random() < 0.5)
        was_connected, self._is_connected = self._is_connected, False
        if self._round and not was_connected:
            self._later("retry", 0.001, self._connect)
        else:
            self._later("retry", self._retry_s * (0.5 + self._rng.random()), self._connect)
            self._retry_s = min(2 * self._retry_s, _RETRY_MAX_S)
        if was_connected and self._key is not None:
            self._seen_zxid = self._zxid if self._seen_zxid is None else self._seen_zxid
            self._fail_asked()
            self._announce(SessionEvent.SUSPENDED)

    def _session_ended(self) -> None:
        assert self._key is not None
        self._earlier.append(self._key)
        self._key = None
        self._zxid = 0
        self._is_connected = False
        self._watches.clear()
        self._fail_asked()
        self._drop_wire(lose=False)
        self._cancel_timers()
        self._announce(SessionEvent.EXPIRED)
        self._later("retry", 0.001, self._connect)

    def _drop_wire(self, *, lose: bool) -> None:
        wire, self._wire = self._wire, None
        if wire is not None:
            wire.close(lose=lose)
        if self._beat_entry is not None:
            self._beat_entry.cancel()

    def _announce(self, event: SessionEvent) -> None:
        if not self._is_closed:
            self._environment.note(f"zk {self.loop.name} {event.value} {self.session_id:x}")
            for listener in self._listeners:
                listener(event)

    def _save_keys(self, keys: Sequence[SessionKey]) -> None:
        with suppress(OSError):
            self._store.save(keys)

    # ---- private: heartbeats

    def _later(self, name: str, seconds: float, action: Callable[..., None], *args: Any) -> None:
        """Call `action(*args)` after `seconds`, unless the client is closed. Cancel the waiting
        action with the same `name`, if any."""
        earlier = self._timers.pop(name, None)
        if earlier is not None:
            earlier.cancel()
        if not self._is_closed:
            self._timers[name] = self.loop.call_later(seconds, action, *args)

    def _cancel_timers(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _beat(self, wire: Wire) -> None:
        """Ping ZooKeeper if the client has been idle. Break the connection if the previous ping has
        no answer. This method runs outside of the event loop, like kazoo's thread."""
        if wire is not self._wire or self.loop.is_dead:
            return
        now = self._environment.now
        pause_s = self._session_timeout_ms / 1000 / _BEATS_PER_SESSION
        next_at = wire.sent_at + pause_s
        if self.loop.is_paused:
            next_at = now + _PAUSE_POLL_S
        elif now >= next_at:
            if wire.unanswered_ping:
                self.loop.call_soon(self._broken, wire)
                return
            wire.unanswered_ping = True
            wire.send(Signal.PING)
            next_at = now + pause_s
        self._beat_entry = self._environment.at(next_at, self._beat, wire)

    def _probe_later(self, *, is_fresh: bool = False) -> None:
        """Send a sync, and schedule the next call. If requests wait and ZooKeeper has been silent
        for too long, break the connection instead of sending. `is_fresh`: do not break the
        connection in this call."""
        session_s = self._session_timeout_ms / 1000
        wire = self._wire
        if self._is_connected and wire is not None:
            is_silent = self.silence() > _SILENCE_OF_SESSION_MAX * session_s
            if is_silent and self._asked and not is_fresh:
                self._broken(wire)
            else:
                probe = self._ask(Sync())
                probe.add_done_callback(lambda each: each.cancelled() or each.exception())
        self._later("probe", session_s / _PROBES_PER_SESSION, self._probe_later)
