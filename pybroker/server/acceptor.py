"""The acceptor: accepts the connections of a listener, and pauses while a limit is reached.

As in Kafka, a connection above a limit waits in the system's queue and is not refused: until
another connection closes (max.connections), until the next second (max.connection.creation.rate),
or until a file descriptor is free. The owner decides about the first two limits. Connections do not
get the last descriptors: a log whose file cannot be opened counts as failed, and clients must not
cause that.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
from collections.abc import Callable
from typing import Final

from pybroker.applog.rate_limit import LogLimit
from pybroker.ports import Clock

log = logging.getLogger(__name__)

ACCEPTED_PER_TURN_MAX: Final = 256
"""After accepting this many connections, the acceptor yields to the event loop."""
RETRY_S: Final = 0.2
"""How long (s) to wait if the system has no descriptor or no memory for a connection."""
LINES_APART_S: Final = 60.0
_WITHOUT_ROOM: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
ANY_DESCRIPTOR: Final = 2_147_483_647
_RATE_UNLIMITED: Final = 2_147_483_647


class CreationRate:
    """The limit of accepted connections per second (max.connection.creation.rate): a bucket that
    holds the tokens of one second. A rate of 0 accepts no connection until the rate is changed."""

    def __init__(self, per_second: int, clock: Clock) -> None:
        self._clock = clock
        self._per_second = per_second
        self._room = float(max(per_second, 1))
        self._filled_at = clock.monotonic()

    def set(self, per_second: int) -> None:
        if per_second != self._per_second:
            self._per_second = per_second
            self._room = min(self._room, max(per_second, 1))

    def take(self) -> None:
        """Count an accepted connection."""
        self._room -= 1

    def delay_s(self) -> float:
        """Return how long (s) until the next connection may be accepted; 0 means now."""
        if self._per_second == _RATE_UNLIMITED:
            return 0.0
        now = self._clock.monotonic()
        filled = self._room + (now - self._filled_at) * self._per_second
        self._filled_at = now
        self._room = min(filled, max(self._per_second, 1))
        if self._per_second == 0:
            return 1.0
        return max(0.0, (1 - self._room) / self._per_second)


class Acceptor:
    """Accepts connections on one listening socket, which it owns. `delay_s` returns how long (s) to
    wait before the next connection: 0 means no wait, None means until `place_free` is called.
    `adopt` receives each connection."""

    def __init__(
        self,
        name: str,
        listening: socket.socket,
        *,
        clock: Clock,
        delay_s: Callable[[], float | None],
        adopt: Callable[[socket.socket], None],
        descriptors_max: Callable[[], int] = lambda: ANY_DESCRIPTOR,
    ) -> None:
        """File descriptors with the number `descriptors_max()` or a higher one are not for
        connections. The system always assigns the lowest free number."""
        self._name = name
        self._listening = listening
        self._delay_s = delay_s
        self._adopt = adopt
        self._descriptors_max = descriptors_max
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._reading = False
        self._needs_place = False
        self._closed = False
        self._without_room = False
        self._lines = LogLimit(clock, lines=1, interval_s=LINES_APART_S)
        self._is_logged = False

    def open(self, backlog: int) -> None:
        self._listening.listen(backlog)
        self._resume()

    def place_free(self) -> None:
        """Continue to accept if the limit of open connections has stopped it."""
        if self._needs_place:
            self._needs_place = False
            self._resume()

    def _resume(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._reading and not self._closed:
            self._reading = True
            self._loop.add_reader(self._listening.fileno(), self._accept)

    def close(self) -> None:
        """Stop accepting; the system refuses the connections in its queue. Idempotent."""
        if not self._closed:
            self._pause(None)
            self._closed = True
            self._listening.close()

    def _pause(self, seconds: float | None) -> None:
        if self._reading:
            self._reading = False
            self._loop.remove_reader(self._listening.fileno())
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if seconds is None else self._loop.call_later(seconds, self._resume)

    def _accept(self) -> None:
        if self._without_room and not self._has_descriptors():
            self._pause(RETRY_S)
            return
        for _ in range(ACCEPTED_PER_TURN_MAX):
            delay_s = self._delay_s()
            if delay_s is None or delay_s > 0:
                self._needs_place = delay_s is None
                self._pause(delay_s)
                return
            try:
                connected, _address = self._listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return  # no connection waits any more
            except OSError as error:
                self._fail(error)
                return
            is_last = connected.fileno() >= self._descriptors_max() - 1
            self._adopt(connected)
            if is_last:
                self._wait_for_room("few file descriptors are left")
                return
            if self._without_room:
                self._without_room = False
                if self._is_logged:
                    log.info("accepting connections again listener=%s", self._name)

    def _has_descriptors(self) -> bool:
        try:
            number = os.dup(self._listening.fileno())
        except OSError:
            return False
        os.close(number)
        return number < self._descriptors_max() - 1

    def _fail(self, error: OSError) -> None:
        """Handle an error of `accept`. If it is about neither descriptors nor memory, it concerns
        only one peer, so it is logged and accepting continues."""
        if error.errno in _WITHOUT_ROOM:
            self._wait_for_room(error.strerror)
        else:
            log.warning("connection not accepted listener=%s error=%s", self._name, error)
            self._pause(RETRY_S)

    def _wait_for_room(self, reason: str | None) -> None:
        """Pause. Log once, when it begins, that connections wait."""
        if not self._without_room:
            self._without_room = True
            self._is_logged = self._lines.allow() is not None
            if self._is_logged:
                log.error(
                    "no connection can be accepted listener=%s reason=%s: new connections wait "
                    "until open ones are closed; raise the limit of open files (ulimit -n) or set "
                    "max.connections",
                    self._name,
                    reason,
                )
        self._pause(RETRY_S)
