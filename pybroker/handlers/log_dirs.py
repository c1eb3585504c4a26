"""DescribeLogDirs and AlterReplicaLogDirs (KIP-113). If a request assigns a partition to two
directories, the last one counts, as in Kafka."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from pybroker.errors import BrokerError, ErrorCode
from pybroker.handlers.context import Request, Services
from pybroker.model import TopicPartition
from pybroker.replication.mover import DirectoryUsage
from pybroker.wire.messages.log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)

log = logging.getLogger(__name__)


def handle_describe_log_dirs(
    services: Services, request: Request, message: DescribeLogDirsRequest
) -> DescribeLogDirsResponse:
    """Return each log directory with its replicas. A log directory that has failed is returned with
    an error and without replicas."""
    wanted = None
    if message.topics is not None:
        wanted = {
            TopicPartition(topic.topic, partition)
            for topic in message.topics
            for partition in topic.partitions
        }
    rows: dict[str, list[DirectoryUsage]] = {}
    for row in services.mover.usage():
        if wanted is None or row.topic_partition in wanted:
            rows.setdefault(row.directory, []).append(row)
    results = []
    failed = services.mover.failed_directories
    for path in services.mover.directories:
        result = DescribeLogDirsResult(log_dir=path)
        if path in failed:
            result.error_code = ErrorCode.KAFKA_STORAGE_ERROR
        else:
            result.topics = _topics(rows.get(path, ()))
        results.append(result)
    return DescribeLogDirsResponse(results=results)


def _topics(rows: Iterable[DirectoryUsage]) -> list[DescribeLogDirsTopic]:
    topics: dict[str, DescribeLogDirsTopic] = {}
    for row in sorted(rows, key=lambda row: row.topic_partition):
        name, partition = row.topic_partition
        topic = topics.setdefault(name, DescribeLogDirsTopic(name=name))
        topic.partitions.append(
            DescribeLogDirsPartition(
                partition_index=partition,
                partition_size=row.size_bytes,
                offset_lag=row.offset_lag,
                is_future_key=row.is_future,
            )
        )
    return list(topics.values())


async def handle_alter_replica_log_dirs(
    services: Services, request: Request, message: AlterReplicaLogDirsRequest
) -> AlterReplicaLogDirsResponse:
    wanted = {
        TopicPartition(topic.name, partition): directory.path
        for directory in message.dirs
        for topic in directory.topics
        for partition in topic.partitions
    }
    errors = await services.mover.alter(wanted, services.metadata.exists)
    for partition, error in errors.items():
        if error is not None:
            _tell(services, partition, wanted[partition], error)
    return AlterReplicaLogDirsResponse(results=_results(errors))


def _tell(services: Services, partition: TopicPartition, path: str, error: BrokerError) -> None:
    left_out = services.log_limit.allow("replica not moved")
    if left_out is not None:
        log.warning(
            "replica not moved partition=%s to=%s error=%s lines_left_out=%d",
            partition,
            path,
            error,
            left_out,
        )


def _results(
    errors: Mapping[TopicPartition, BrokerError | None],
) -> list[AlterReplicaLogDirTopicResult]:
    topics: dict[str, AlterReplicaLogDirTopicResult] = {}
    for (name, partition), error in errors.items():
        code = ErrorCode.NONE if error is None else error.code
        topic = topics.setdefault(name, AlterReplicaLogDirTopicResult(topic_name=name))
        topic.partitions.append(
            AlterReplicaLogDirPartitionResult(partition_index=partition, error_code=code)
        )
    return list(topics.values())
