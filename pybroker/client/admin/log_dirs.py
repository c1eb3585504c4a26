"""The log directories of brokers: listing their replicas, and moving replicas between them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from pybroker.client.admin.calls import Calls
from pybroker.client.connection import Connection
from pybroker.client.errors import ClientError, ResponseError
from pybroker.client.leader_calls import response_error
from pybroker.errors import ErrorCode
from pybroker.model import TopicPartition
from pybroker.wire.api import ApiKey
from pybroker.wire.messages.log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopic,
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)


class Replica(NamedTuple):
    """One broker's replica of a partition: topic, partition number and broker id."""

    topic_partition: TopicPartition
    broker: int


@dataclass(frozen=True, slots=True)
class ReplicaLog:
    """A replica in a log directory. `size` is in bytes. `future` marks the copy that a move writes.
    `offset_lag` says how far the log end is behind the high watermark; for a copy, how far the
    copy's log end is behind that of the original."""

    size: int
    offset_lag: int
    future: bool


@dataclass(frozen=True, slots=True)
class LogDir:
    """A log directory. `error` is set if the directory is offline."""

    path: str
    replicas: Mapping[TopicPartition, ReplicaLog] = field(default_factory=dict)
    error: ClientError | None = None


@dataclass(frozen=True, slots=True)
class BrokerLogDirs:
    """The log directories of a broker, in the broker's order. If the broker did not respond, only
    `error` is set."""

    broker: int
    dirs: tuple[LogDir, ...] = ()
    error: ClientError | None = None

    def check(self) -> BrokerLogDirs:
        """Return the log directories, or raise `error`."""
        if self.error is not None:
            raise self.error
        return self


async def describe_log_dirs(
    calls: Calls,
    brokers: Iterable[int] | None,
    partitions: Iterable[TopicPartition] | None,
    *,
    timeout_ms: int | None,
) -> dict[int, BrokerLogDirs]:
    """Return the log directories of these brokers (None: all known ones), with the replicas of
    these partitions (None: all)."""
    request = DescribeLogDirsRequest(
        topics=None
        if partitions is None
        else [
            DescribableLogDirTopic(topic=name, partitions=numbers)
            for name, numbers in by_topic(partitions).items()
        ]
    )

    async def ask(connection: Connection, timeout_s: float) -> DescribeLogDirsResponse:
        return await connection.send(
            ApiKey.DESCRIBE_LOG_DIRS, request, DescribeLogDirsResponse, timeout_s=timeout_s
        )

    answers = await calls.each_broker(brokers, ask, timeout_ms)
    return {
        broker: BrokerLogDirs(broker, error=answer)
        if isinstance(answer, ClientError)
        else BrokerLogDirs(broker, _dirs(answer))
        for broker, answer in answers.items()
    }


async def alter_replica_log_dirs(
    calls: Calls, moves: Mapping[Replica, str], *, timeout_ms: int | None
) -> dict[Replica, ClientError | None]:
    """Ask brokers to move replicas to the given log directories. Return None for each accepted
    move, else the error."""
    outcomes: dict[Replica, ClientError | None] = dict.fromkeys(moves, _NOT_ANSWERED)
    for broker in sorted({replica.broker for replica in moves}):
        paths: dict[str, list[TopicPartition]] = {}
        for replica, path in moves.items():
            if replica.broker == broker:
                paths.setdefault(path, []).append(replica.topic_partition)
        try:
            found = await _move(calls, broker, paths, timeout_ms)
        except ClientError as error:
            found = {item: error for items in paths.values() for item in items}
        for topic_partition, outcome in found.items():
            outcomes[Replica(topic_partition, broker)] = outcome
    return outcomes


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Return topic -> partition numbers, in the order of `partitions`."""
    found: dict[str, list[int]] = {}
    for topic, number in partitions:
        found.setdefault(topic, []).append(number)
    return found


_NOT_ANSWERED = ResponseError(
    ErrorCode.UNKNOWN_SERVER_ERROR, "the broker's response has no result for the replica"
)


async def _move(
    calls: Calls, broker: int, paths: Mapping[str, list[TopicPartition]], timeout_ms: int | None
) -> dict[TopicPartition, ClientError | None]:
    request = AlterReplicaLogDirsRequest(
        dirs=[
            AlterReplicaLogDir(
                path=path,
                topics=[
                    AlterReplicaLogDirTopic(name=name, partitions=numbers)
                    for name, numbers in by_topic(partitions).items()
                ],
            )
            for path, partitions in paths.items()
        ]
    )

    async def ask(connection: Connection, timeout_s: float) -> AlterReplicaLogDirsResponse:
        return await connection.send(
            ApiKey.ALTER_REPLICA_LOG_DIRS, request, AlterReplicaLogDirsResponse, timeout_s=timeout_s
        )

    answer = await calls.broker(broker, ask, timeout_ms)
    return {
        TopicPartition(topic.topic_name, row.partition_index): response_error(row.error_code)
        for topic in answer.results
        for row in topic.partitions
    }


def _dirs(answer: DescribeLogDirsResponse) -> tuple[LogDir, ...]:
    return tuple(
        LogDir(
            row.log_dir,
            {
                TopicPartition(topic.name, replica.partition_index): ReplicaLog(
                    replica.partition_size, replica.offset_lag, replica.is_future_key
                )
                for topic in row.topics
                for replica in topic.partitions
            },
            response_error(row.error_code),
        )
        for row in answer.results
    )
