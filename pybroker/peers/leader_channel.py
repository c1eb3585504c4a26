"""A follower's channel to a leader on another broker: sends Fetch and ListOffsets requests on one
connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

from pybroker.client.connection import Connection
from pybroker.client.fetch_session import FetchSession
from pybroker.client.metadata import error_code
from pybroker.config.broker_config import BrokerConfig
from pybroker.errors import BrokerError, ErrorCode
from pybroker.metrics import Metrics
from pybroker.model import Broker, Endpoint, TopicPartition
from pybroker.ports import Blocking, Clock, FetchedPartition, FetchLimits, FetchPosition
from pybroker.replication.fetchers import ReplicaFetchers
from pybroker.replication.truncation import Losses
from pybroker.storage.replica_health import ReplicaHealth
from pybroker.wire.api import ApiKey
from pybroker.wire.frame import RESPONSE_SIZE_MAX
from pybroker.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from pybroker.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from pybroker.wire.schema import Message

T = TypeVar("T", bound=Message)

_FETCH_VERSION: Final = 12
_LIST_OFFSETS_VERSION: Final = 7
_LATEST: Final = -1
_EARLIEST: Final = -2


@dataclass(frozen=True, slots=True)
class Follower:
    """The identity that a broker states when it fetches as a follower."""

    broker_id: int
    incarnation: Callable[[], int]
    """Returns the broker's incarnation, a number that grows with every registration (KIP-903); -1
    until the controller has sent the broker's roles. With -1 no fetch is sent."""


def new_fetchers(
    config: BrokerConfig,
    follower: Follower,
    find: Callable[[int], Broker | None],
    *,
    health: ReplicaHealth,
    losses: Losses,
    blocking: Blocking,
    clock: Clock,
    metrics: Metrics,
) -> ReplicaFetchers:
    """Return the fetchers with which this broker follows leaders on other brokers. `find` returns
    the registered broker with a broker id, or None."""

    def endpoint(leader: int) -> Endpoint | None:
        broker = find(leader)
        return None if broker is None else broker.endpoint(config.inter_broker_listener)

    return ReplicaFetchers(
        channel=lambda leader: FollowerLeaderChannel(follower, partial(endpoint, leader), config),
        config=config,
        health=health,
        losses=losses,
        blocking=blocking,
        clock=clock,
        metrics=metrics,
    )


