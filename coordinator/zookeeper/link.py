"""One session with ZooKeeper, carried by one kazoo client. kazoo's thread ends in this module.

What kazoo does and we cannot use is undone here:

- After an expiry kazoo goes on with a new session, in which requests meant for the old one would be
  executed. A link refuses to connect again once its session is over: whoever wants another session
  makes another link.
- kazoo hands answers and watches to two threads, so that an answer may overtake the watch that it
  must follow. Here both go from kazoo's connection thread straight to the event loop, in order.
  An answer does so even if it comes before anybody has asked the result for it: a watch that fires
  right after the read that set it would overtake that read otherwise, and be lost.
- kazoo forgets all watches when the connection drops. `rewatch` sets them again as Java's client
  does, telling the server up to where we have seen everything.
- An unreachable server may block a connection attempt for a whole session timeout; here each has a
  third of it, shared by the servers.

Every callback of a link runs on the event loop.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import socket
import struct
import threading
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

log = logging.getLogger(__name__)
_RECONNECT_DELAY_S: Final = 0.05
_RECONNECT_DELAY_MAX_S: Final = 1.0
_CONNECT_SHARE_OF_SESSION: Final = 3
_SET_WATCHES_OPCODE: Final = 101


class LinkState(enum.Enum):
    CONNECTED = "connected"
    SUSPENDED = "suspended"
    OVER = "over"
    """The session is gone, or the link was stopped; no other state follows."""


StateListener = Callable[[LinkState, int], None]
"""Called with the new state and the zxid up to which we have seen everything."""
EventListener = Callable[[str, str], None]
"""Called with kazoo's name of the kind of a watch event and the path."""
Answer = asyncio.Future[Any]


class _Asked(NamedTuple):
    """A result that somebody waits for."""

    result: Any
    answer: Answer
    on_value: Callable[[Any], None] | None


class SetWatches:
    """The request by which a client tells the server, after a reconnect, which watches it has and
    what it saw last; the server fires at once those that it missed. kazoo lacks it."""

    type = _SET_WATCHES_OPCODE

    def __init__(
        self, zxid: int, data: Collection[str], missing: Collection[str], child: Collection[str]
    ) -> None:
        self._zxid = zxid
        self._lists = (data, missing, child)

    def serialize(self) -> bytes:
        """The last zxid, then three counted lists of counted paths."""
        parts = [struct.pack(">q", self._zxid)]
        for paths in self._lists:
            parts.append(struct.pack(">i", len(paths)))
            for path in paths:
                encoded = path.encode()
                parts.append(struct.pack(">i", len(encoded)) + encoded)
        return b"".join(parts)

    @staticmethod
    def deserialize(buffer: bytes, offset: int) -> None:
        """The answer has no body."""
        del buffer, offset


def _set_watches(
    zxid: int, data: Collection[str], missing: Collection[str], child: Collection[str]
) -> list[SetWatches]:
    """As many requests as it takes: a server that gets one above its limit drops the connection,
    and would do so after every reconnect."""
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
    """Runs kazoo's callbacks in kazoo's connection thread, without threads of its own.

    As `running` stays False, kazoo calls the callbacks of a result where the result is set.
    """

    def __init__(
        self,
        connect_timeout_s: float,
        on_end: Callable[[], None],
        on_answer: Callable[[Any], None],
    ) -> None:
        super().__init__()
        self._connect_timeout_s = connect_timeout_s
        self._on_end = on_end
        self._on_answer = on_answer
        self._lock = threading.Lock()
        self._is_over = False
        self._socket: socket.socket | None = None

    def start(self) -> None:
        """No worker threads."""

    def stop(self) -> None:
        """Nothing was started."""

    def dispatch_callback(self, callback: Any) -> None:
        callback.func(*callback.args)

    def async_result(self) -> Any:
        result = super().async_result()
        result.rawlink(self._on_answer)
        return result

    def create_connection(self, *args: Any, **kwargs: Any) -> Any:
        kwargs["timeout"] = self._connect_timeout_s
        with self._lock:
            if self._is_over:
                raise SystemExit  # ends kazoo's connection thread and nothing else
        connection = super().create_connection(*args, **kwargs)
        with self._lock:
            self._socket = connection
        return connection

    def spawn(self, func: Callable[..., object], *args: Any, **kwargs: Any) -> threading.Thread:
        def run() -> None:
            try:
                func(*args, **kwargs)
            except (InterruptedError, SystemExit):
                pass  # kazoo's way to end a wait between two attempts, and ours to end them all
            except Exception as error:
                log.warning("zookeeper connection thread ended: %r", error)
            finally:
                self._on_end()

        thread = threading.Thread(target=run, name="zookeeper", daemon=True)
        thread.start()
        return thread

    def make_over(self) -> None:
        """No further connection is made."""
        with self._lock:
            self._is_over = True

    def cut(self) -> None:
        """Break the current connection. The thread notices at once."""
        with self._lock, suppress(OSError):
            if self._socket is not None:
                self._socket.shutdown(socket.SHUT_RDWR)


