"""The fetcher of a consumer. It fetches records before the application asks for them, with one
Fetch request in flight to each leader, in a fetch session (KIP-227)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from functools import partial
from typing import Final

from pybroker.background import TaskOwner
from pybroker.client.backoff import wait_for_event
from pybroker.client.cluster import Cluster
from pybroker.client.connection import Connection
from pybroker.client.errors import (
    ClientError,
    ConnectionLost,
    NotAssigned,
    ResponseError,
)
from pybroker.client.fetch_session import FetchSession, SessionRequest
from pybroker.client.fetched import begin_data
from pybroker.client.leaderless import REPORT_AFTER_MS, LeaderlessWatch
from pybroker.client.metadata import error_code
from pybroker.client.metrics import ConsumerMetrics
from pybroker.client.offset_lookup import ISOLATION_LEVELS
from pybroker.client.options import ConsumerOptions
from pybroker.client.position_check import PositionCheck
from pybroker.client.position_lookup import PositionLookup
from pybroker.client.subscription import PartitionReader
from pybroker.deferred import Deferred
from pybroker.errors import CorruptionError, ErrorCode
from pybroker.model import NO_EPOCH, TopicPartition
from pybroker.wire.api import ApiKey
from pybroker.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    PartitionData,
)

log = logging.getLogger(__name__)

LOOK_AGAIN_S = 0.1
FETCH_LANE = "fetch"
SESSION_LOST: Final = (
    ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
    ErrorCode.INVALID_FETCH_SESSION_EPOCH,
)
GOODBYE_LIMIT_S: Final = 1.0
_Position = tuple[int, int]
"""The offset from which to fetch a partition, and the leader epoch in the client's metadata."""
_Asked = dict[TopicPartition, tuple[PartitionReader, int, int]]
"""The reader of each requested partition, its era and the requested offset."""


