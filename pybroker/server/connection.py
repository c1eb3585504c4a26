"""One connection: handles its requests one at a time, and sends the responses in the order of the
requests.

A Produce request counts as handled once its batches are appended: a follower can then copy the
batches of several requests with one fetch.

A frame that is not a valid request closes the connection.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, Protocol, cast

from pybroker.config.broker_config import BrokerConfig
from pybroker.deferred import Deferred
from pybroker.errors import CloseConnection, MalformedInput
from pybroker.ports import Buffer, Clock
from pybroker.server.limits import ServerLimits
from pybroker.server.receive_buffer import ReceiveBuffer
from pybroker.server.refusals import RefusalLog, mistaken_protocol
from pybroker.server.request_memory import SMALL_REQUEST_BYTES, RequestMemory
from pybroker.wire.api import ApiKey

log = logging.getLogger(__name__)

_TOGETHER_BYTES_MAX: Final = 64 * 1024

Answer = list[Buffer] | None
"""The buffers of a whole response frame, with its size prefix; None if the request has no
response."""

_Later = asyncio.Future[Answer] | Deferred[Answer]


@dataclass(frozen=True, slots=True)
class Peer:
    """The address of a peer, and the listener to which it is connected."""

    listener: str
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class FrameHandler(Protocol):
    """Returns the response to a request frame, or an awaitable of the response."""

    def __call__(self, frame: memoryview, peer: Peer, /) -> Answer | Awaitable[Answer]: ...


class Connection(asyncio.BufferedProtocol):
    """The asyncio protocol of one accepted socket. Owns the transport. `on_open` returns None, or
    why the connection is refused.

    `_unanswered` has each unsent response, or the future of the response, in the order of the
    requests. While the buffer still keeps the frame of the last request, `_handling` is the future
    of that request's response. Otherwise `_handling` is None.
    """

    def __init__(
        self,
        *,
        listener: str,
        handle: FrameHandler,
        config: BrokerConfig,
        limits: ServerLimits,
        clock: Clock,
        memory: RequestMemory,
        refusals: RefusalLog,
        on_open: Callable[[Connection], str | None],
        on_close: Callable[[Connection], None],
        on_unsent: Callable[[int], None],
        on_wake: Callable[[Connection], None],
    ) -> None:
        """`on_unsent` receives each change of the number of bytes that wait for a slow peer.
        `on_wake` is called when bytes arrive on an idle connection (`rests` is True)."""
        self._listener = listener
        self._handle = handle
        self._read_ms_max = config.pybroker_request_read_timeout_ms
        self._limits = limits
        self._clock = clock
        self._on_open = on_open
        self._on_close = on_close
        self._on_unsent = on_unsent
        self._on_wake = on_wake
        self.rests = False
        """The latest result of `rest`. While True, the owner checks only the idle time."""
        self._memory = memory
        self._refusals = refusals
        counted = memory.is_limited
        self._buffer = ReceiveBuffer(
            config.socket_request_max_bytes, SMALL_REQUEST_BYTES if counted else None
        )
        self._counts_memory = counted
        self._taken_bytes = 0
        self._waits_for_memory = False
        self._linger: asyncio.TimerHandle | None = None
        self._transport: asyncio.Transport | None = None
        self._unanswered: deque[_Later | list[Buffer]] = deque()
        self._handling: _Later | None = None
        self._writable = True
        self._reading = True
        self._draining = False
        self._ended = False
        self._next_turn: asyncio.Handle | None = None
        self._answers: list[Buffer] = []
        self._answers_bytes = 0
        self._unsent_bytes = 0
        self.peer = Peer(listener, "", 0)
        self.close_reason = "peer"
        """Why the connection ended, for the metrics: one of a few fixed words. "peer": the peer
        closed it."""
        self.last_active = clock.monotonic()
        self._incomplete_since: float | None = None
        self._active_then = 0.0
        self._moved_at = self.last_active
        self._unsent_then = 0
        self._unread_then = 0

    # called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the methods of asyncio.Transport, but are no subclass of it.
        self._transport = cast("asyncio.Transport", transport)
        address = transport.get_extra_info("peername") or ("", 0)
        self.peer = Peer(self._listener, _plain(str(address[0])), int(address[1]))
        self._transport.set_write_buffer_limits(high=self._limits.write_buffer_bytes_max)
        refusal = self._on_open(self)
        if refusal is not None:
            self.close_reason = "limit"
            self._refusals.log(logging.WARNING, "connection refused", self.peer, refusal)
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._drop_unanswered()
        if self._next_turn is not None:
            self._next_turn.cancel()
        if self._linger is not None:
            self._linger.cancel()
        self._give_memory()
        if self._waits_for_memory:
            self._memory.forget(self._memory_there)
        self._count_unsent(0)
        self._on_close(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer.writable()

    def buffer_updated(self, nbytes: int) -> None:
        self._buffer.received(nbytes)
        if self.rests:
            self.rests = False
            self._on_wake(self)
        if self._may_serve():
            self._serve()
        if self._counts_memory:
            self._take_memory()
        if not self._may_serve():
            self._pause_when_full()

    def eof_received(self) -> bool:
        """Return False, which closes the connection, if all received requests are answered.
        Otherwise return True: the connection stays open until all responses are sent, at most for
        `ServerLimits.linger_ms_max`."""
        if self._is_idle():
            return False
        self._ended = True
        self._linger = asyncio.get_running_loop().call_later(
            self._limits.linger_ms_max / 1000, self.abort
        )
        return True

    def pause_writing(self) -> None:
        self._writable = False
        if self._transport is not None:
            self._count_unsent(self._transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        self._writable = True
        self._count_unsent(0)
        self._serve()

    # called by the connection's owner

    def close(self) -> None:
        """Close the connection after all ready responses are sent."""
        self._flush()
        if self._transport is not None:
            self._transport.close()

    def drain(self) -> None:
        """Handle no further request, and close the connection after the responses to the handled
        requests."""
        self.close_reason = "shutdown"
        self._drain()

    def _drain(self) -> None:
        self._draining = True
        if not self._unanswered:
            self.close()

    def abort(self) -> None:
        """Close the connection at once. Unsent responses are lost."""
        if self._transport is not None:
            self._transport.abort()

    def is_too_slow(self, now: float) -> bool:
        """Whether the request that is arriving takes too long at `now` (monotonic s). Must be
        called periodically: the first call that finds an incomplete request starts the measurement.
        """
        unread_bytes = self._buffer.unread_bytes
        waits_for_bytes = self._reading and self._is_idle() and unread_bytes > 0
        if not waits_for_bytes:
            self._incomplete_since = None
            return False
        if self._incomplete_since is None or self.last_active != self._active_then:
            self._active_then = self.last_active
            self._incomplete_since = now
        fair_s = unread_bytes / self._limits.read_bytes_per_second_min
        allowed_s = max(self._read_ms_max / 1000, fair_s)
        return now - self._incomplete_since > allowed_s

    def idle_s(self, now: float) -> float:
        """Return the time (s) for which the connection has been idle at `now` (monotonic s). Idle
        means: all requests are answered, and bytes move slower than `read_bytes_per_second_min`.
        Must be called periodically: each call measures the speed since the last call that found the
        connection busy."""
        unsent_bytes = 0 if self._transport is None else self._transport.get_write_buffer_size()
        unread_bytes = self._buffer.unread_bytes if self._is_idle() else 0
        taken_bytes = self._unsent_then - unsent_bytes
        arrived_bytes = unread_bytes - self._unread_then
        busy_since = max(self._moved_at, self.last_active)
        fair_bytes = (now - busy_since) * self._limits.read_bytes_per_second_min
        is_moving = 0 < taken_bytes >= fair_bytes or 0 < arrived_bytes >= fair_bytes
        begins = arrived_bytes > 0 and self._unread_then == 0
        if is_moving or begins or self._unanswered or self._waits_for_memory:
            self._moved_at = now
        if self._moved_at == now or taken_bytes < 0:
            self._unsent_then = unsent_bytes
        if self._moved_at == now or arrived_bytes < 0:
            self._unread_then = unread_bytes
        return now - max(self._moved_at, self.last_active)

    def give_back_memory(self) -> None:
        """Free unused memory of the receive buffer, unless a request is being handled."""
        if self._handling is None:
            self._buffer.shrink()

    def rest(self) -> bool:
        """Set and return `rests`: True only if all requests are answered, all responses are sent,
        and no further byte has arrived."""
        unsent_bytes = 0 if self._transport is None else self._transport.get_write_buffer_size()
        is_quiet = self._is_idle() and not self._waits_for_memory and not self._ended
        self.rests = is_quiet and not unsent_bytes and not self._buffer.unread_bytes
        return self.rests

    # requests

    def _is_idle(self) -> bool:
        """Return whether all received requests are answered."""
        return not self._unanswered and self._writable and self._next_turn is None

    def _may_serve(self) -> bool:
        """Return whether the next frame can be handled now. Assumes that the frame is complete."""
        return self._writable and self._next_turn is None and self._is_next_due()

    def _is_next_due(self) -> bool:
        """Return whether the next request does not have to wait for the earlier requests."""
        unanswered = self._unanswered
        return not unanswered or (
            self._handling is None
            and len(unanswered) < self._limits.unanswered_max
            and self._buffer.api_key == ApiKey.PRODUCE
        )

    def _serve(self) -> None:
        if self._may_serve():
            self._handle_frames()
        self._flush()
        if self._ended and self._is_idle():
            self.close()
        if not self._reading:
            self._resume_when_roomy()

    def _handle_frames(self) -> None:
        """Handle frames until the next request has to wait, no whole frame is left, or other
        connections have to be served."""
        served = 0
        while (
            self._transport is not None
            and self._writable
            and not self._draining
            and self._is_next_due()
        ):
            try:
                frame = self._buffer.next_frame()
                if frame is None:
                    break
                if served == self._limits.requests_per_turn_max:
                    self._next_turn = asyncio.get_running_loop().call_soon(self._take_turn)
                    return
                if not served:
                    self.last_active = self._clock.monotonic()
                served += 1
                answer = self._handle(frame, self.peer)
            except (MalformedInput, CloseConnection) as error:
                self._refuse(error)
                return
            except Exception as error:
                self._fail(error)
                return
            self._take(answer)

    def _take(self, answer: Answer | Awaitable[Answer]) -> None:
        """Write the handler's response when this response and all earlier ones are ready."""
        if answer is None or isinstance(answer, list):
            self._release_frame()
            if answer is not None and self._unanswered:
                self._unanswered.append(answer)
            else:
                self._write(answer)
            return
        later = answer if isinstance(answer, Deferred) else asyncio.ensure_future(answer)
        later.add_done_callback(self._answered)
        self._unanswered.append(later)
        if isinstance(later, Deferred) and later.is_applied:
            self._release_frame()
        else:
            self._handling = later

    def _take_turn(self) -> None:
        self._next_turn = None
        self._serve()

    def _release_frame(self) -> None:
        self._buffer.release()
        if self._taken_bytes:
            self._give_memory()

    def _answered(self, request: _Later) -> None:
        if request is self._handling:
            self._handling = None
            self._release_frame()
        error = None if request.cancelled() else request.exception()
        if error is not None and not isinstance(error, MalformedInput | CloseConnection):
            self._fail(error)
            return
        if self._transport is None or request not in self._unanswered:
            return  # the connection has ended
        if request.cancelled():
            # Something else cancelled the request of an open connection: without a close the peer
            # would wait forever.
            self._draining = True
            self.abort()
            return
        self._write_ready()
        if self._draining:
            self._flush()
            self._drain()
        else:
            self.last_active = self._clock.monotonic()
            self._serve()

    def _write_ready(self) -> None:
        """Pass the responses to `_write`, in the order of the requests. Stop at the first response
        that is not ready."""
        unanswered = self._unanswered
        while unanswered:
            first = unanswered[0]
            answer: Answer
            if isinstance(first, list):
                answer = first
            # A future is done before it calls `_answered`, which frees the frame.
            elif first is self._handling or not first.done():
                return
            elif (error := first.exception()) is not None:
                self._drop_unanswered()
                self._refuse(error)
                return
            else:
                answer = first.result()
            unanswered.popleft()
            self._write(answer)

    def _drop_unanswered(self) -> None:
        """Stop the waits of the unanswered requests. Their responses are not sent."""
        loop = asyncio.get_running_loop()
        for request in self._unanswered:
            if not isinstance(request, list):
                # The task is cancelled only after it has begun. Otherwise the awaitable of the
                # handler would never be awaited.
                loop.call_soon(request.cancel)
        self._unanswered.clear()

    def _write(self, answer: Answer) -> None:
        """Queue a response for `_flush`. Small responses are sent together."""
        if answer is None:
            return
        self._answers += answer
        self._answers_bytes += len(answer[0]) if len(answer) == 1 else sum(map(len, answer))
        if self._answers_bytes > _TOGETHER_BYTES_MAX:
            self._flush()

    def _flush(self) -> None:
        answers = self._answers
        if not answers:
            return
        self._answers, self._answers_bytes = [], 0
        if self._transport is None:
            return
        if len(answers) == 1:
            self._transport.write(answers[0])
        else:
            self._transport.writelines(answers)

    def _count_unsent(self, unsent_bytes: int) -> None:
        """Report the number of bytes that wait for a slow peer; 0 if the peer is not slow."""
        self._on_unsent(unsent_bytes - self._unsent_bytes)
        self._unsent_bytes = unsent_bytes

    def _refuse(self, error: BaseException) -> None:
        self.close_reason = "malformed" if isinstance(error, MalformedInput) else "refused"
        mistaken = mistaken_protocol(self._buffer.first_bytes)
        level = logging.INFO if mistaken is None else logging.WARNING
        reason = f"{error} listener={self._listener}" if mistaken is None else mistaken
        self._refusals.log(level, "connection closed", self.peer, reason)
        self._drain()

    def _fail(self, error: BaseException) -> None:
        """Log an unexpected exception of a handler, and close the connection without a response."""
        self.close_reason = "fault"
        log.error("request failed, closing the connection peer=%s", self.peer, exc_info=error)
        self._draining = True
        self._flush()
        self.abort()

    # memory for large requests

    def _take_memory(self) -> None:
        """If the next request is large, take memory for it. If the memory limit is reached, receive
        no bytes until there is memory again."""
        needed = self._buffer.frame_bytes
        if needed <= SMALL_REQUEST_BYTES or self._taken_bytes or self._waits_for_memory:
            return
        if self._draining:
            return
        if self._memory.take(needed, self._memory_there):
            self._taken_bytes = needed
        else:
            self._waits_for_memory = True
            self._pause()

    def _memory_there(self) -> None:
        self._waits_for_memory = False
        self._take_memory()
        self._resume_when_roomy()

    def _give_memory(self) -> None:
        taken, self._taken_bytes = self._taken_bytes, 0
        if taken:
            self._memory.give(taken)

    # the receiving side of TCP

    def _pause_when_full(self) -> None:
        if not self._may_serve() and self._buffer.is_full:
            self._pause()

    def _pause(self) -> None:
        if self._reading:
            self._reading = False
            if self._transport is not None:
                self._transport.pause_reading()

    def _resume_when_roomy(self) -> None:
        if self._reading or self._draining or self._ended or self._waits_for_memory:
            return
        if self._may_serve():
            self._reading = True
            if self._transport is not None:
                self._transport.resume_reading()


def _plain(host: str) -> str:
    """Return the peer's address without the IPv6 prefix of an IPv4 address (::ffff:)."""
    mapped = host.removeprefix("::ffff:")
    return mapped if "." in mapped else host
