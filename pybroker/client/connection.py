"""A TCP connection to a broker, without retries. At the first invalid or late response, the
connection ends for good. The connection has no task: the event loop calls it when bytes arrive."""

from __future__ import annotations

import asyncio
import functools
import logging
import socket
import struct
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, TypeVar

from pybroker.client.addresses import format_address
from pybroker.client.errors import (
    AnswerTooLarge,
    ClientError,
    ConnectFailed,
    ConnectionLost,
    NotConnected,
    RequestTimedOut,
    UnsupportedByBroker,
)
from pybroker.client.response_frames import FRAME_LENGTH, ResponseFrames, ResponseReceiver
from pybroker.deferred import Deferred
from pybroker.errors import ErrorCode, MalformedInput
from pybroker.wire.api import APIS, Api, ApiKey
from pybroker.wire.codec import decode_response, encode_request
from pybroker.wire.headers import RequestHeader, encode_request_header, parse_response_header
from pybroker.wire.messages.cluster import ApiVersionsRequest, ApiVersionsResponse
from pybroker.wire.schema import Message

log = logging.getLogger(__name__)

AnswerT = TypeVar("AnswerT", bound=Message)

SOFTWARE_NAME: Final = "pybroker"
SOFTWARE_VERSION: Final = "1"
API_VERSIONS_FIRST: Final = 3
"""The version of the first ApiVersions request. Brokers since Kafka 2.4 support it; older brokers
return error 35 and their versions."""
CORRELATION_IDS: Final = 2**31
FLUSH_LIMIT_S: Final = 2.0
_TIMER_EARLY_S: Final = 0.001
"""How much too early an event loop may call a timer."""
_NO_LINGER: Final = struct.pack("ii", 1, 0)


@dataclass(slots=True, eq=False)
class _Pending:
    """A request that waits for its response."""

    api: Api
    version: int
    correlation_id: int
    timeout_s: float
    deadline: float
    """The time (s) of the event loop at which the response is too late."""
    answer: Deferred[memoryview]


class _TooLarge(Exception):
    """The next response has more bytes than the client accepts."""

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.length = length


