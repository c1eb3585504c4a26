"""OffsetCommit (8) 0-8, OffsetFetch (9) 0-8, OffsetDelete (47) 0.

OffsetCommit: 1 group membership, commit time. 2 retention time instead of the commit time.
3 throttle time. 4 the client throttles itself. 5 no retention time any more. 6 leader epochs.
7 static members. 8 flexible.
OffsetFetch: 1 offsets of the coordinator instead of the classic nodes in ZooKeeper. 2 null for
everything, an error for the whole. 3 throttle time. 4 the client throttles itself. 5 leader epochs.
6 flexible. 7 stable offsets (KIP-447). 8 several groups (KIP-709).
OffsetDelete is never flexible, and its error stands before the throttle time.
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
class OffsetCommitRequestPartition(Message):
    """One element of `OffsetCommitRequestTopic.partitions`."""

    partition_index: int = int32("The partition's number.")
    committed_offset: int = int64("The offset of the next record to consume.")
    committed_leader_epoch: int = int32(
        "The leader epoch of the last consumed record, or -1.", since=6, ignorable=True, default=-1
    )
    commit_timestamp: int = int64(
        "When the commit was made, in ms; -1 now.", since=1, until=1, default=-1
    )
    committed_metadata: str | None = string("Text that the consumer wants back.", nullable_since=0)


@message
class OffsetCommitRequestTopic(Message):
    """One element of `OffsetCommitRequest.topics`."""

    name: str = string("The topic's name.")
    partitions: list[OffsetCommitRequestPartition] = array(
        OffsetCommitRequestPartition, "The offsets to commit."
    )


@message
class OffsetCommitRequest(Message):
    """Stores how far a group has read."""

    group_id: str = string("The group's id.")
    generation_id: int = int32(
        "The generation; -1 for a consumer without group membership.",
        since=1,
        ignorable=True,
        default=-1,
    )
    member_id: str = string(
        "The member's id; empty before the coordinator gave one.", since=1, ignorable=True
    )
    group_instance_id: str | None = string(
        "The id of a static member (KIP-345), or null.", since=7, nullable_since=7, default=None
    )
    retention_time_ms: int = int64(
        "How long to keep the offsets, in ms; -1 as the broker likes.",
        since=2,
        until=4,
        ignorable=True,
        default=-1,
    )
    topics: list[OffsetCommitRequestTopic] = array(
        OffsetCommitRequestTopic, "The offsets to commit, by topic."
    )


@message
class OffsetCommitResponsePartition(Message):
    """One element of `OffsetCommitResponseTopic.partitions`."""

    partition_index: int = int32("The partition's number.")
    error_code: int = int16("The error, or 0.")


@message
class OffsetCommitResponseTopic(Message):
    """One element of `OffsetCommitResponse.topics`."""

    name: str = string("The topic's name.")
    partitions: list[OffsetCommitResponsePartition] = array(
        OffsetCommitResponsePartition, "The results, by partition."
    )


@message
class OffsetCommitResponse(Message):
    """Whether each offset was stored."""

    throttle_time_ms: int = int32(
        "How long the client should pause because of a quota, in ms; 0 if not at all.",
        since=3,
        ignorable=True,
    )
    topics: list[OffsetCommitResponseTopic] = array(
        OffsetCommitResponseTopic, "The results, by topic."
    )


@message
class OffsetFetchRequestTopic(Message):
    """One element of `OffsetFetchRequest.topics`."""

    name: str = string("The topic's name.")
    partition_indexes: list[int] = int32_array("The partitions' numbers.")


@message
class OffsetFetchRequestTopics(Message):
    """One element of `OffsetFetchRequestGroup.topics`."""

    name: str = string("The topic's name.")
    partition_indexes: list[int] = int32_array("The partitions' numbers.")


@message
class OffsetFetchRequestGroup(Message):
    """One element of `OffsetFetchRequest.groups`."""

    group_id: str = string("The group's id.")
    topics: list[OffsetFetchRequestTopics] | None = array(
        OffsetFetchRequestTopics,
        "The partitions to look up; null for all that the group committed.",
        nullable_since=0,
        default=None,
    )


@message
class OffsetFetchRequest(Message):
    """Asks how far a group has read."""

    group_id: str = string("The group's id.", until=7)
    topics: list[OffsetFetchRequestTopic] | None = array(
        OffsetFetchRequestTopic,
        "The partitions to look up; null for all that the group committed.",
        until=7,
        nullable_since=2,
    )
    groups: list[OffsetFetchRequestGroup] = array(
        OffsetFetchRequestGroup, "The partitions to look up, by group.", since=8
    )
    require_stable: bool = boolean(
        "Whether to answer 88 while a transaction is undecided (KIP-447).", since=7
    )


@message
class OffsetFetchResponsePartition(Message):
    """One element of `OffsetFetchResponseTopic.partitions`."""

    partition_index: int = int32("The partition's number.")
    committed_offset: int = int64("The committed offset, or -1.")
    committed_leader_epoch: int = int32(
        "The leader epoch of the last consumed record, or -1.", since=5, ignorable=True, default=-1
    )
    metadata: str | None = string("The text that came with it.", nullable_since=0)
    error_code: int = int16("The error, or 0.")


@message
class OffsetFetchResponseTopic(Message):
    """One element of `OffsetFetchResponse.topics`."""

    name: str = string("The topic's name.")
    partitions: list[OffsetFetchResponsePartition] = array(
        OffsetFetchResponsePartition, "The offsets, by partition."
    )


@message
class OffsetFetchResponsePartitions(Message):
    """One element of `OffsetFetchResponseTopics.partitions`."""

    partition_index: int = int32("The partition's number.")
    committed_offset: int = int64("The committed offset, or -1.")
    committed_leader_epoch: int = int32(
        "The leader epoch of the last consumed record, or -1.", default=-1
    )
    metadata: str | None = string("The text that came with it.", nullable_since=0)
    error_code: int = int16("The error, or 0.")


@message
class OffsetFetchResponseTopics(Message):
    """One element of `OffsetFetchResponseGroup.topics`."""

    name: str = string("The topic's name.")
    partitions: list[OffsetFetchResponsePartitions] = array(
        OffsetFetchResponsePartitions, "The offsets, by partition."
    )


@message
class OffsetFetchResponseGroup(Message):
    """One element of `OffsetFetchResponse.groups`."""

    group_id: str = string("The group's id.")
    topics: list[OffsetFetchResponseTopics] = array(
        OffsetFetchResponseTopics, "The offsets, by topic."
    )
    error_code: int = int16("The error, or 0.")


@message
class OffsetFetchResponse(Message):
    """The stored offsets."""

    throttle_time_ms: int = int32(
        "How long the client should pause because of a quota, in ms; 0 if not at all.",
        since=3,
        ignorable=True,
    )
    topics: list[OffsetFetchResponseTopic] = array(
        OffsetFetchResponseTopic, "The offsets, by topic.", until=7
    )
    error_code: int = int16("The error, or 0.", since=2, until=7, ignorable=True)
    groups: list[OffsetFetchResponseGroup] = array(
        OffsetFetchResponseGroup, "The offsets, by group.", since=8
    )


@message
class OffsetDeleteRequestPartition(Message):
    """One element of `OffsetDeleteRequestTopic.partitions`."""

    partition_index: int = int32("The partition's number.")


@message
class OffsetDeleteRequestTopic(Message):
    """One element of `OffsetDeleteRequest.topics`."""

    name: str = string("The topic's name.")
    partitions: list[OffsetDeleteRequestPartition] = array(
        OffsetDeleteRequestPartition, "The partitions to forget."
    )


@message
class OffsetDeleteRequest(Message):
    """Forgets offsets of topics that a group no longer reads (KIP-496)."""

    group_id: str = string("The group's id.")
    topics: list[OffsetDeleteRequestTopic] = array(
        OffsetDeleteRequestTopic, "The partitions to forget, by topic."
    )


@message
class OffsetDeleteResponsePartition(Message):
    """One element of `OffsetDeleteResponseTopic.partitions`."""

    partition_index: int = int32("The partition's number.")
    error_code: int = int16("The error, or 0.")


@message
class OffsetDeleteResponseTopic(Message):
    """One element of `OffsetDeleteResponse.topics`."""

    name: str = string("The topic's name.")
    partitions: list[OffsetDeleteResponsePartition] = array(
        OffsetDeleteResponsePartition, "The results, by partition."
    )


@message
class OffsetDeleteResponse(Message):
    """Whether each offset was forgotten."""

    error_code: int = int16("The error, or 0.")
    throttle_time_ms: int = int32(
        "How long the client should pause because of a quota, in ms; 0 if not at all."
    )
    topics: list[OffsetDeleteResponseTopic] = array(
        OffsetDeleteResponseTopic, "The results, by topic."
    )
