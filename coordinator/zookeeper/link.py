"""One session with ZooKeeper by one kazoo client. Only this module runs code in kazoo's thread.
Every callback of a link runs on the event loop.

A link differs from kazoo:

- A link ends with its session. kazoo would send the waiting requests in a new session.
- A link passes answers and watch events to the event loop in the order of arrival, even before
  `answer_of` is called. Otherwise a watch event could overtake the answer to the read that set the
  watch, and would be lost.
- `rewatch` sets the watches again after a reconnect.
- A link reads many answers at once, and wakes the event loop once for all of them.
- A connection attempt takes at most a third of the session timeout, divided by the number of
  servers, so that an unreachable server does not use up the session timeout.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Any, Final, NamedTuple

from kazoo.client import KazooClient  # type: ignore[import-untyped]
from kazoo.handlers.threading import SequentialThreadingHandler  # type: ignore[import-untyped]
from kazoo.protocol.states import KazooState  # type: ignore[import-untyped]
from kazoo.retry import KazooRetry  # type: ignore[import-untyped]

from pybroker.coordinator.zookeeper.connect_string import ConnectString
from pybroker.coordinator.zookeeper.handshake import SessionKey
from pybroker.coordinator.zookeeper.limits import REQUEST_BYTES_MAX
from pybroker.coordinator.zookeeper.read_ahead import ReadAheadSocket, wait

log = logging.getLogger(__name__)
_RECONNECT_DELAY_S: Final = 0.05
_RECONNECT_DELAY_MAX_S: Final = 1.0
_CONNECT_SHARE_OF_SESSION: Final = 3
_SET_WATCHES_OPCODE: Final = 101


class LinkState(enum.Enum):
    CONNECTED = "connected"
    SUSPENDED = "suspended"
    OVER = "over"
    """The session has ended, or the link was stopped. This state is final."""


StateListener = Callable[[LinkState, int], None]
"""A function that gets the new state and the last zxid that the client has seen."""
EventListener = Callable[[str, str], None]
"""A function that gets a watch event: kazoo's name of its kind, and the path."""
Answer = asyncio.Future[Any]


class _Asked(NamedTuple):
    """A kazoo result that a caller waits for."""

    result: Any
    answer: Answer
    on_value: Callable[[Any], None] | None


class SetWatches:
    """The request that sets the watches again after a reconnect; kazoo lacks this request. The
    server fires each watch whose node has changed since the last zxid that the client has seen."""

    type = _SET_WATCHES_OPCODE

    def __init__(
        self, zxid: int, data: Collection[str], missing: Collection[str], child: Collection[str]
    ) -> None:
        self._zxid = zxid
        self._lists = (data, missing, child)

    def serialize(self) -> bytes:
        """Encode the last zxid, then three lists of paths. Each list begins with the number of its
        paths. Each path begins with the number of its bytes."""
        parts = [struct.pack(">q", self._zxid)]
        for paths in self._lists:
            parts.append(struct.pack(">i", len(paths)))
            for path in paths:
                encoded = path.encode()
                parts.append(struct.pack(">i", len(encoded)) + encoded)
        return b"".join(parts)

    @staticmethod
    def deserialize(buffer: bytes, offset: int) -> None:
        """Decode the answer, which has no body."""
        del buffer, offset


def _set_watches(
    zxid: int, data: Collection[str], missing: Collection[str], child: Collection[str]
) -> list[SetWatches]:
    """Return requests that set all these watches. Each has at most REQUEST_BYTES_MAX bytes, because
    the server closes the connection upon a larger request."""
    requests = []
    lists: tuple[list[str], ...] = ([], [], [])
    size = 0
    for kind, paths in enumerate((data, missing, child)):
        for path in paths:
            size += 4 + len(path.encode())
            if size > REQUEST_BYTES_MAX:
                requests.append(SetWatches(zxid, *lists))
                lists, size = ([], [], []), 4 + len(path.encode())
            lists[kind].append(path)
    return [*requests, SetWatches(zxid, *lists)]


