"""ListOffsets (2), versions 0-7, and OffsetForLeaderEpoch (23), versions 0-4.

Changes of ListOffsets without a new field: version 3 adds throttling by the client (KIP-219),
version 5 adds error 78 (OFFSET_NOT_AVAILABLE), version 7 adds the lookup of the maximum timestamp
(KIP-734).
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
    """A partition, and the timestamp to look up: an element of `ListOffsetsTopic.partitions`."""

    partition_index: int = int32("The partition number.")
    current_leader_epoch: int = int32(
        "The current leader epoch in the client's metadata; -1 skips the check (KIP-320).",
        since=4,
        ignorable=True,
        default=-1,
    )
    timestamp: int = int64(
        "The timestamp to look up, in ms; -1 latest, -2 earliest, -3 maximum timestamp."
    )
    max_num_offsets: int = int32("The maximum number of offsets to return.", until=0, default=1)


@message
class ListOffsetsTopic(Message):
    """A topic with the partitions to look up: an element of `ListOffsetsRequest.topics`."""

    name: str = string("The topic name.")
    partitions: list[ListOffsetsPartition] = array(
        ListOffsetsPartition, "The partitions to look up."
    )


@message
class ListOffsetsRequest(Message):
    """Requests offsets of partitions: the earliest, the latest, or the one for a timestamp."""

    replica_id: int = int32("The broker id of the follower; -1 for a consumer.")
    isolation_level: int = int8(
        "The isolation level: 0 read_uncommitted, 1 read_committed (KIP-98).", since=2
    )
    topics: list[ListOffsetsTopic] = array(ListOffsetsTopic, "The partitions to look up, by topic.")


@message
class ListOffsetsPartitionResponse(Message):
    """The offset for one partition: an element of `ListOffsetsTopicResponse.partitions`."""

    partition_index: int = int32("The partition number.")
    error_code: int = int16("The error, or 0.")
    old_style_offsets: list[int] = int64_array(
        "The base offsets of segments, the newest first.", until=0
    )
    timestamp: int = int64("The timestamp of the found record, or -1.", since=1, default=-1)
    offset: int = int64("The found offset, or -1.", since=1, default=-1)
    leader_epoch: int = int32(
        "The leader epoch of the found record, or -1.", since=4, ignorable=True, default=-1
    )


@message
class ListOffsetsTopicResponse(Message):
    """A topic with the offsets for its partitions: an element of `ListOffsetsResponse.topics`."""

    name: str = string("The topic name.")
    partitions: list[ListOffsetsPartitionResponse] = array(
        ListOffsetsPartitionResponse, "The results, by partition."
    )


@message
class ListOffsetsResponse(Message):
    """The found offset of each partition."""

    throttle_time_ms: int = int32(
        "The time for which the client should pause because of a quota, in ms; 0 for none.",
        since=2,
        ignorable=True,
    )
    topics: list[ListOffsetsTopicResponse] = array(
        ListOffsetsTopicResponse, "The results, by topic."
    )


@message
class OffsetForLeaderPartition(Message):
    """A partition, and the leader epoch to look up: an element of
    `OffsetForLeaderTopic.partitions`."""

    partition: int = int32("The partition number.")
    current_leader_epoch: int = int32(
        "The current leader epoch in the client's metadata; -1 skips the check (KIP-320).",
        since=2,
        ignorable=True,
        default=-1,
    )
    leader_epoch: int = int32("The leader epoch whose end offset is requested.")


@message
class OffsetForLeaderTopic(Message):
    """A topic with the partitions to look up: an element of
    `OffsetForLeaderEpochRequest.topics`."""

    topic: str = string("The topic name.")
    partitions: list[OffsetForLeaderPartition] = array(
        OffsetForLeaderPartition, "The partitions to look up."
    )


@message
class OffsetForLeaderEpochRequest(Message):
    """Requests the end offset of a leader epoch (KIP-101, KIP-320)."""

    replica_id: int = int32(
        "The broker id of the follower; -1 for a consumer, -2 for unknown.",
        since=3,
        ignorable=True,
        default=-2,
    )
    topics: list[OffsetForLeaderTopic] = array(
        OffsetForLeaderTopic, "The partitions to look up, by topic."
    )


@message
class EpochEndOffset(Message):
    """The result for one partition: an element of `OffsetForLeaderTopicResult.partitions`."""

    error_code: int = int16("The error, or 0.")
    partition: int = int32("The partition number.")
    leader_epoch: int = int32(
        "The largest leader epoch in the leader's log up to the requested epoch, or -1.",
        since=1,
        ignorable=True,
        default=-1,
    )
    end_offset: int = int64("The end offset of that leader epoch, or -1.", default=-1)


@message
class OffsetForLeaderTopicResult(Message):
    """A topic with the results for its partitions: an element of
    `OffsetForLeaderEpochResponse.topics`."""

    topic: str = string("The topic name.")
    partitions: list[EpochEndOffset] = array(EpochEndOffset, "The results, by partition.")


@message
class OffsetForLeaderEpochResponse(Message):
    """The end offset of each requested leader epoch."""

    throttle_time_ms: int = int32(
        "The time for which the client should pause because of a quota, in ms; 0 for none.",
        since=2,
        ignorable=True,
    )
    topics: list[OffsetForLeaderTopicResult] = array(
        OffsetForLeaderTopicResult, "The results, by topic."
    )
