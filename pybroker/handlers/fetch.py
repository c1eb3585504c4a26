"""Fetch: decides when to answer, and updates the fetch session (KIP-227). A waiting request has no
task: a task for each fetch of an idle follower would cost too much."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Iterator
from typing import Final

from pybroker.deferred import Deferred
from pybroker.errors import BrokerError, ErrorCode
from pybroker.handlers.context import Request, Services
from pybroker.handlers.fetch_reading import (
    TURN_PARTITIONS_MAX,
    Item,
    Reading,
    advance,
    complete,
)
from pybroker.handlers.fetch_sessions import (
    FINAL_EPOCH,
    FULL_EPOCH,
    NO_SESSION,
    FetchSession,
    next_epoch,
)
from pybroker.metrics import Metrics
from pybroker.model import TOPIC_NAME_LENGTH_MAX, TopicPartition
from pybroker.replication.purgatory import Purgatory, Wait
from pybroker.wire.messages.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)

_READ_COMMITTED = 1
_DONE: Final = object()
_UNSENT_BYTES_MAX: Final = 256 * 1024 * 1024
"""While the unsent responses in memory have this size (bytes) or more in total, a new Fetch
response has only one batch. Responses remain unsent if the clients read too slowly."""


def handle_fetch(
    services: Services, request: Request, message: FetchRequest
) -> FetchResponse | Awaitable[FetchResponse]:
    """Return the response, or an awaitable of it if the request has to wait."""
    trusted = services.config.inter_broker_listener
    if message.replica_id >= 0 and request.listener != trusted:
        return FetchResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    if message.session_epoch not in (FULL_EPOCH, FINAL_EPOCH):
        return _handle_incremental(services, request, message)
    if message.session_id != NO_SESSION:
        services.fetch_sessions.remove(message.session_id)
    return _read(services, request, message, None)


def _handle_incremental(
    services: Services, request: Request, message: FetchRequest
) -> FetchResponse | Awaitable[FetchResponse]:
    now = services.clock.monotonic()
    try:
        session = services.fetch_sessions.take(
            message.session_id, message.session_epoch, message.replica_id, now
        )
    except BrokerError as error:
        return FetchResponse(error_code=error.code)
    if session.partitions and not message.topics and not message.forgotten_topics_data:
        return _read(services, request, message, session)
    changes = session.update(message.topics, message.forgotten_topics_data)
    try:
        if next(changes, _DONE) is not _DONE:
            return _go_on_incremental(services, request, message, session, changes)
        services.fetch_sessions.resized(session)
    except BrokerError as error:
        services.fetch_sessions.remove(session.id)
        return FetchResponse(error_code=error.code)
    return _read(services, request, message, session if session.partitions else None)


async def _go_on_incremental(
    services: Services,
    request: Request,
    message: FetchRequest,
    session: FetchSession,
    changes: Iterator[None],
) -> FetchResponse:
    """Apply the remaining `changes` to the session, yielding to the event loop after each, then
    read the partitions."""
    try:
        for _ in changes:
            await asyncio.sleep(0)
        services.fetch_sessions.resized(session)
    except BrokerError as error:
        services.fetch_sessions.remove(session.id)
        return FetchResponse(error_code=error.code)
    result = _read(services, request, message, session if session.partitions else None)
    return await result if isinstance(result, Awaitable) else result


def _read(
    services: Services, request: Request, message: FetchRequest, session: FetchSession | None
) -> FetchResponse | Awaitable[FetchResponse]:
    seen = _purgatory(services, message).changes
    if session is not None:
        _read_under(services, message, session)
        session.requests.arrived(session.used_s)
    reading = _begin(services, request, message, session)
    if advance(services, reading) and _is_enough(message, reading):
        response = FetchResponse(responses=reading.responses)
        if message.session_epoch == FINAL_EPOCH:
            for topic in response.responses:
                _count(services.metrics, topic, message)
        else:
            for _ in _note_sent(services, message, reading, session, response):
                pass  # few enough partitions, as one pass has read them all
        return response
    waiting = _WaitingFetch(services, request, message, session)
    waiting.go_on(reading, seen)
    return waiting.response


class _WaitingFetch:
    """A Fetch request that is not answered at once, and its future response. If the future response
    is cancelled, the request stops waiting."""

    def __init__(
        self,
        services: Services,
        request: Request,
        message: FetchRequest,
        session: FetchSession | None,
    ) -> None:
        self._services = services
        self._request = request
        self._message = message
        self._session = session
        self._fetches = _purgatory(services, message)
        self._deadline = services.clock.monotonic() + message.max_wait_ms / 1000
        self._loop = asyncio.get_running_loop()
        self.response: Deferred[FetchResponse] = Deferred(self._give_up)
        self._wait: Wait | None = None
        self._task: asyncio.Task[FetchResponse] | None = None

    def go_on(self, reading: Reading, seen: int) -> None:
        """Start a task that continues to read if the last pass is unfinished, a partition has
        changed or the deadline has passed. Otherwise wait in the purgatory. `reading` is the state
        of the last pass over the partitions. `seen` is the purgatory's count of changes before that
        pass."""
        is_at_end = reading.cached_only and reading.position >= reading.count
        timeout_s = self._deadline - self._services.clock.monotonic()
        if not is_at_end or self._fetches.changes != seen or timeout_s <= 0:
            self._task = self._loop.create_task(
                _read_until_enough(
                    self._services,
                    self._request,
                    self._message,
                    self._session,
                    reading,
                    seen,
                    self._deadline,
                )
            )
            self._task.add_done_callback(self._task_ended)
            return
        session = self._session
        usual_s = _usual_wait_s(self._services, self._message)
        self._wait = self._fetches.begin(
            [key for _, key, _ in reading.items] if session is None else session.pending,
            missing_bytes=max(reading.enough_bytes - reading.total_bytes, 1),
            timeout_s=min(timeout_s, usual_s) if session and session.pending else timeout_s,
            on_over=self._wait_is_over,
            more=session,
            more_within_s=usual_s,
            shares_timer=self._message.replica_id >= 0,
        )

    def _wait_is_over(self) -> None:
        # A partition may be in the middle of a change.
        self._loop.call_soon(self._read_again)

    def _read_again(self) -> None:
        if self.response.done():
            return
        if self._wait is not None and self._wait.timed_out:
            self._deadline = -math.inf
        self._end_wait()
        try:
            seen = self._fetches.changes
            reading = _begin_again(self._services, self._request, self._message, self._session)
            if not advance(self._services, reading) or not (
                _is_enough(self._message, reading)
                or self._services.clock.monotonic() >= self._deadline
            ):
                self.go_on(reading, seen)
                return
            response = FetchResponse(responses=reading.responses)
            for _ in _note_sent(self._services, self._message, reading, self._session, response):
                pass  # few enough partitions, as one pass has read them all
        except Exception as error:
            self.response.set_exception(error)
            return
        self.response.set_result(response)

    def _task_ended(self, task: asyncio.Task[FetchResponse]) -> None:
        if self.response.done():
            return
        if task.cancelled():
            self.response.cancel()
        elif (error := task.exception()) is not None:
            self.response.set_exception(error)
        else:
            self.response.set_result(task.result())

    def _end_wait(self) -> None:
        wait, self._wait = self._wait, None
        if wait is not None:
            wait.end()

    def _give_up(self) -> None:
        self._end_wait()
        if self._task is not None:
            self._task.cancel()


async def _read_until_enough(
    services: Services,
    request: Request,
    message: FetchRequest,
    session: FetchSession | None,
    reading: Reading,
    seen: int,
    deadline: float,
) -> FetchResponse:
    """Return the response once there are enough records or `deadline` (monotonic s) has passed.
    `seen` is the value of the counter `Purgatory.changes` before `reading` began."""
    fetches, clock = _purgatory(services, message), services.clock
    while True:
        await complete(services, reading)
        if _is_enough(message, reading) or clock.monotonic() >= deadline:
            response = FetchResponse(responses=reading.responses)
            for _ in _note_sent(services, message, reading, session, response):
                await asyncio.sleep(0)
            return response
        reading.responses, reading.given = [], []  # a waiting fetch holds no records
        if fetches.changes == seen:
            usual_s = _usual_wait_s(services, message)
            if session is not None and session.pending:
                deadline = min(deadline, clock.monotonic() + usual_s)
            await fetches.wait(
                [key for _, key, _ in reading.items] if session is None else session.pending,
                missing_bytes=max(reading.enough_bytes - reading.total_bytes, 1),
                timeout_s=deadline - clock.monotonic(),
                more=session,
                more_within_s=usual_s,
            )
        seen = fetches.changes
        reading = _begin_again(services, request, message, session)


def _usual_wait_s(services: Services, message: FetchRequest) -> float:
    """Return a limit (s) for a wait for new data. The request's own limit also applies. This limit
    applies only while the fetch session has partitions to read (`FetchSession.pending`). It is
    infinite for a consumer, but finite for a follower, because a follower has to learn a new high
    watermark soon."""
    return services.config.replica_fetch_wait_max_ms / 1000 if message.replica_id >= 0 else math.inf


def _purgatory(services: Services, message: FetchRequest) -> Purgatory:
    """Return the purgatory in which the request waits. In one purgatory, followers wait for a
    higher log end offset; in another, consumers wait for a higher high watermark."""
    replicas = services.replicas
    return replicas.replica_fetches if message.replica_id >= 0 else replicas.fetches


def _is_enough(message: FetchRequest, reading: Reading) -> bool:
    return (
        reading.must_answer
        or reading.total_bytes >= reading.enough_bytes
        or message.max_wait_ms <= 0
        or (reading.count == 0 and reading.cached is None)
    )


def _begin(
    services: Services, request: Request, message: FetchRequest, session: FetchSession | None
) -> Reading:
    """Return a new `Reading` of the pending partitions of `session`. If `session` is None, return a
    `Reading` of the partitions of the request."""
    is_follower = message.replica_id >= 0
    budget_bytes = min(message.max_bytes, max(_UNSENT_BYTES_MAX - services.unsent_bytes(), 0))
    if not is_follower:
        budget_bytes = min(budget_bytes, services.config.fetch_max_bytes)
    responses: list[FetchableTopicResponse] = []
    items: list[Item] = []
    cached = None
    if session is None:
        now_s = services.clock.monotonic() if is_follower else 0.0
        for topic in message.topics:
            answers: list[PartitionData] = []
            responses.append(FetchableTopicResponse(topic=topic.topic, partitions=answers))
            items += [
                (answers, TopicPartition(topic.topic, wanted.partition), wanted)
                for wanted in topic.partitions
            ]
    else:
        cached, now_s = list(session.pending.values()), session.requests.last_s
    return Reading(
        version=request.version,
        items=items,
        cached=cached,
        count=len(items) if cached is None else len(cached),
        responses=responses,
        given=[],
        follower=message if is_follower else None,
        committed_only=_committed_only(message),
        budget_bytes=budget_bytes,
        # As in Kafka, a fetch does not wait for more than fits into the answer.
        enough_bytes=min(message.min_bytes, max(budget_bytes, 1)),
        now_s=now_s,
    )


def _begin_again(
    services: Services, request: Request, message: FetchRequest, session: FetchSession | None
) -> Reading:
    if session is not None:
        _read_under(services, message, session)
    reading = _begin(services, request, message, session)
    reading.noted = reading.count  # the follower was noted when its request came
    return reading


def _committed_only(message: FetchRequest) -> bool:
    return message.isolation_level == _READ_COMMITTED and message.replica_id < 0


def _read_under(services: Services, message: FetchRequest, session: FetchSession) -> None:
    session.read_under(
        services.replicas.lease, message.replica_incarnation, _committed_only(message)
    )


def _note_sent(
    services: Services,
    message: FetchRequest,
    reading: Reading,
    session: FetchSession | None,
    response: FetchResponse,
) -> Iterator[None]:
    """Record the response in the session and the metrics. The caller must let other tasks run at
    each yield."""
    if session is not None:
        response.session_id = session.id
        if session.epoch != next_epoch(message.session_epoch):  # a later request uses the session
            response.error_code = ErrorCode.INVALID_FETCH_SESSION_EPOCH
            response.responses = []
            return
        for number, (cached, answer) in enumerate(reading.given, 1):
            cached.record_sent(answer)
            if answer.records:
                session.move_to_end(cached)
            if number % TURN_PARTITIONS_MAX == 0:
                yield
    elif message.session_epoch == FULL_EPOCH:
        yield from _open_session(services, message, reading, response)
    counted = 0
    for topic in response.responses:
        _count(services.metrics, topic, message)
        counted += len(topic.partitions)
        if counted > TURN_PARTITIONS_MAX:
            counted = 0
            yield


def _open_session(
    services: Services, message: FetchRequest, reading: Reading, response: FetchResponse
) -> Iterator[None]:
    """Create a fetch session if the cache has room, and set its id in the response. The caller must
    let other tasks run at each yield."""
    if any(len(topic.topic) > TOPIC_NAME_LENGTH_MAX for topic in message.topics):
        return
    session = services.fetch_sessions.create(
        message.replica_id, len(reading.items), services.clock.monotonic()
    )
    if session is None:
        return
    answers = (answer for topic in response.responses for answer in topic.partitions)
    for number, ((_, key, wanted), answer) in enumerate(
        zip(reading.items, answers, strict=True), 1
    ):
        session.add(key, wanted).record_sent(answer)
        if number % TURN_PARTITIONS_MAX == 0:
            yield
    # The session counts a partition once, even if the request names it several times. A session
    # without partitions is kept, because a later request may add some.
    if session.partitions:
        services.fetch_sessions.resized(session)
    response.session_id = session.id


def _count(metrics: Metrics, topic: FetchableTopicResponse, message: FetchRequest) -> None:
    counters = metrics.counters(topic.topic)
    counters.fetch_requests += len(topic.partitions)
    for part in topic.partitions:
        if not part.records:
            if part.error_code:
                counters.failed_fetch_requests += 1
        elif message.replica_id < 0:
            counters.bytes_out += len(part.records)
        else:
            metrics.replication_bytes_out += len(part.records)