class _DirectHandler(SequentialThreadingHandler):  # type: ignore[misc]
    """Runs kazoo's callbacks in kazoo's connection thread. `running` must stay False: only then
    does the thread that sets a result also call the callbacks of this result."""

    def __init__(
        self,
        connect_timeout_s: float,
        on_end: Callable[[], None],
        on_answer: Callable[[Any], None],
        on_pause: Callable[[], None],
    ) -> None:
        super().__init__()
        self._connect_timeout_s = connect_timeout_s
        self._on_end = on_end
        self._on_answer = on_answer
        self._on_pause = on_pause
        self._lock = threading.Lock()
        self._is_over = False
        self._socket: socket.socket | None = None
        self._ahead: ReadAheadSocket | None = None

    def start(self) -> None:
        """Do nothing."""

    def stop(self) -> None:
        """Do nothing."""

    def dispatch_callback(self, callback: Any) -> None:
        callback.func(*callback.args)

    def select(self, readers: Any, writers: Any, _: Any, timeout_s: float | None = None) -> Any:
        """Wait for sockets as `select.select` does; kazoo calls this before each read and write."""
        if readers and not self.has_answers:
            self._on_pause()
        return *wait(readers, writers, timeout_s), []

    @property
    def has_answers(self) -> bool:
        """Whether there are bytes that were read from the server and that kazoo has not handled
        yet. When kazoo has handled all of them, `on_pause` is called."""
        return self._ahead is not None and self._ahead.pending() > 0

    def async_result(self) -> Any:
        result = super().async_result()
        result.rawlink(self._on_answer)
        return result

    def create_connection(self, *args: Any, **kwargs: Any) -> Any:
        kwargs["timeout"] = self._connect_timeout_s
        with self._lock:
            if self._is_over:
                raise SystemExit  # ends only kazoo's connection thread
        connection = super().create_connection(*args, **kwargs)
        with self._lock:
            self._socket = connection
        self._ahead = ReadAheadSocket(connection, self._on_pause)
        return self._ahead

    def spawn(self, func: Callable[..., object], *args: Any, **kwargs: Any) -> threading.Thread:
        def run() -> None:
            try:
                func(*args, **kwargs)
            except (InterruptedError, SystemExit):
                pass  # kazoo raises the first to end a pause, a link the second to end the thread
            except Exception as error:
                log.warning("zookeeper thread ended error=%r", error)
            finally:
                self._on_end()

        thread = threading.Thread(target=run, name="zookeeper", daemon=True)
        thread.start()
        return thread

    def refuse_connections(self) -> None:
        """Refuse further connection attempts of kazoo."""
        with self._lock:
            self._is_over = True

    def cut(self) -> None:
        """Break the current connection."""
        with self._lock, suppress(OSError):
            if self._socket is not None:
                self._socket.shutdown(socket.SHUT_RDWR)