class Link:
    """`start` connects in the background; `on_state` tells what comes of it."""

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
            session_timeout_ms / 1000 / share, self._thread_ended, self._answered
        )
        self._asked: dict[int, _Asked] = {}
        """By the identity of kazoo's result, which lives as long as its entry."""
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
        """The kazoo client, for its `*_async` methods; what they give goes to `answer_of`."""
        return self._client

    def start(self) -> None:
        self._started = True
        self._client.start_async()

    def session_key(self) -> SessionKey | None:
        """None while there is no connection."""
        found = self._client.client_id
        return None if found is None else SessionKey(found[0], found[1])

    def answer_of(self, result: Any, on_value: Callable[[Any], None] | None = None) -> Answer:
        """The future of a kazoo result: its value, or kazoo's exception. `on_value` is called with
        the value before anything that the server sent later is heard. Has to be called before the
        loop gets its turn again."""
        answer: Answer = self._loop.create_future()
        self._asked[id(result)] = _Asked(result, answer, on_value)
        return answer

    def watcher(self, event: Any) -> None:
        """Give this to kazoo as the watch of any read."""
        if event.type != "NONE":  # so it calls all watches when the connection drops
            self._soon(self._event, event.type, event.path)

    def rewatch(
        self, zxid: int, data: Collection[str], missing: Collection[str], child: Collection[str]
    ) -> Answer:
        """Set watches again after a reconnect: on nodes that exist (`data`), that were missing, and
        on children. Those that would have fired since `zxid` fire now."""
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

    def give_up(self) -> None:
        """Break the connection for good, from any thread: the server ends the session by itself."""
        self._handler.make_over()
        self._handler.cut()

    async def stop(self, timeout_s: float) -> bool:
        """Close the session if the server can be reached, and free everything. Takes `timeout_s` at
        most; gives whether it was done in order. Idempotent."""
        self._handler.make_over()
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
            self._handler.make_over()
        meaning = {
            KazooState.CONNECTED: LinkState.CONNECTED,
            KazooState.SUSPENDED: LinkState.SUSPENDED,
            KazooState.LOST: LinkState.OVER,
        }[state]
        self._soon(self._tell, meaning, self._client.last_zxid)

    def _thread_ended(self) -> None:
        self._soon(self._end)

    def _answered(self, result: Any) -> None:
        self._soon(self._settle, result)

    def _soon(self, action: Callable[..., None], *args: Any) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody is left to be told
            self._loop.call_soon_threadsafe(action, *args)

    def _stop_client(self) -> None:
        with suppress(Exception):  # kazoo raises what it likes when it is stopped in mid-air
            self._client.stop()
        with suppress(Exception):
            self._client.close()

    # ---- on the event loop

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

    def _tell(self, state: LinkState, zxid: int) -> None:
        if not self._is_over:
            self._is_over = state is LinkState.OVER
            self._on_state(state, zxid)

    def _end(self) -> None:
        self._ended.set()
        self._tell(LinkState.OVER, 0)