class Connection:
    """A connection to a broker, created by `Connection.open`. Requests are sent in the order of the
    calls."""

    def __init__(
        self,
        address: tuple[str, int],
        receiver: ResponseReceiver,
        writer: asyncio.StreamWriter,
        *,
        client_id: str,
        response_max_bytes: int,
    ) -> None:
        self.address = address
        self._writer = writer
        self._client_id = client_id
        self._response_max_bytes = response_max_bytes
        self._versions: Mapping[int, tuple[int, int]] = {}
        self._pending: deque[_Pending] = deque()
        self._next_id = 0
        self._failure: ClientError | None = None
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._frames = ResponseFrames(self._check_length, self._deliver)
        receiver.on_data, receiver.on_end = self._received, self._ended
        receiver.room, receiver.on_filled = self._room, self._filled

    @classmethod
    async def open(
        cls,
        host: str,
        port: int,
        *,
        client_id: str,
        timeout_s: float,
        response_max_bytes: int = 100_000_000,
        receive_buffer_bytes: int | None = None,
    ) -> Connection:
        """Connect to the broker, exchange API versions, and return the connection. `timeout_s`
        limits each of the two steps. `receive_buffer_bytes` is SO_RCVBUF; None: the system's
        default. Raises ConnectFailed."""
        name = format_address(host, port)
        try:
            async with asyncio.timeout(timeout_s):
                loop = asyncio.get_running_loop()
                transport, receiver = await loop.create_connection(ResponseReceiver, host, port)
                writer = asyncio.StreamWriter(transport, receiver, receiver.unused_reader, loop)
                if receive_buffer_bytes is not None and receive_buffer_bytes > 0:
                    writer.get_extra_info("socket").setsockopt(
                        socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes
                    )
        except TimeoutError:
            raise ConnectFailed(name, f"no TCP connection within {timeout_s:g} s") from None
        except OSError as error:
            raise ConnectFailed(name, _reason(error, host)) from error
        connection = cls(
            (host, port),
            receiver,
            writer,
            client_id=client_id,
            response_max_bytes=response_max_bytes,
        )
        try:
            await connection._agree_on_versions(timeout_s)
        except RequestTimedOut:
            await connection.close()
            raise ConnectFailed(
                name, f"connected, but no Kafka broker responded within {timeout_s:g} s"
            ) from None
        except ClientError as error:
            await connection.close()
            raise ConnectFailed(name, f"connected, but not to a Kafka broker: {error}") from error
        except BaseException:
            await connection.close()
            raise
        return connection

    @property
    def usable(self) -> bool:
        return self._failure is None and not self._writer.is_closing()

    @property
    def in_flight(self) -> int:
        return len(self._pending)

    @property
    def versions(self) -> Mapping[int, tuple[int, int]]:
        """API key -> (lowest, highest version) that the broker supports."""
        return self._versions

    def version_of(self, key: ApiKey) -> int:
        """Return the highest version of the API that client and broker support. Raises
        UnsupportedByBroker."""
        api = APIS[key]
        low, high = self._versions.get(key, (0, -1))
        version = min(api.max_version, high)
        if version < max(api.min_version, low):
            offer = f"versions {low} to {high}" if high >= 0 else "no version"
            raise UnsupportedByBroker(
                f"the broker {format_address(*self.address)} supports {offer} of "
                f"{key.name}, but this client needs a version from {api.min_version} to "
                f"{api.max_version}"
            )
        return version

    def send(
        self,
        key: ApiKey,
        request: Message,
        answer: type[AnswerT],
        *,
        timeout_s: float,
        version: int | None = None,
    ) -> Deferred[AnswerT]:
        """Write a request in `version` (None: the highest that both sides support), and return a
        Deferred of the response.

        Raises NotConnected, UnsupportedByBroker. The Deferred raises ConnectionLost, or
        RequestTimedOut after `timeout_s`.
        """
        chosen = self.version_of(key) if version is None else version
        pending = self._write(APIS[key], chosen, request, timeout_s)
        return pending.answer.then(functools.partial(self._decode, pending, answer))

    async def tell(self, key: ApiKey, request: Message, *, timeout_s: float) -> None:
        """Write a request that has no response (Produce with acks=0). Wait until the operating
        system has accepted all bytes. Raises NotConnected, ConnectionLost, RequestTimedOut."""
        self._writer.transport.set_write_buffer_limits(high=0)  # `drain` waits for all bytes
        pending = self._write(APIS[key], self.version_of(key), request, timeout_s)
        self._pending.remove(pending)
        try:
            async with asyncio.timeout(timeout_s):
                await self._writer.drain()
        except TimeoutError:
            text = f"the socket did not accept the whole {key.name} request within {timeout_s:g} s"
            self._fail(ConnectionLost(f"the client closed the connection: {text}"))
            raise RequestTimedOut(f"{format_address(*self.address)}: {text}") from None
        except OSError as error:
            self._fail(ConnectionLost(f"the connection broke: {error.strerror or error}"))
        if self._failure is not None:
            raise ConnectionLost(f"{format_address(*self.address)}: {self._failure}")

    async def close(self, *, flush: bool = True) -> None:
        """Close the connection. With `flush`, first write the buffered bytes. Requests in flight
        fail with ConnectionLost. Idempotent."""
        self._fail(ConnectionLost("the client closed the connection"), abort=False)
        if flush:
            self._writer.close()
        else:
            self._abort()
        try:
            async with asyncio.timeout(FLUSH_LIMIT_S):
                await self._writer.wait_closed()
        except OSError:  # a TimeoutError is an OSError
            pass
        finally:  # also if the caller is cancelled while the broker does not read
            self._writer.transport.abort()

    def _write(self, api: Api, version: int, request: Message, timeout_s: float) -> _Pending:
        if self._writer.is_closing():  # the transport is closing before it calls `_ended`
            self._fail(ConnectionLost("the connection broke"))
        if self._failure is not None:
            raise NotConnected(f"{format_address(*self.address)}: {self._failure}")
        correlation_id = self._next_id
        self._next_id = (correlation_id + 1) % CORRELATION_IDS
        header = encode_request_header(
            RequestHeader(api.key, version, correlation_id, self._client_id),
            api.request_header_version(version),
        )
        body = encode_request(api, version, request)
        self._writer.write(FRAME_LENGTH.pack(len(header) + len(body)) + header + body)
        deadline = self._loop.time() + timeout_s
        pending = _Pending(
            api, version, correlation_id, timeout_s, deadline, Deferred(_drop_response)
        )
        self._pending.append(pending)
        if self._timer is None or deadline < self._timer.when():
            self._set_timer(deadline)
        return pending

    def _set_timer(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(deadline, self._check_deadlines)

    def _check_deadlines(self) -> None:
        """Close the connection if a response is late: the broker responds in order, so all later
        responses would be late too."""
        self._timer = None
        now = self._loop.time() + _TIMER_EARLY_S
        late = [pending for pending in self._pending if pending.deadline <= now]
        if not late:
            if self._pending:
                self._set_timer(min(pending.deadline for pending in self._pending))
            return
        where = format_address(*self.address)
        for pending in late:
            pending.answer.set_exception(RequestTimedOut(f"{where}: {_late(pending)}"))
        self._fail(ConnectionLost(f"the client closed the connection: {_late(late[0])}"))

    def _decode(self, pending: _Pending, answer: type[AnswerT], frame: memoryview) -> AnswerT:
        try:
            header_version = pending.api.response_header_version(pending.version)
            _, start = parse_response_header(frame, header_version)
            message = decode_response(pending.api, pending.version, frame[start:])
        except MalformedInput as error:
            lost = ConnectionLost(
                f"{format_address(*self.address)} sent a response to {pending.api.key.name} that"
                f" cannot be read: {error}"
            )
            self._fail(lost)
            raise lost from error
        assert isinstance(message, answer), f"{type(message)} is not {answer}"
        return message

    async def _agree_on_versions(self, timeout_s: float) -> None:
        api = APIS[ApiKey.API_VERSIONS]
        version = API_VERSIONS_FIRST
        while True:
            request = ApiVersionsRequest(
                client_software_name=SOFTWARE_NAME, client_software_version=SOFTWARE_VERSION
            )
            pending = self._write(api, version, request, timeout_s)
            response = await self._receive_versions(pending)
            offered = {row.api_key: (row.min_version, row.max_version) for row in response.api_keys}
            if response.error_code == ErrorCode.NONE:
                self._versions = offered
                return
            lower = min(offered.get(ApiKey.API_VERSIONS, (0, 0))[1], api.max_version)
            if response.error_code != ErrorCode.UNSUPPORTED_VERSION or not 0 <= lower < version:
                raise ConnectionLost(
                    f"the broker refused ApiVersions with error {response.error_code};"
                    " check that it is a Kafka broker"
                )
            version = lower

    async def _receive_versions(self, pending: _Pending) -> ApiVersionsResponse:
        """Return the response to ApiVersions. A broker that does not support the request's version
        responds in version 0."""
        frame = await pending.answer
        _, start = parse_response_header(frame, 0)
        refused = int.from_bytes(frame[start : start + 2], "big") == ErrorCode.UNSUPPORTED_VERSION
        if refused:
            pending.version = 0
        return self._decode(pending, ApiVersionsResponse, frame)

    def _received(self, data: bytes) -> None:
        self._take(functools.partial(self._frames.feed, data))

    def _room(self) -> memoryview | None:
        return None if self._failure is not None else self._frames.room()

    def _filled(self, count: int) -> None:
        self._take(functools.partial(self._frames.filled, count))

    def _take(self, received: Callable[[], None]) -> None:
        if self._failure is not None:
            return
        try:
            received()
        except _TooLarge as error:
            self._refuse(error.length)
        except MalformedInput as error:
            self._fail(ConnectionLost(f"the broker sent an invalid response: {error}"))

    def _check_length(self, length: int) -> None:
        if length > self._response_max_bytes and self._versions:
            raise _TooLarge(length)
        if not 4 <= length <= self._response_max_bytes:
            raise MalformedInput(
                f"the response size is {length} bytes, expected 4 to {self._response_max_bytes}"
            )

    def _ended(self, error: Exception | None) -> None:
        if isinstance(error, OSError):
            self._fail(ConnectionLost(f"the connection broke: {error.strerror or error}"))
        else:
            is_partial = self._frames.is_partial
            inside = "in the middle of a response" if is_partial else "before the response"
            self._fail(ConnectionLost(f"the broker closed the connection {inside}"))

    def _refuse(self, length: int) -> None:
        """Close the connection, because the next response is too large. The request for this
        response fails with AnswerTooLarge."""
        text = f"the response has {length} bytes, expected at most {self._response_max_bytes}"
        if self._pending:
            where = format_address(*self.address)
            self._pending.popleft().answer.set_exception(
                AnswerTooLarge(f"{where}: {text} (receive_message_max_bytes)")
            )
        self._fail(ConnectionLost(text))

    def _deliver(self, frame: memoryview) -> None:
        correlation_id = int.from_bytes(frame[:4], "big", signed=True)
        if not self._pending:
            raise MalformedInput(
                f"a response has correlation id {correlation_id}, but no request is in flight"
            )
        pending = self._pending.popleft()
        if pending.correlation_id != correlation_id:
            self._pending.appendleft(pending)
            raise MalformedInput(
                f"a response has correlation id {correlation_id}, expected {pending.correlation_id}"
            )
        pending.answer.set_result(frame)

    def _abort(self) -> None:
        """Close the connection at once and discard unsent bytes: the client may already have
        repeated the unsent requests on another connection."""
        if not self._writer.is_closing():  # a closed socket's number may belong to another
            taken = self._writer.get_extra_info("socket")
            with suppress(OSError):  # macOS refuses if the broker has closed it
                taken.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
        self._writer.transport.abort()

    def _fail(self, failure: ClientError, *, abort: bool = True) -> None:
        if self._failure is not None:
            return
        self._failure = failure
        if self._timer is not None:
            self._timer.cancel()
        if abort:
            self._abort()
        text = f"{format_address(*self.address)}: {failure}"
        while self._pending:
            self._pending.popleft().answer.set_exception(ConnectionLost(text))


def _drop_response() -> None:
    """Called when the caller of `send` is cancelled. Does nothing: the request stays in `_pending`,
    so that its response is recognised and ignored."""


def _late(pending: _Pending) -> str:
    return f"no response to {pending.api.key.name} within {pending.timeout_s:g} s"


def _reason(error: OSError, host: str) -> str:
    """Return why no connection to `host` was possible, in words for operators."""
    if isinstance(error, socket.gaierror):
        return f"the name {host} cannot be resolved ({error.strerror})"
    if isinstance(error, ConnectionRefusedError):
        return "connection refused; nothing listens there"
    return f"cannot connect: {error.strerror or error}"
