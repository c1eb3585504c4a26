"""ListOffsets (2), versions 0-7, and OffsetForLeaderEpoch (23), versions 0-4.

ListOffsets: 1 one offset instead of many. 2 isolation level, throttle time. 3 the client throttles
itself. 4 leader epochs. 5 error 78 possible. 6 flexible. 7 the largest timestamp (KIP-734).
OffsetForLeaderEpoch: 1 the epoch in the answer. 2 current leader epoch, throttle time. 3 replica
id. 4 flexible.
"""

from __future__ import annotations

from pybroker.wire.schema import (
    Message,
    array,
    int8,
    int16,
    int32,
    int64,
    int64_array,
    message,
    string,
)


@message
class ListOffsetsPartition(Message):
    """One element of `ListOffsetsTopic.partitions`."""

    partition_index: int = int32("The partition's number.")
    current_leader_epoch: int = int32(
        "The leader epoch that the client knows; -1 skips the check (KIP-320).",
        since=4,
        ignorable=True,
        default=-1,
    )
    timestamp: int = int64("A time in ms, or -1 latest, -2 earliest, -3 of the largest timestamp.")
    max_num_offsets: int = int32("How many offsets to answer.", until=0, default=1)


@message
class ListOffsetsTopic(Message):
    """One element of `ListOffsetsRequest.topics`."""

    name: str = string("The topic's name.")
    partitions: list[ListOffsetsPartition] = array(
        ListOffsetsPartition, "The partitions to look up."
    )


@message
class ListOffsetsRequest(Message):
    """Asks which offset belongs to a time, or to an end of the log."""

    replica_id: int = int32("The follower's broker id; -1 for a consumer.")
    isolation_level: int = int8("0 read_uncommitted, 1 read_committed (KIP-98).", since=2)
    topics: list[ListOffsetsTopic] = array(ListOffsetsTopic, "The partitions to look up, by topic.")


@message
class ListOffsetsPartitionResponse(Message):
    """One element of `ListOffsetsTopicResponse.partitions`."""

    partition_index: int = int32("The partition's number.")
    error_code: int = int16("The error, or 0.")
    old_style_offsets: list[int] = int64_array("Segment starts, newest first.", until=0)
    timestamp: int = int64("The found record's timestamp, or -1.", since=1, default=-1)
    offset: int = int64("The offset found, or -1.", since=1, default=-1)
    leader_epoch: int = int32(
        "The epoch of the leader that wrote it, or -1.", since=4, ignorable=True, default=-1
    )


@message
class ListOffsetsTopicResponse(Message):
    """One element of `ListOffsetsResponse.topics`."""

    name: str = string("The topic's name.")
    partitions: list[ListOffsetsPartitionResponse] = array(
        ListOffsetsPartitionResponse, "The results, by partition."
    )


@message
class ListOffsetsResponse(Message):
    """The offset found in each partition."""

    throttle_time_ms: int = int32(
        "How long the client should pause because of a quota, in ms; 0 if not at all.",
        since=2,
        ignorable=True,
    )
    topics: list[ListOffsetsTopicResponse] = array(
        ListOffsetsTopicResponse, "The results, by topic."
    )


@message
class OffsetForLeaderPartition(Message):
    """One element of `OffsetForLeaderTopic.partitions`."""

    partition: int = int32("The partition's number.")
    current_leader_epoch: int = int32(
        "The leader epoch that the client knows; -1 skips the check (KIP-320).",
        since=2,
        ignorable=True,
        default=-1,
    )
    leader_epoch: int = int32("The epoch whose end is asked for.")


@message
class OffsetForLeaderTopic(Message):
    """One element of `OffsetForLeaderEpochRequest.topics`."""

    topic: str = string("The topic's name.")
    partitions: list[OffsetForLeaderPartition] = array(
        OffsetForLeaderPartition, "The partitions to look up."
    )


@message
class OffsetForLeaderEpochRequest(Message):
    """Asks where a leader epoch ended (KIP-101, KIP-320)."""

    replica_id: int = int32(
        "The follower's broker id, -1 a consumer, -2 unknown.", since=3, ignorable=True, default=-2
    )
    topics: list[OffsetForLeaderTopic] = array(
        OffsetForLeaderTopic, "The partitions to look up, by topic."
    )


@message
class EpochEndOffset(Message):
    """One element of `OffsetForLeaderTopicResult.partitions`."""

    error_code: int = int16("The error, or 0.")
    partition: int = int32("The partition's number.")
    leader_epoch: int = int32(
        "The largest epoch at or below the one asked for, or -1.",
        since=1,
        ignorable=True,
        default=-1,
    )
    end_offset: int = int64("Where that epoch ends, or -1.", default=-1)


@message
class OffsetForLeaderTopicResult(Message):
    """One element of `OffsetForLeaderEpochResponse.topics`."""

    topic: str = string("The topic's name.")
    partitions: list[EpochEndOffset] = array(EpochEndOffset, "The results, by partition.")


@message
class OffsetForLeaderEpochResponse(Message):
    """Where each epoch ended."""

    throttle_time_ms: int = int32(
        "How long the client should pause because of a quota, in ms; 0 if not at all.",
        since=2,
        ignorable=True,
    )
    topics: list[OffsetForLeaderTopicResult] = array(
        OffsetForLeaderTopicResult, "The results, by topic."
    )