class Fetcher:
    """Fetches a consumer's records in the background. The event `news` signals a possible record or
    error for the application."""

    def __init__(
        self, options: ConsumerOptions, cluster: Cluster, metrics: ConsumerMetrics
    ) -> None:
        self._options = options
        self._cluster = cluster
        self._metrics = metrics
        self.readers: dict[TopicPartition, PartitionReader] = {}
        self._ends: dict[TopicPartition, tuple[int, int]] = {}
        """The high watermark and the last stable offset of previously assigned partitions. If such
        a partition is assigned again before the next request, it is still in the fetch session. The
        broker then sends these offsets only after they change."""
        self.news = asyncio.Event()
        self.broken: BaseException | None = None
        self._wake = asyncio.Event()
        self._in_flight: dict[int, Deferred[FetchResponse]] = {}
        """The response of the request in flight to each leader, by broker id."""
        self._sessions: dict[int, FetchSession[_Position]] = {}
        """The fetch session with each leader, by broker id."""
        self._tasks = TaskOwner(self._break)
        self._check = PositionCheck(
            options, cluster, self._tasks, pause=self._pause, on_result=self._look_again
        )
        self.positions = PositionLookup(
            options, cluster, self._tasks, pause=self._pause, on_result=self._look_again
        )
        self._leaders = LeaderlessWatch(cluster.clock)
        self._told_leaderless: set[TopicPartition] = set()
        cluster.add_listener(self.wake)

    def start(self) -> None:
        self._tasks.start(self._run(), "consumer fetcher")

    async def close(self) -> None:
        """Close the fetch sessions on the brokers and stop the tasks. Idempotent."""
        await self._tasks.close()
        for sent in [*self._in_flight.values()]:
            sent.cancel()
        sessions, self._sessions = self._sessions, {}
        goodbyes = [self._end_session(node, session) for node, session in sessions.items()]
        await asyncio.gather(*goodbyes)

    async def _end_session(self, node: int, session: FetchSession[_Position]) -> None:
        """Ask the broker to close the fetch session. The request must not use the connection
        FETCH_LANE, where a Fetch request may wait for data."""
        asked = session.closing()
        connection = None if asked is None else self._cluster.connected(node)
        if asked is None or connection is None:
            return
        try:
            await connection.send(
                ApiKey.FETCH, self._request(asked), FetchResponse, timeout_s=GOODBYE_LIMIT_S
            )
        except ClientError as error:
            log.debug("fetch session left to expire node=%d reason=%s", node, error)

    def wake(self) -> None:
        self._wake.set()

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Fetch exactly these partitions from now on. Partitions that were assigned before keep
        their position."""
        before = self.readers
        self._ends |= {
            key: (reader.high_watermark, reader.last_stable_offset)
            for key, reader in before.items()
        }
        self.readers = {}
        for topic_partition in partitions:
            reader = before.get(topic_partition)
            if reader is None:
                counters = self._metrics.topics[topic_partition.topic]
                reader = PartitionReader(topic_partition, counters=counters)
                reader.high_watermark, reader.last_stable_offset = self._ends.get(
                    topic_partition, (-1, -1)
                )
                self.positions.begin(reader)
            self.readers[topic_partition] = reader
        for topic_partition in before.keys() - self.readers.keys():
            before[topic_partition].drop_decoded()
        self.wake()

    def reader(self, partition: TopicPartition) -> PartitionReader:
        """Return the reader of an assigned partition. Raises NotAssigned."""
        key = TopicPartition(*partition)
        reader = self.readers.get(key)
        if reader is None:
            raise NotAssigned(key, self.readers)
        return reader

    def chosen(self, partitions: Iterable[TopicPartition]) -> list[PartitionReader]:
        """Return the readers of these partitions. Raises NotAssigned."""
        return [self.reader(partition) for partition in partitions]

    def jump(
        self, partitions: Iterable[TopicPartition], offset: int | None, reset: int | None
    ) -> None:
        """Set the position of these partitions to `offset` (None: ListOffsets looks up the
        timestamp `reset`). Raises NotAssigned before any position changes."""
        for reader in self.chosen(partitions):
            reader.jump(offset, reset)
        self.wake()

    def no_position(self, key: TopicPartition) -> str:
        """Return the error message for a partition whose position stayed unknown."""
        view = self._cluster.view
        limit = f"default.api.timeout.ms = {self._options.default_api_timeout_ms}"
        text = f"the client could not find the position of {key} within {limit}"
        topic = view.topics.get(key.topic)
        problem = view.leader_problem(key)
        if topic is not None and view.partition(key) is None:
            code = topic.error or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            problem = f"{code.name}: {code.text}"
        return f"{text}; {problem}" if problem else text

    def _break(self, error: BaseException) -> None:
        self.broken = error
        self.news.set()

    def _look_again(self) -> None:
        """Wake up the fetcher, and the consumer's call that waits for records."""
        self.news.set()
        self.wake()

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            now = self._cluster.clock.monotonic()
            self._watch_leaders()
            self.positions.look_up(self.readers, now)
            by_node: dict[int, list[PartitionReader]] = {}
            unchecked: list[PartitionReader] = []
            for reader in self.readers.values():
                if self._wants_data(reader, now):
                    leader = self._cluster.view.leader(reader.topic_partition)
                    if leader is None:
                        self._cluster.request_refresh()
                    elif not self._check.is_done(reader):
                        unchecked.append(reader)
                    else:
                        by_node.setdefault(leader, []).append(reader)
            self._check.begin(unchecked)
            for node, readers in by_node.items():
                if node not in self._in_flight:
                    connection = self._cluster.connected(node, FETCH_LANE)
                    if connection is not None:
                        self._ask(node, connection, readers)
            await self._sleep(now)

    async def _sleep(self, now: float) -> None:
        """Sleep until `wake` is called. If a partition waits for its leader or for the end of a
        backoff, sleep at most LOOK_AGAIN_S."""
        waiting = any(
            reader.next_try > now  # even if fetched records are not read yet
            or (
                not reader.has_data()
                and self._cluster.view.leader(topic_partition) not in self._in_flight
            )
            for topic_partition, reader in self.readers.items()
            if not reader.paused and reader.problem is None
        )
        await wait_for_event(self._wake, LOOK_AGAIN_S if waiting else None)

    def _wants_data(self, reader: PartitionReader, now: float) -> bool:
        return (
            reader.position is not None
            and not reader.paused
            and reader.problem is None
            and now >= reader.next_try
            and reader.buffered_bytes < self._options.max_partition_fetch_bytes
        )

    def _watch_leaders(self) -> None:
        """If a partition has had no leader for leaderless.timeout.ms, let its next read fail. If
        the option is 0, only log a warning."""
        limit_ms = self._options.leaderless_timeout_ms
        self._leaders.look(self._cluster.view, self.readers)
        found = self._leaders.leaderless(limit_ms or REPORT_AFTER_MS)
        for key in found:
            reader = self.readers.get(key)
            if reader is None or reader.paused:
                continue
            if limit_ms:
                if reader.problem is None:
                    reader.problem = ResponseError(ErrorCode.LEADER_NOT_AVAILABLE, place=str(key))
                    self.news.set()
            elif key not in self._told_leaderless:
                self._told_leaderless.add(key)
                log.warning("no leader partition=%s: the consumer waits for a leader", key)
        self._told_leaderless.intersection_update(found)

    # Fetching

    def _ask(self, node: int, connection: Connection, readers: list[PartitionReader]) -> None:
        """Write one Fetch request to the leader `node`, with the present positions of `readers`.
        The connection calls `_answered` when the response arrives."""
        asked = {
            reader.topic_partition: (reader, reader.era, reader.fetch_offset) for reader in readers
        }
        session = self._sessions.get(node)
        if session is None:
            session = self._sessions[node] = FetchSession(self._on_wire)
        question = session.next(
            {key: (offset, self._leader_epoch(key)) for key, (_, _, offset) in asked.items()}
        )
        limit_s = (self._options.request_timeout_ms + self._options.fetch_max_wait_ms) / 1_000
        began = self._cluster.clock.monotonic()
        try:
            sent = connection.send(
                ApiKey.FETCH, self._request(question), FetchResponse, timeout_s=limit_s
            )
        except ClientError as error:
            self._failed(node, session, asked, error)
            return
        self._in_flight[node] = sent
        handle = partial(self._answered, node, session, question, asked, began)
        sent.add_done_callback(self._tasks.guarded(handle, f"fetch from {node}"))

    def _answered(
        self,
        node: int,
        session: FetchSession[_Position],
        question: SessionRequest,
        asked: _Asked,
        began: float,
        sent: Deferred[FetchResponse],
    ) -> None:
        """Handle the response to a Fetch request. `began` is the time of the request, in seconds of
        the monotonic clock."""
        self._in_flight.pop(node, None)
        if sent.cancelled():
            return
        try:
            response = sent.result()
            is_usable = session.handle(response)
            if not is_usable and not (
                question.session_epoch and response.error_code in SESSION_LOST
            ):
                raise _unusable(node, response)
        except ClientError as error:
            self._failed(node, session, asked, error)
            return
        if is_usable:
            self._metrics.fetch_latency.add(self._cluster.clock.monotonic() - began)
            self._accept_all(response, asked)
        self.wake()  # after `news`, so that the consumer's call runs before the fetcher

    def _failed(
        self, node: int, session: FetchSession[_Position], asked: _Asked, error: ClientError
    ) -> None:
        self._metrics.failed_fetches += 1
        log.debug("fetch failed node=%d reason=%s", node, error)
        session.failed()
        self._cluster.request_refresh()
        for reader, _, _ in asked.values():
            if error.retriable:
                self._pause(reader)
            else:
                reader.problem = error
                self.news.set()
        self.wake()

    def _accept_all(self, response: FetchResponse, asked: _Asked) -> None:
        self._metrics.throttle_ms += response.throttle_time_ms
        for topic in response.responses:
            for answer in topic.partitions:
                if answer.records:
                    self._metrics.topics[topic.topic].fetched_bytes += len(answer.records)
                key = TopicPartition(topic.topic, answer.partition_index)
                if key in asked:
                    reader, era, offset = asked[key]
                    if reader.era == era and self.readers.get(key) is reader:
                        self._accept(reader, offset, answer)

    def _leader_epoch(self, key: TopicPartition) -> int:
        info = self._cluster.view.partition(key)
        return info.leader_epoch if info else NO_EPOCH

    def _on_wire(self, partition: int, position: _Position) -> FetchPartition:
        offset, leader_epoch = position
        return FetchPartition(
            partition=partition,
            current_leader_epoch=leader_epoch,
            fetch_offset=offset,
            partition_max_bytes=self._options.max_partition_fetch_bytes,
        )

    def _request(self, question: SessionRequest) -> FetchRequest:
        return FetchRequest(
            replica_id=-1,
            max_wait_ms=self._options.fetch_max_wait_ms,
            min_bytes=self._options.fetch_min_bytes,
            max_bytes=self._options.fetch_max_bytes,
            isolation_level=ISOLATION_LEVELS[self._options.isolation_level],
            session_id=question.session_id,
            session_epoch=question.session_epoch,
            topics=question.topics,
            forgotten_topics_data=question.forgotten,
        )

    def _accept(self, reader: PartitionReader, offset: int, answer: PartitionData) -> None:
        code = error_code(answer.error_code)
        if code == ErrorCode.NONE:
            reader.failures = 0
            reader.high_watermark = answer.high_watermark
            reader.last_stable_offset = answer.last_stable_offset
            aborted = [
                (row.first_offset, row.producer_id) for row in answer.aborted_transactions or ()
            ]
            committed = self._options.isolation_level == "read_committed"
            try:
                if answer.records and reader.add(
                    begin_data(answer.records, aborted if committed else [])
                ):
                    self._ask_last(reader)
                    self.news.set()
            except CorruptionError as error:
                reader.problem = ResponseError(
                    ErrorCode.CORRUPT_MESSAGE, str(error), place=_place(reader, offset)
                )
                self.news.set()
        elif code == ErrorCode.OFFSET_OUT_OF_RANGE:
            if reader.has_data():
                self._pause(reader)  # the user gets the fetched records before the position jumps
            else:
                self.positions.reset(reader, f"offset {offset} is out of range")
        elif code.retriable and code != ErrorCode.CORRUPT_MESSAGE:
            self._cluster.request_refresh()
            self._pause(reader)
        else:
            reader.problem = ResponseError(code, place=_place(reader, offset))
            self.news.set()

    def _ask_last(self, reader: PartitionReader) -> None:
        """Move the partition to the end of the next request: a broker fills a response in the order
        of the request."""
        key = reader.topic_partition
        self.readers[key] = self.readers.pop(key)

    def _pause(self, reader: PartitionReader) -> None:
        reader.failures += 1
        reader.next_try = self._cluster.clock.monotonic() + self._cluster.pause_s(reader.failures)


def _unusable(node: int, response: FetchResponse) -> ClientError:
    if response.error_code:
        return ResponseError(error_code(response.error_code))
    return ConnectionLost(
        f"broker {node} returned partitions in its Fetch response that are not in the fetch session"
    )


def _place(reader: PartitionReader, offset: int) -> str:
    return f"offset {offset} of {reader.topic_partition}"