class FollowerLeaderChannel:
    """A follower's channel to one leader. A call that is cancelled closes the connection, so that
    the next call need not wait for the old response."""

    def __init__(
        self,
        follower: Follower,
        find: Callable[[], Endpoint | None],
        config: BrokerConfig,
    ) -> None:
        """`find` is called before every attempt to connect, and returns the leader's inter-broker
        endpoint (None: unknown)."""
        self._follower = follower
        self._find = find
        self._timeout_ms = config.replica_socket_timeout_ms
        is_chosen = "replica.socket.receive.buffer.bytes" in config.given
        self._receive_buffer_bytes = (
            config.replica_socket_receive_buffer_bytes if is_chosen else None
        )
        self._connection: Connection | None = None
        self._partition_max_bytes = 0
        self._session: FetchSession[FetchPosition] = FetchSession(self._on_wire)
        self._calling = asyncio.Lock()

    async def fetch(
        self,
        positions: Mapping[TopicPartition, FetchPosition],
        limits: FetchLimits,
        changed: Iterable[TopicPartition] | None = None,
    ) -> Sequence[FetchedPartition]:
        try:
            async with self._calling:
                if limits.partition_max_bytes != self._partition_max_bytes:
                    self._partition_max_bytes = limits.partition_max_bytes
                    self._session.failed()
                return await self._fetch(positions, limits, changed)
        except BaseException:
            self._session.failed()  # `changed` may not have been sent: the next fetch sends all
            raise

    async def _fetch(
        self,
        positions: Mapping[TopicPartition, FetchPosition],
        limits: FetchLimits,
        changed: Iterable[TopicPartition] | None,
    ) -> Sequence[FetchedPartition]:
        connection = await self._connected()
        incarnation = self._follower.incarnation()
        if incarnation < 0:
            # This broker's log may belong to a deleted topic. Its offsets must not count as offsets
            # of the recreated topic.
            raise BrokerError(
                ErrorCode.STALE_BROKER_EPOCH,
                "this broker sends no fetch until it has received a LeaderAndIsr request for its"
                " present registration",
            )
        asked = self._session.next(positions, changed)
        request = FetchRequest(
            replica_id=self._follower.broker_id,
            max_wait_ms=limits.max_wait_ms,
            min_bytes=limits.min_bytes,
            max_bytes=limits.max_bytes,
            session_id=asked.session_id,
            session_epoch=asked.session_epoch,
            topics=asked.topics,
            forgotten_topics_data=asked.forgotten,
            replica_incarnation=incarnation,
        )
        response = await self._call(
            connection,
            ApiKey.FETCH,
            _FETCH_VERSION,
            request,
            FetchResponse,
            (limits.max_wait_ms + self._timeout_ms) / 1000,
        )
        if not self._session.handle(response) and response.error_code not in _SESSION_LOST:
            raise BrokerError(
                error_code(response.error_code), "the leader rejected the whole Fetch request"
            )
        return [
            _fetched(TopicPartition(topic.topic, part.partition_index), part)
            for topic in response.responses
            for part in topic.partitions
        ]

    def _on_wire(self, partition: int, position: FetchPosition) -> FetchPartition:
        return FetchPartition(
            partition=partition,
            current_leader_epoch=position.leader_epoch,
            fetch_offset=position.fetch_offset,
            last_fetched_epoch=position.last_epoch,
            log_start_offset=position.log_start_offset,
            partition_max_bytes=self._partition_max_bytes,
        )

    async def earliest_offset(self, topic_partition: TopicPartition, leader_epoch: int) -> int:
        return await self._offset(topic_partition, leader_epoch, _EARLIEST)

    async def latest_offset(self, topic_partition: TopicPartition, leader_epoch: int) -> int:
        return await self._offset(topic_partition, leader_epoch, _LATEST)

    async def _offset(self, key: TopicPartition, leader_epoch: int, timestamp: int) -> int:
        request = ListOffsetsRequest(
            replica_id=self._follower.broker_id,
            topics=[
                ListOffsetsTopic(
                    name=key.topic,
                    partitions=[
                        ListOffsetsPartition(
                            partition_index=key.partition,
                            current_leader_epoch=leader_epoch,
                            timestamp=timestamp,
                        )
                    ],
                )
            ],
        )
        async with self._calling:
            response = await self._call(
                await self._connected(),
                ApiKey.LIST_OFFSETS,
                _LIST_OFFSETS_VERSION,
                request,
                ListOffsetsResponse,
                self._timeout_ms / 1000,
            )
        for topic in response.topics:
            for part in topic.partitions:
                if (topic.name, part.partition_index) == key:
                    if part.error_code:
                        raise BrokerError(error_code(part.error_code))
                    return part.offset
        raise BrokerError(
            ErrorCode.UNKNOWN_SERVER_ERROR,
            f"the leader's ListOffsets response has no result for {key}",
        )

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def _connected(self) -> Connection:
        """Return the open connection, or a new one. Responses have no size limit, since a leader
        returns at least one batch, whatever its size."""
        connection = self._connection
        if connection is not None and connection.usable:
            return connection
        await self.close()
        endpoint = self._find()
        if endpoint is None:
            raise BrokerError(
                ErrorCode.BROKER_NOT_AVAILABLE,
                "the leader has no known inter-broker endpoint: check that the leader runs",
            )
        self._connection = await Connection.open(
            endpoint.host,
            endpoint.port,
            client_id=f"broker-{self._follower.broker_id}-fetcher-0",
            timeout_s=self._timeout_ms / 1000,
            response_max_bytes=RESPONSE_SIZE_MAX,
            receive_buffer_bytes=self._receive_buffer_bytes,
        )
        return self._connection

    async def _call(
        self,
        connection: Connection,
        key: ApiKey,
        version: int,
        request: Message,
        answer: type[T],
        timeout_s: float,
    ) -> T:
        try:
            return await connection.send(key, request, answer, timeout_s=timeout_s, version=version)
        except asyncio.CancelledError:
            await self.close()
            raise


_SESSION_LOST: Final = frozenset(
    {
        ErrorCode.NONE,
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
    }
)
"""The error codes of a Fetch response after which only the fetch session is lost. The channel
raises no error for them, and the next fetch begins a new fetch session."""


def _fetched(key: TopicPartition, part: PartitionData) -> FetchedPartition:
    diverging = part.diverging_epoch
    return FetchedPartition(
        key,
        error=error_code(part.error_code),
        high_watermark=part.high_watermark,
        log_start_offset=part.log_start_offset,
        diverging_epoch=-1 if diverging is None else diverging.epoch,
        diverging_end_offset=-1 if diverging is None else diverging.end_offset,
        records=part.records or b"",
    )
