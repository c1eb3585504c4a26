"""The acceptor of a listener. As in Kafka, a connection above a limit waits in the system's queue.
Connections cannot use up all file descriptors: some are reserved for logs, because a log whose file
cannot be opened counts as failed."""

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
"""After accepting this many connections without a pause, the acceptor yields to the event loop."""
RETRY_S: Final = 0.2
"""How long (s) the acceptor pauses if accepting a connection fails, for instance because the system
has no descriptor or no memory."""
LINES_APART_S: Final = 60.0
_WITHOUT_ROOM: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
ANY_DESCRIPTOR: Final = 2_147_483_647
_RATE_UNLIMITED: Final = 2_147_483_647


class CreationRate:
    """The limit max.connection.creation.rate, as a token bucket. The bucket holds at most the
    tokens of one second. With the limit 0 no connection is accepted."""

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
        """Return how long (s) the next connection has to wait; 0 means not at all."""
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
    """Accepts connections on a listening socket, which it owns, and passes them to `adopt`.
    `delay_s` returns how long (s) the next connection waits; None: until `place_free` is called."""

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
        """`descriptors_max` returns a number N: every file descriptor of a connection must be less
        than N."""
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
        """If the acceptor waits because `delay_s` returned None, accept connections again. Call
        this when there may be room for another connection."""
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
        """Stop accepting and close the socket. Idempotent."""
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
                self._wait_for_room("the file descriptors for connections are used up")
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
        """Handle an error of `accept`: log it and pause."""
        if error.errno in _WITHOUT_ROOM:
            self._wait_for_room(error.strerror)
        else:
            log.warning(
                "connection not accepted, continuing with the next one listener=%s error=%s",
                self._name,
                error,
            )
            self._pause(RETRY_S)

    def _wait_for_room(self, reason: str | None) -> None:
        """Pause, because the system lacks descriptors or memory. Log `reason` at most once until a
        connection is accepted again."""
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