class Link:
    """One session with ZooKeeper. `start` connects in the background. `on_state` gets each new
    state."""

    def __init__(
        self,
        connect: ConnectString,
        *,
        session_timeout_ms: int,
        on_state: StateListener,
        on_event: EventListener,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_state = on_state
        self._on_event = on_event
        share = _CONNECT_SHARE_OF_SESSION * len(connect.hosts)
        self._handler = _DirectHandler(
            session_timeout_ms / 1000 / share, self._thread_ended, self._answered, self._paused
        )
        self._asked: dict[int, _Asked] = {}
        """id() of kazoo's result -> the waiting caller. The entry keeps a reference to the result,
        so that its id() is not reused."""
        self._messages: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        """The calls that the event loop has to make, in order."""
        self._wakes = False
        """Whether the event loop will run `_take_messages`."""
        self._ended = asyncio.Event()
        self._is_over = False
        self._started = False
        self._client = KazooClient(
            hosts=connect.servers,
            timeout=session_timeout_ms / 1000,
            handler=self._handler,
            connection_retry=KazooRetry(
                max_tries=-1,
                delay=_RECONNECT_DELAY_S,
                max_delay=_RECONNECT_DELAY_MAX_S,
            ),
        )
        self._client.add_listener(self._state_changed)

    @property
    def client(self) -> Any:
        """The kazoo client, for its `*_async` methods. Pass their results to `answer_of`."""
        return self._client

    def start(self) -> None:
        self._started = True
        self._client.start_async()

    def session_key(self) -> SessionKey | None:
        """Return the key of the session; None without a connection."""
        found = self._client.client_id
        return None if found is None else SessionKey(found[0], found[1])

    def answer_of(self, result: Any, on_value: Callable[[Any], None] | None = None) -> Answer:
        """Return a future of kazoo's value or exception. Call this right after the request, without
        an await. `on_value` gets the value before any later message is handled."""
        answer: Answer = self._loop.create_future()
        self._asked[id(result)] = _Asked(result, answer, on_value)
        return answer

    def watcher(self, event: Any) -> None:
        """Pass a watch event to the event loop. Give kazoo this method as the watch of every
        read."""
        if event.type != "NONE":  # kazoo calls all watches with NONE when the connection drops
            self._soon(self._event, event.type, event.path)

    def rewatch(
        self, zxid: int, data: Collection[str], missing: Collection[str], child: Collection[str]
    ) -> Answer:
        """Set the watches again after a reconnect. A watch that would have fired since `zxid` fires
        now. `data`: nodes that existed when their data watch was set. `missing`: nodes that did not
        exist when their data watch was set. `child`: nodes with a child watch."""
        for path in (*data, *missing):
            self._client._data_watchers[path].add(self.watcher)
        for path in child:
            self._client._child_watchers[path].add(self.watcher)
        answers = []
        for request in _set_watches(zxid, data, missing, child):
            result = self._handler.async_result()
            self._client._call(request, result)
            answers.append(self.answer_of(result))
        return asyncio.gather(*answers)

    def cut(self) -> None:
        """Break the connection; kazoo connects again by itself."""
        self._handler.cut()

    def abandon(self) -> None:
        """Break the connection, and do not connect again. The server ends the session after the
        session timeout. May be called from any thread."""
        self._handler.refuse_connections()
        self._handler.cut()

    async def stop(self, timeout_s: float) -> bool:
        """Close the session if the server can be reached, and free everything, within `timeout_s`.
        Return whether the server closed the session. Idempotent."""
        self._handler.refuse_connections()
        if not self._started:
            return True
        stopper = threading.Thread(target=self._stop_client, name="zookeeper-stop", daemon=True)
        stopper.start()
        try:
            async with asyncio.timeout(timeout_s):
                await self._ended.wait()
        except TimeoutError:
            self._handler.cut()
            return False
        return True

    # ---- in kazoo's thread

    def _state_changed(self, state: str) -> None:
        if state == KazooState.LOST:
            self._handler.refuse_connections()
        meaning = {
            KazooState.CONNECTED: LinkState.CONNECTED,
            KazooState.SUSPENDED: LinkState.SUSPENDED,
            KazooState.LOST: LinkState.OVER,
        }[state]
        self._soon(self._report, meaning, self._client.last_zxid)

    def _thread_ended(self) -> None:
        self._soon(self._end)

    def _answered(self, result: Any) -> None:
        self._soon(self._settle, result)

    def _soon(self, action: Callable[..., None], *args: Any) -> None:
        self._messages.append((action, args))
        if not self._wakes and not self._handler.has_answers:
            self._wake()

    def _paused(self) -> None:
        if self._messages and not self._wakes:
            self._wake()

    def _wake(self) -> None:
        self._wakes = True
        with suppress(RuntimeError):  # the loop is closed, so no caller waits any more
            self._loop.call_soon_threadsafe(self._take_messages)

    def _stop_client(self) -> None:
        with suppress(Exception):  # kazoo may raise anything when it is stopped while it connects
            self._client.stop()
        with suppress(Exception):
            self._client.close()

    # ---- on the event loop

    def _take_messages(self) -> None:
        # The flag comes first: a message that arrives now wakes the loop again.
        self._wakes = False
        try:
            for _ in range(len(self._messages)):
                action, args = self._messages.popleft()
                action(*args)
        except BaseException:
            self._wake()  # for the messages after this one
            raise

    def _event(self, kind: str, path: str) -> None:
        if not self._is_over:
            self._on_event(kind, path)

    def _settle(self, result: Any) -> None:
        asked = self._asked.pop(id(result), None)
        if asked is None or asked.answer.done():
            return
        if result.exception is not None:
            asked.answer.set_exception(result.exception)
            return
        if asked.on_value is not None:
            asked.on_value(result.value)
        asked.answer.set_result(result.value)

    def _report(self, state: LinkState, zxid: int) -> None:
        if not self._is_over:
            self._is_over = state is LinkState.OVER
            self._on_state(state, zxid)

    def _end(self) -> None:
        self._ended.set()
        self._report(LinkState.OVER, 0)
