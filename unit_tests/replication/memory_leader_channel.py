"""A leader without a network: the `LeaderChannel` to a `ReplicaManager` of the same process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from pybroker.errors import BrokerError, ErrorCode
from pybroker.model import NO_EPOCH, NO_OFFSET, TopicPartition
from pybroker.ports import Clock, FetchedPartition, FetchLimits, FetchPosition
from pybroker.replication.leader_state import FollowerFetch
from pybroker.replication.manager import ReplicaManager
from pybroker.replication.partition import Partition

_BYTES_MAX: Final = 1 << 30


class MemoryLeaderChannel:
    """Answers the requests of `follower` as the leader's handlers would.

    `leader` returns the replicas of the leader's broker, None while it is down (ConnectionError).
    """

    def __init__(
        self, follower: int, leader: Callable[[], ReplicaManager | None], clock: Clock
    ) -> None:
        self._follower = follower
        self._leader = leader
        self._clock = clock
        self._told: dict[TopicPartition, int] = {}
        """The high watermarks in the answers to the follower."""

    async def fetch(
        self,
        positions: Mapping[TopicPartition, FetchPosition],
        limits: FetchLimits,
        changed: Iterable[TopicPartition] | None = None,
    ) -> Sequence[FetchedPartition]:
        replicas = self._connected()
        answers = self._read(replicas, positions, limits)
        if limits.max_wait_ms > 0 and not answers:
            await replicas.replica_fetches.wait(
                positions,
                missing_bytes=limits.min_bytes,
                timeout_s=limits.max_wait_ms / 1000,
            )
            answers = self._read(self._connected(), positions, limits)
        return answers

    async def earliest_offset(self, topic_partition: TopicPartition, leader_epoch: int) -> int:
        return self._connected().leader(topic_partition, leader_epoch).log.log_start_offset

    async def latest_offset(self, topic_partition: TopicPartition, leader_epoch: int) -> int:
        return self._connected().leader(topic_partition, leader_epoch).log.log_end_offset

    async def close(self) -> None:
        """Do nothing: no connection is open."""

    def _connected(self) -> ReplicaManager:
        replicas = self._leader()
        if replicas is None:
            raise ConnectionError("the leader is down")
        return replicas

    def _read(
        self,
        replicas: ReplicaManager,
        positions: Mapping[TopicPartition, FetchPosition],
        limits: FetchLimits,
    ) -> list[FetchedPartition]:
        """Return the answers of the partitions with new records or another change."""
        answers = []
        budget = limits.max_bytes
        for key, position in positions.items():
            try:
                partition = replicas.leader(key, position.leader_epoch)
                answer = self._read_one(replicas, partition, position, min(budget, _BYTES_MAX))
            except BrokerError as error:
                answer = FetchedPartition(key, error=error.code)
            budget -= len(answer.records)
            if self._is_news(answer, position):
                self._told[key] = answer.high_watermark
                answers.append(answer)
        return answers

    def _is_news(self, answer: FetchedPartition, position: FetchPosition) -> bool:
        return (
            bool(answer.records)
            or answer.error is not ErrorCode.NONE
            or answer.diverging_end_offset != NO_OFFSET
            or answer.high_watermark != self._told.get(answer.topic_partition)
            or answer.log_start_offset > position.log_start_offset
        )

    def _read_one(
        self,
        replicas: ReplicaManager,
        partition: Partition,
        position: FetchPosition,
        max_bytes: int,
    ) -> FetchedPartition:
        key, log = partition.topic_partition, partition.log
        diverging = self._diverging(partition, position)
        if diverging is not None:
            return FetchedPartition(
                key,
                log_start_offset=log.log_start_offset,
                diverging_epoch=diverging[0],
                diverging_end_offset=diverging[1],
            )
        data = log.read(
            position.fetch_offset,
            max_bytes,
            upper_offset=log.log_end_offset,
            at_least_one_batch=True,
            cached_only=False,
        )
        fetch = FollowerFetch(self._follower, position.fetch_offset, position.log_start_offset)
        replicas.follower_fetched(partition, fetch, self._clock.monotonic())
        return FetchedPartition(
            key,
            high_watermark=partition.high_watermark,
            log_start_offset=log.log_start_offset,
            records=b"" if data is None else data,
        )

    def _diverging(self, partition: Partition, position: FetchPosition) -> tuple[int, int] | None:
        """Return the epoch to which the follower has to truncate, and its end offset (KIP-595)."""
        if position.last_epoch == NO_EPOCH:
            return None
        epoch, end = partition.log.epoch_end_offset(position.last_epoch)
        if end == NO_OFFSET:
            raise BrokerError(ErrorCode.OFFSET_OUT_OF_RANGE)
        if epoch < position.last_epoch or end < position.fetch_offset:
            return epoch, end
        return None
