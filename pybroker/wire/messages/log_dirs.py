"""Log directories: AlterReplicaLogDirs (34) and DescribeLogDirs (35), versions 0-2 each.

Changes in version 1: throttling by the client (KIP-219). Version 2: flexible.
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
    """A topic with the partitions whose replicas move to the directory: an element of
    `AlterReplicaLogDir.topics`."""

    name: str = string("The topic name.")
    partitions: list[int] = int32_array("The partition numbers.")


@message
class AlterReplicaLogDir(Message):
    """A log directory, and the replicas to move to it: an element of
    `AlterReplicaLogDirsRequest.dirs`."""

    path: str = string("The path of the log directory.")
    topics: list[AlterReplicaLogDirTopic] = array(
        AlterReplicaLogDirTopic, "The replicas to move to the directory."
    )


@message
class AlterReplicaLogDirsRequest(Message):
    """Moves replicas between the log directories of the broker."""

    dirs: list[AlterReplicaLogDir] = array(
        AlterReplicaLogDir, "The replicas to move, by target directory."
    )


@message
class AlterReplicaLogDirPartitionResult(Message):
    """The result for one partition: an element of `AlterReplicaLogDirTopicResult.partitions`."""

    partition_index: int = int32("The partition number.")
    error_code: int = int16("The error, or 0.")


@message
class AlterReplicaLogDirTopicResult(Message):
    """A topic with the results for its partitions: an element of
    `AlterReplicaLogDirsResponse.results`."""

    topic_name: str = string("The topic name.")
    partitions: list[AlterReplicaLogDirPartitionResult] = array(
        AlterReplicaLogDirPartitionResult, "The results, by partition."
    )


@message
class AlterReplicaLogDirsResponse(Message):
    """The result for each move of a replica."""

    throttle_time_ms: int = int32(
        "The time for which the client should pause because of a quota, in ms; 0 for none."
    )
    results: list[AlterReplicaLogDirTopicResult] = array(
        AlterReplicaLogDirTopicResult, "The results, by topic."
    )


@message
class DescribableLogDirTopic(Message):
    """A topic with the partitions to describe: an element of `DescribeLogDirsRequest.topics`."""

    topic: str = string("The topic name.")
    partitions: list[int] = int32_array("The partition numbers.")


@message
class DescribeLogDirsRequest(Message):
    """Requests the replicas in the log directories of the broker."""

    topics: list[DescribableLogDirTopic] | None = array(
        DescribableLogDirTopic,
        "The topics to describe; null for all topics.",
        nullable_since=0,
        default=None,
    )


@message
class DescribeLogDirsPartition(Message):
    """A replica in the log directory: an element of `DescribeLogDirsTopic.partitions`."""

    partition_index: int = int32("The partition number.")
    partition_size: int = int64("The size of the log, in bytes.")
    offset_lag: int = int64("The offset lag: the number of offsets by which the replica trails.")
    is_future_key: bool = boolean("Whether this is the future replica of a move to this directory.")


@message
class DescribeLogDirsTopic(Message):
    """A topic with its replicas in the log directory: an element of
    `DescribeLogDirsResult.topics`."""

    name: str = string("The topic name.")
    partitions: list[DescribeLogDirsPartition] = array(
        DescribeLogDirsPartition, "The replicas, by partition."
    )


@message
class DescribeLogDirsResult(Message):
    """One log directory with its replicas: an element of `DescribeLogDirsResponse.results`."""

    error_code: int = int16("The error, or 0.")
    log_dir: str = string("The path of the log directory.")
    topics: list[DescribeLogDirsTopic] = array(
        DescribeLogDirsTopic, "The replicas in the directory, by topic."
    )


@message
class DescribeLogDirsResponse(Message):
    """The size and the offset lag of each replica."""

    throttle_time_ms: int = int32(
        "The time for which the client should pause because of a quota, in ms; 0 for none."
    )
    results: list[DescribeLogDirsResult] = array(
        DescribeLogDirsResult, "One result for each log directory of the broker."
    )
