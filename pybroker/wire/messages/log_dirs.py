"""Log directories: AlterReplicaLogDirs (34) and DescribeLogDirs (35), versions 0-2 each.

1 the client throttles itself. 2 flexible.
"""

from __future__ import annotations

from pybroker.wire.schema import (
    Message,
    array,
    boolean,
    int16,
    int32,
    int32_array,
    int64,
    message,
    string,
)


@message
class AlterReplicaLogDirTopic(Message):
    """One element of `AlterReplicaLogDir.topics`."""

    name: str = string("The topic's name.")
    partitions: list[int] = int32_array("The partitions' numbers.")


@message
class AlterReplicaLogDir(Message):
    """One element of `AlterReplicaLogDirsRequest.dirs`."""

    path: str = string("The log directory.")
    topics: list[AlterReplicaLogDirTopic] = array(
        AlterReplicaLogDirTopic, "The replicas that shall live there."
    )


@message
class AlterReplicaLogDirsRequest(Message):
    """Moves replicas between the log directories of a broker."""

    dirs: list[AlterReplicaLogDir] = array(
        AlterReplicaLogDir, "Where replicas shall live, by directory."
    )


@message
class AlterReplicaLogDirPartitionResult(Message):
    """One element of `AlterReplicaLogDirTopicResult.partitions`."""

    partition_index: int = int32("The partition's number.")
    error_code: int = int16("The error, or 0.")


@message
class AlterReplicaLogDirTopicResult(Message):
    """One element of `AlterReplicaLogDirsResponse.results`."""

    topic_name: str = string("The topic's name.")
    partitions: list[AlterReplicaLogDirPartitionResult] = array(
        AlterReplicaLogDirPartitionResult, "The results, by partition."
    )


@message
class AlterReplicaLogDirsResponse(Message):
    """Whether each move was accepted."""

    throttle_time_ms: int = int32(
        "How long the client should pause because of a quota, in ms; 0 if not at all."
    )
    results: list[AlterReplicaLogDirTopicResult] = array(
        AlterReplicaLogDirTopicResult, "The results, by topic."
    )


@message
class DescribableLogDirTopic(Message):
    """One element of `DescribeLogDirsRequest.topics`."""

    topic: str = string("The topic's name.")
    partitions: list[int] = int32_array("The partitions' numbers.")


@message
class DescribeLogDirsRequest(Message):
    """Asks what the log directories of a broker hold."""

    topics: list[DescribableLogDirTopic] | None = array(
        DescribableLogDirTopic, "The topics to describe; null all.", nullable_since=0, default=None
    )


@message
class DescribeLogDirsPartition(Message):
    """One element of `DescribeLogDirsTopic.partitions`."""

    partition_index: int = int32("The partition's number.")
    partition_size: int = int64("The log's size in bytes.")
    offset_lag: int = int64("How many offsets the replica is behind.")
    is_future_key: bool = boolean("Whether the replica is moving to this directory.")


@message
class DescribeLogDirsTopic(Message):
    """One element of `DescribeLogDirsResult.topics`."""

    name: str = string("The topic's name.")
    partitions: list[DescribeLogDirsPartition] = array(
        DescribeLogDirsPartition, "The replicas, by partition."
    )


@message
class DescribeLogDirsResult(Message):
    """One element of `DescribeLogDirsResponse.results`."""

    error_code: int = int16("The error, or 0.")
    log_dir: str = string("The directory's path.")
    topics: list[DescribeLogDirsTopic] = array(
        DescribeLogDirsTopic, "The replicas there, by topic."
    )


@message
class DescribeLogDirsResponse(Message):
    """Size and lag of each replica."""

    throttle_time_ms: int = int32(
        "How long the client should pause because of a quota, in ms; 0 if not at all."
    )
    results: list[DescribeLogDirsResult] = array(
        DescribeLogDirsResult, "One result for each log directory."
    )
