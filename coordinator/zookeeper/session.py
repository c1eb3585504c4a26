"""`KazooCoord`: a `Coord` that replaces an expired session by a new session. Each session has its
own `Link`, so that a request of an old session is never sent in a newer session."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

from pybroker.aligned_timers import aligned_due
from pybroker.coordinator.zookeeper.connect_string import parse_connect_string
from pybroker.coordinator.zookeeper.first_answer import FirstAnswer
from pybroker.coordinator.zookeeper.handshake import SessionKey, close_session
from pybroker.coordinator.zookeeper.kazoo_values import (
    KazooException,
    add_operation,
    meaning_of,
    multi_results,
    stat_of,
)
from pybroker.coordinator.zookeeper.limits import check_request_size
from pybroker.coordinator.zookeeper.link import Answer, Link, LinkState
from pybroker.coordinator.zookeeper.session_store import NoSessionStore, SessionStore
from pybroker.coordinator.zookeeper.watches import WatchTable
from pybroker.coordinator.zookeeper.wedge import WedgeWatch
from pybroker.errors import ConnectionLoss, CoordError, NodeExists, SessionExpired, StartupError
from pybroker.metrics import TimeMeter
from pybroker.ports import (
    Clock,
    CoordOp,
    CreateOp,
    NodeStat,
    OpResult,
    SessionEvent,
    SessionListener,
    SetOp,
    Watch,
    WatchEvent,
    WatchKind,
)

log = logging.getLogger(__name__)

SESSION_TIMEOUT_MS: Final = 18_000
"""The default of zookeeper.session.timeout.ms, as in Apache Kafka since 2.5."""

_PROBES_PER_SESSION: Final = 6
_SILENCE_OF_SESSION_MAX: Final = 2 / 3
_RETRY_MAX_S: Final = 1.0
_CLOSE_TIMEOUT_S: Final = 2.0


class KazooCoord:
    """The `Coord` that uses kazoo. Without a connection, requests fail with ConnectionLoss at once.
    The id and password of a new session are saved in `store` before the session is used."""

    def __init__(
        self,
        connect: str,
        *,
        clock: Clock,
        session_timeout_ms: int = SESSION_TIMEOUT_MS,
        store: SessionStore | None = None,
        times: TimeMeter | None = None,
    ) -> None:
        """`times` measures the duration of answered requests. Raises StartupError if `connect`
        (HOST:PORT[,HOST:PORT...][/chroot]) is not valid."""
        self._times = TimeMeter() if times is None else times
        self._connect = parse_connect_string(connect)
        self._session_timeout_ms = session_timeout_ms
        self._clock = clock
        self._store: SessionStore = store or NoSessionStore()
        self._listeners: list[SessionListener] = []
        self._watches = WatchTable()
        self._in_flight: set[Answer] = set()
        self._cleaners: set[asyncio.Task[bool]] = set()
        self._link: Link | None = None
        self._key: SessionKey | None = None
        self._earlier: list[SessionKey] = []
        self._generation = 0
        self._suspended = False
        self._closed = False
        self._seen_zxid: int | None = None
        self._rewatched: Answer | None = None
        self._answered_request_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._connected = asyncio.Event()
        self._wedge = WedgeWatch(lambda: self._session_timeout_ms / 1000, self._loop_stopped)

    # ---- life

    async def start(
        self,
        timeout_s: float = 10.0,
        *,
        make_chroot: bool = False,
        refusals_max: int | None = None,
    ) -> None:
        """Close the session of an earlier process and open a new session. With `make_chroot`,
        create a missing chroot. Raises StartupError if the chroot is missing, or if the start takes
        longer than `timeout_s`. Also raises StartupError after `refusals_max` consecutive attempts
        in which no server accepts the connection."""
        first = FirstAnswer(self._connect, refusals_max=refusals_max)
        try:
            async with asyncio.timeout(timeout_s):
                self._granted(await first.granted_ms(self._session_timeout_ms, timeout_s))
                await self.close_previous_session()
                if make_chroot:
                    await self._make_chroot(timeout_s)
                self._open_link()
                await self._connected.wait()
                await self._check_chroot()
        except TimeoutError:
            await self.close()
            raise StartupError(first.complaint(timeout_s)) from None
        except CoordError as error:
            await self.close()
            raise StartupError(
                f"ZooKeeper at {self._connect.servers} failed while the session was opened"
                f" ({error!r}); try again, and see the ZooKeeper server's log"
            ) from error
        except BaseException:
            await self.close()
            raise

    async def close_previous_session(self) -> None:
        """Close the sessions of earlier processes, so that the server deletes the ephemeral nodes
        of these sessions. `earlier_session_ids` then includes these sessions."""
        for key in self._store.load():
            if key in self._earlier:
                continue
            with suppress(OSError):
                was_alive = await close_session(
                    self._connect.hosts, key, timeout_s=_CLOSE_TIMEOUT_S
                )
                if was_alive:
                    log.info("zookeeper earlier session closed session=0x%x", key.id)
            self._earlier.append(key)

    async def close(self) -> None:
        """Close the session, so that the server deletes its ephemeral nodes. Idempotent."""
        self._closed = True
        self._wedge.stop()
        if self._timer is not None:
            self._timer.cancel()
        link, self._link = self._link, None
        key, self._key = self._key, None
        self._watches.clear()
        self._fail_in_flight()
        # Without a connection the server keeps the session; the next start needs its key.
        was_connected = link is not None and not self._suspended
        in_order = link is None or await link.stop(_CLOSE_TIMEOUT_S)
        if key is not None and in_order and was_connected:
            self._save_keys([])
        elif not in_order:
            log.warning("zookeeper session not closed reason=server does not answer")
        if self._cleaners:
            await asyncio.wait(self._cleaners)

    # ---- facts

    @property
    def generation(self) -> int:
        return self._generation

    @property
    def session_id(self) -> int:
        return 0 if self._key is None else self._key.id

    @property
    def session_key(self) -> SessionKey | None:
        """The id and password of the current session; None without a session."""
        return self._key

    @property
    def earlier_session_ids(self) -> frozenset[int]:
        """The ids of the ended sessions of this process, and of the sessions of earlier processes
        that `close_previous_session` has found."""
        return frozenset(key.id for key in self._earlier)

    @property
    def session_timeout_ms(self) -> int:
        """The session timeout that the server granted; before `start` the requested one."""
        return self._session_timeout_ms

    def silence(self) -> float:
        """Return the seconds since the newest answered write or sync was sent to ZooKeeper. Reads
        do not count: a ZooKeeper server that is cut off from the leader still answers reads, but
        the leader can expire the session."""
        return self._clock.boottime() - self._answered_request_at

    def add_listener(self, listener: SessionListener) -> None:
        self._listeners.append(listener)

    # ---- requests

    async def get(self, path: str, watch: Watch | None = None) -> tuple[bytes, NodeStat]:
        def remember(_: Any) -> None:
            if watch is not None:
                self._watches.add_data(path, watch)

        link = self._usable_link()
        result = link.client.get_async(self._full(path), link.watcher if watch else None)
        data, stat = await self._answer(path, link, result, remember)
        return data or b"", stat_of(stat)

    async def exists(self, path: str, watch: Watch | None = None) -> NodeStat | None:
        def remember(stat: Any) -> None:
            if watch is not None:
                self._watches.add_data(path, watch, exists=stat is not None)

        link = self._usable_link()
        result = link.client.exists_async(self._full(path), link.watcher if watch else None)
        stat = await self._answer(path, link, result, remember)
        return None if stat is None else stat_of(stat)

    async def children(self, path: str, watch: Watch | None = None) -> list[str]:
        def remember(_: Any) -> None:
            if watch is not None:
                self._watches.add_child(path, watch)

        link = self._usable_link()
        result = link.client.get_children_async(self._full(path), link.watcher if watch else None)
        return sorted(await self._answer(path, link, result, remember))

    async def create(
        self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequence: bool = False
    ) -> str:
        check_request_size([CreateOp(path, data, ephemeral, sequence)])
        link = self._usable_link()
        result = link.client.create_async(
            self._full(path), data, ephemeral=ephemeral, sequence=sequence
        )
        return self._short(await self._answer(path, link, result, by_leader=True))

    async def set(self, path: str, data: bytes, version: int = -1) -> NodeStat:
        check_request_size([SetOp(path, data, version)])
        link = self._usable_link()
        result = link.client.set_async(self._full(path), data, version)
        return stat_of(await self._answer(path, link, result, by_leader=True))

    async def delete(self, path: str, version: int = -1) -> None:
        link = self._usable_link()
        result = link.client.delete_async(self._full(path), version)
        await self._answer(path, link, result, by_leader=True)

    async def multi(self, ops: Sequence[CoordOp]) -> list[OpResult]:
        if not ops:
            return []
        check_request_size(ops)
        link = self._usable_link()
        transaction = link.client.transaction()
        for op in ops:
            add_operation(transaction, op, self._full(op.path))
        results = await self._answer(ops[0].path, link, transaction.commit_async(), by_leader=True)
        return [
            self._short(result) if isinstance(result, str) else result
            for result in multi_results(ops, results)
        ]

    async def sync(self, path: str = "/") -> None:
        link = self._usable_link()
        result = link.client.sync_async(self._full(path))
        await self._answer(path, link, result, by_leader=True)

    # ---- private: requests

    def _usable_link(self) -> Link:
        if self._key is None or self._link is None:
            raise SessionExpired("this broker has no ZooKeeper session at the moment")
        if self._suspended:
            raise ConnectionLoss("the connection to ZooKeeper is lost")
        return self._link

    async def _answer(
        self,
        path: str,
        link: Link,
        result: Any,
        on_value: Callable[[Any], None] | None = None,
        by_leader: bool = False,
    ) -> Any:
        """Return the value of kazoo's `result`. `by_leader` is True for requests that ZooKeeper's
        leader handles."""
        sent_at = self._clock.boottime()

        def note_answer(value: Any) -> None:
            if by_leader:
                self._answered_request_at = max(self._answered_request_at, sent_at)
            self._times.add(self._clock.boottime() - sent_at)
            if on_value is not None and link is self._link:
                on_value(value)

        answer = link.answer_of(result, note_answer)
        self._in_flight.add(answer)
        try:
            return await answer
        except KazooException as error:
            raise meaning_of(error, path) from None
        finally:
            self._in_flight.discard(answer)

    def _fail_in_flight(self) -> None:
        for answer in self._in_flight:
            if not answer.done():
                answer.set_exception(ConnectionLoss("the connection to ZooKeeper was lost"))

    def _full(self, path: str) -> str:
        if path == "/":
            return self._connect.chroot or "/"
        return self._connect.chroot + path

    def _short(self, path: str) -> str:
        return path[len(self._connect.chroot) :] or "/"

    # ---- private: session

    def _open_link(self) -> None:
        if self._closed:
            return
        self._link = link = Link(
            self._connect,
            session_timeout_ms=self._session_timeout_ms,
            on_state=lambda state, zxid: self._state_changed(link, state, zxid),
            on_event=lambda kind, path: self._node_changed(link, kind, path),
        )
        link.start()

    def _state_changed(self, link: Link, state: LinkState, zxid: int) -> None:
        if link is not self._link:
            return
        match state:
            case LinkState.CONNECTED if self._key is None:
                self._session_began(link)
            case LinkState.CONNECTED if self._suspended:
                self._connection_returned(link)
            case LinkState.SUSPENDED if self._key is not None and not self._suspended:
                self._suspended = True
                self._seen_zxid = zxid if self._seen_zxid is None else self._seen_zxid
                self._fail_in_flight()
                log.warning("zookeeper connection lost session=0x%x", self._key.id)
                self._announce(SessionEvent.SUSPENDED)
            case LinkState.OVER:
                self._session_ended(link)

    def _session_began(self, link: Link) -> None:
        key = link.session_key()
        if key is None:
            return  # the connection broke at once; the link reports when it is restored
        self._key = key
        self._generation += 1
        self._suspended = False
        self._seen_zxid = self._rewatched = None
        self._answered_request_at = self._clock.boottime()
        self._save_keys([*self._earlier, key])
        log.info("zookeeper session opened session=0x%x generation=%d", key.id, self._generation)
        self._connected.set()
        self._announce(SessionEvent.CONNECTED)
        self._probe_later()
        self._wedge.start()

    def _connection_returned(self, link: Link) -> None:
        self._suspended = False
        watches = self._watches
        groups = watches.existing(), watches.missing(), watches.parents()

        def done(answer: Answer) -> None:
            failed = answer.cancelled() or answer.exception() is not None
            if not failed and answer is self._rewatched and not self._suspended:
                self._seen_zxid = None

        paths = ([self._full(path) for path in group] for group in groups)
        self._rewatched = link.rewatch(self._seen_zxid or 0, *paths)
        self._rewatched.add_done_callback(done)
        log.info("zookeeper connection restored session=0x%x", self.session_id)
        self._probe_later()
        self._announce(SessionEvent.RECONNECTED)

    def _session_ended(self, link: Link) -> None:
        key, self._key = self._key, None
        self._link = None
        self._suspended = False
        self._watches.clear()
        self._fail_in_flight()
        if self._timer is not None:
            self._timer.cancel()
        cleaner = asyncio.ensure_future(link.stop(_CLOSE_TIMEOUT_S))
        self._cleaners.add(cleaner)
        cleaner.add_done_callback(self._cleaners.discard)
        if key is None:
            self._timer = asyncio.get_running_loop().call_later(_RETRY_MAX_S, self._open_link)
            return
        self._earlier.append(key)
        log.warning("zookeeper session expired session=0x%x", key.id)
        self._announce(SessionEvent.EXPIRED)
        self._open_link()

    def _announce(self, event: SessionEvent) -> None:
        for listener in self._listeners:
            listener(event)

    def _node_changed(self, link: Link, kind: str, path: str) -> None:
        if link is not self._link:
            return
        event = WatchEvent(WatchKind[kind], self._short(path))
        for watch in self._watches.take(event):
            # Fire later, so that the caller that set the watch has its answer first.
            asyncio.get_running_loop().call_soon(self._fire, link, watch, event)

    def _fire(self, link: Link, watch: Watch, event: WatchEvent) -> None:
        if link is self._link:
            watch(event)

    def _save_keys(self, keys: list[SessionKey]) -> None:
        try:
            self._store.save(keys)
        except OSError as error:
            log.warning("zookeeper session key not saved reason=%s", error)

    # ---- private: silence

    def _probe_later(self) -> None:
        """Send a sync, and schedule the next call. If ZooKeeper is silent for too long, break the
        connection, because kazoo does not notice a silent server while kazoo sends requests."""
        self._wedge.alive()
        if self._timer is not None:
            self._timer.cancel()
        link, loop = self._link, asyncio.get_running_loop()
        if link is None or self._closed:
            return
        session_s = self._session_timeout_ms / 1000
        if not self._suspended:
            if self.silence() > _SILENCE_OF_SESSION_MAX * session_s and self._in_flight:
                log.warning("zookeeper reconnects silence_s=%.1f", self.silence())
                link.cut()
            task = asyncio.ensure_future(self._probe())
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
        interval_s = session_s / _PROBES_PER_SESSION
        self._timer = loop.call_at(aligned_due(loop.time(), interval_s), self._probe_later)

    def _loop_stopped(self) -> None:
        """Abandon the session, because the event loop is stuck. Called in the thread of
        `WedgeWatch`."""
        link = self._link
        if link is not None and self._key is not None:
            link.abandon()

    async def _probe(self) -> None:
        with suppress(CoordError):
            await self.sync()

    # ---- private: start

    def _granted(self, timeout_ms: int) -> None:
        if timeout_ms != self._session_timeout_ms:
            log.warning(
                "zookeeper session timeout differs granted_and_used_ms=%d requested_ms=%d",
                timeout_ms,
                self._session_timeout_ms,
            )
            self._session_timeout_ms = timeout_ms

    async def _make_chroot(self, timeout_s: float) -> None:
        if not self._connect.chroot:
            return
        outside = KazooCoord(
            self._connect.servers, clock=self._clock, session_timeout_ms=self._session_timeout_ms
        )
        await outside.start(timeout_s)
        try:
            path = ""
            for name in self._connect.chroot[1:].split("/"):
                path = f"{path}/{name}"
                with suppress(NodeExists):
                    await outside.create(path)
        finally:
            await outside.close()

    async def _check_chroot(self) -> None:
        if not self._connect.chroot:
            return
        await self.sync()  # a ZooKeeper follower may not know a new chroot yet
        if await self.exists("/") is None:
            raise StartupError(
                f"ZooKeeper at {self._connect.servers} has no node {self._connect.chroot};"
                " check the chroot at the end of the address (a broker creates a missing chroot"
                " when it starts, other programs do not)"
            )
