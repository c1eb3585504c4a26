"""OffsetCommit (8), versions 0-8, OffsetFetch (9), versions 0-8, OffsetDelete (47), version 0.

- Version 0 of OffsetCommit and OffsetFetch is for consumers of Kafka 0.8, whose offsets are in
  ZooKeeper.
- Throttling by the client (KIP-219) begins with version 4 of OffsetCommit and OffsetFetch.
- OffsetFetch 8 adds requests for several groups (KIP-709).
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
    """A partition, and the offset to commit: an element of
    `OffsetCommitRequestTopic.partitions`."""

    partition_index: int = int32("The partition number.")
    committed_offset: int = int64("The offset of the next record to consume.")
    committed_leader_epoch: int = int32(
        "The leader epoch of the last consumed record, or -1.", since=6, ignorable=True, default=-1
    )
    commit_timestamp: int = int64(
        "The commit timestamp, in ms; -1 for the current time of the broker.",
        since=1,
        until=1,
        default=-1,
    )
    committed_metadata: str | None = string(
        "Metadata of the commit: any text, which OffsetFetch returns.", nullable_since=0
    )


@message
class OffsetCommitRequestTopic(Message):
    """A topic with the offsets to commit: an element of `OffsetCommitRequest.topics`."""

    name: str = string("The topic name.")
    partitions: list[OffsetCommitRequestPartition] = array(
        OffsetCommitRequestPartition, "The offsets to commit."
    )


@message
class OffsetCommitRequest(Message):
    """Commits offsets of a group."""

    group_id: str = string("The group id.")
    generation_id: int = int32(
        "The generation of the member; -1 for a consumer without group membership.",
        since=1,
        ignorable=True,
        default=-1,
    )
    member_id: str = string(
        "The member id; empty until the coordinator assigns a member id.", since=1, ignorable=True
    )
    group_instance_id: str | None = string(
        "The group instance id of a static member (KIP-345), or null.",
        since=7,
        nullable_since=7,
        default=None,
    )
    retention_time_ms: int = int64(
        "The retention time of the offsets, in ms; -1 for the broker's default.",
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
    """The result for one partition: an element of `OffsetCommitResponseTopic.partitions`."""

    partition_index: int = int32("The partition number.")
    error_code: int = int16("The error, or 0.")


@message
class OffsetCommitResponseTopic(Message):
    """A topic with the results for its partitions: an element of `OffsetCommitResponse.topics`."""

    name: str = string("The topic name.")
    partitions: list[OffsetCommitResponsePartition] = array(
        OffsetCommitResponsePartition, "The results, by partition."
    )


@message
class OffsetCommitResponse(Message):
    """The result for each offset to commit."""

    throttle_time_ms: int = int32(
        "The time for which the client should pause because of a quota, in ms; 0 for none.",
        since=3,
        ignorable=True,
    )
    topics: list[OffsetCommitResponseTopic] = array(
        OffsetCommitResponseTopic, "The results, by topic."
    )


@message
class OffsetFetchRequestTopic(Message):
    """A topic with the partitions to look up: an element of `OffsetFetchRequest.topics`, a field of
    the versions before 8."""

    name: str = string("The topic name.")
    partition_indexes: list[int] = int32_array("The partition numbers.")


@message
class OffsetFetchRequestTopics(Message):
    """A topic with the partitions to look up: an element of `OffsetFetchRequestGroup.topics`."""

    name: str = string("The topic name.")
    partition_indexes: list[int] = int32_array("The partition numbers.")


@message
class OffsetFetchRequestGroup(Message):
    """A group with the partitions to look up: an element of `OffsetFetchRequest.groups`."""

    group_id: str = string("The group id.")
    topics: list[OffsetFetchRequestTopics] | None = array(
        OffsetFetchRequestTopics,
        "The partitions to look up; null for all partitions with committed offsets of the group.",
        nullable_since=0,
        default=None,
    )


@message
class OffsetFetchRequest(Message):
    """Requests the committed offsets of groups."""

    group_id: str = string("The group id.", until=7)
    topics: list[OffsetFetchRequestTopic] | None = array(
        OffsetFetchRequestTopic,
        "The partitions to look up; null for all partitions with committed offsets of the group.",
        until=7,
        nullable_since=2,
    )
    groups: list[OffsetFetchRequestGroup] = array(
        OffsetFetchRequestGroup, "The partitions to look up, by group.", since=8
    )
    require_stable: bool = boolean(
        "Whether the broker returns error 88 for offsets of an open transaction (KIP-447).",
        since=7,
    )


@message
class OffsetFetchResponsePartition(Message):
    """The committed offset of one partition (before version 8): an element of
    `OffsetFetchResponseTopic.partitions`."""

    partition_index: int = int32("The partition number.")
    committed_offset: int = int64("The committed offset, or -1.")
    committed_leader_epoch: int = int32(
        "The leader epoch of the last consumed record, or -1.", since=5, ignorable=True, default=-1
    )
    metadata: str | None = string("The metadata of the commit.", nullable_since=0)
    error_code: int = int16("The error, or 0.")


@message
class OffsetFetchResponseTopic(Message):
    """A topic with the committed offsets of its partitions (before version 8): an element of
    `OffsetFetchResponse.topics`."""

    name: str = string("The topic name.")
    partitions: list[OffsetFetchResponsePartition] = array(
        OffsetFetchResponsePartition, "The offsets, by partition."
    )


@message
class OffsetFetchResponsePartitions(Message):
    """The committed offset of one partition: an element of
    `OffsetFetchResponseTopics.partitions`."""

    partition_index: int = int32("The partition number.")
    committed_offset: int = int64("The committed offset, or -1.")
    committed_leader_epoch: int = int32(
        "The leader epoch of the last consumed record, or -1.", default=-1
    )
    metadata: str | None = string("The metadata of the commit.", nullable_since=0)
    error_code: int = int16("The error, or 0.")


@message
class OffsetFetchResponseTopics(Message):
    """A topic with the committed offsets of its partitions: an element of
    `OffsetFetchResponseGroup.topics`."""

    name: str = string("The topic name.")
    partitions: list[OffsetFetchResponsePartitions] = array(
        OffsetFetchResponsePartitions, "The offsets, by partition."
    )


@message
class OffsetFetchResponseGroup(Message):
    """A group with its committed offsets: an element of `OffsetFetchResponse.groups`."""

    group_id: str = string("The group id.")
    topics: list[OffsetFetchResponseTopics] = array(
        OffsetFetchResponseTopics, "The offsets, by topic."
    )
    error_code: int = int16("The error, or 0.")


@message
class OffsetFetchResponse(Message):
    """The committed offsets."""

    throttle_time_ms: int = int32(
        "The time for which the client should pause because of a quota, in ms; 0 for none.",
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
    """A partition whose committed offset is deleted: an element of
    `OffsetDeleteRequestTopic.partitions`."""

    partition_index: int = int32("The partition number.")


@message
class OffsetDeleteRequestTopic(Message):
    """A topic with the partitions whose committed offsets are deleted: an element of
    `OffsetDeleteRequest.topics`."""

    name: str = string("The topic name.")
    partitions: list[OffsetDeleteRequestPartition] = array(
        OffsetDeleteRequestPartition, "The partitions whose offsets are deleted."
    )


@message
class OffsetDeleteRequest(Message):
    """Deletes committed offsets of topics to which the group does not subscribe (KIP-496)."""

    group_id: str = string("The group id.")
    topics: list[OffsetDeleteRequestTopic] = array(
        OffsetDeleteRequestTopic, "The partitions whose offsets are deleted, by topic."
    )


@message
class OffsetDeleteResponsePartition(Message):
    """The result for one partition: an element of `OffsetDeleteResponseTopic.partitions`."""

    partition_index: int = int32("The partition number.")
    error_code: int = int16("The error, or 0.")


@message
class OffsetDeleteResponseTopic(Message):
    """A topic with the results for its partitions: an element of `OffsetDeleteResponse.topics`."""

    name: str = string("The topic name.")
    partitions: list[OffsetDeleteResponsePartition] = array(
        OffsetDeleteResponsePartition, "The results, by partition."
    )


@message
class OffsetDeleteResponse(Message):
    """The result for each offset to delete."""

    error_code: int = int16("The error, or 0.")
    throttle_time_ms: int = int32(
        "The time for which the client should pause because of a quota, in ms; 0 for none."
    )
    topics: list[OffsetDeleteResponseTopic] = array(
        OffsetDeleteResponseTopic, "The results, by topic."
    )
