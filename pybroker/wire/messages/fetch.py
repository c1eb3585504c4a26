"""Fetch (1), versions 4-12. Older versions would need the message formats 0 and 1.

Changes without a new field: version 6 adds error 56 (KAFKA_STORAGE_ERROR), version 8 adds
throttling by the client (KIP-219), version 10 adds zstd.
"""

from __future__ import annotations

from typing import Final

from pybroker.wire.primitives import Buffer
from pybroker.wire.schema import (
    Message,
    array,
    int8,
    int16,
    int32,
    int32_array,
    int64,
    message,
    optional,
    records,
    string,
)

# Kafka assigns its tags from 0 on. A receiver skips an unknown tag (KIP-482).
REPLICA_INCARNATION_TAG: Final = 10_000


@message
class FetchPartition(Message):
    """A partition to fetch, and the offset from which to fetch: an element of
    `FetchTopic.partitions`."""

    partition: int = int32("The partition number.")
    current_leader_epoch: int = int32(
        "The current leader epoch in the client's metadata; -1 skips the check (KIP-320).",
        since=9,
        ignorable=True,
        default=-1,
    )
    fetch_offset: int = int64("The fetch offset.")
    last_fetched_epoch: int = int32(
        "The leader epoch of the follower's last record, or -1 (KIP-595).", since=12, default=-1
    )
    log_start_offset: int = int64(
        "The log start offset of the follower; -1 for a consumer.",
        since=5,
        ignorable=True,
        default=-1,
    )
    partition_max_bytes: int = int32("The maximum number of bytes to return for this partition.")


@message
class FetchTopic(Message):
    """A topic with its partitions to fetch: an element of `FetchRequest.topics`."""

    topic: str = string("The topic name.")
    partitions: list[FetchPartition] = array(FetchPartition, "The partitions to fetch.")


@message
class ForgottenTopic(Message):
    """A topic with its partitions to remove from the fetch session: an element of
    `FetchRequest.forgotten_topics_data`."""

    topic: str = string("The topic name.")
    partitions: list[int] = int32_array("The partitions to remove from the fetch session.")


@message
class FetchRequest(Message):
    """Fetches record batches for a consumer or a follower."""

    cluster_id: str | None = string(
        "The cluster id, or null if the sender does not know it.",
        since=12,
        nullable_since=12,
        tag=0,
        ignorable=True,
        default=None,
    )
    replica_id: int = int32("The broker id of the follower; -1 for a consumer.", default=-1)
    max_wait_ms: int = int32("The maximum time to wait for min_bytes, in ms.")
    min_bytes: int = int32("The number of bytes for which the broker waits before it responds.")
    max_bytes: int = int32(
        "The maximum number of bytes in the response; the first batch may exceed it (KIP-74).",
        default=0x7FFFFFFF,
    )
    isolation_level: int = int8(
        "The isolation level: 0 read_uncommitted, 1 read_committed (KIP-98)."
    )
    session_id: int = int32("The fetch session id; 0 for none (KIP-227).", since=7, ignorable=True)
    session_epoch: int = int32(
        "The fetch session epoch; 0 requests a new session, -1 a fetch without a session.",
        since=7,
        ignorable=True,
        default=-1,
    )
    topics: list[FetchTopic] = array(FetchTopic, "The partitions to fetch, by topic.")
    forgotten_topics_data: list[ForgottenTopic] = array(
        ForgottenTopic, "The partitions to remove from the fetch session, by topic.", since=7
    )
    rack_id: str = string("The rack of the consumer (KIP-392).", since=11, ignorable=True)
    replica_incarnation: int = int64(
        "The incarnation of a pybroker follower (how often its broker id registered), or -1.",
        since=12,
        tag=REPLICA_INCARNATION_TAG,
        ignorable=True,
        default=-1,
    )


@message
class DivergingEpoch(Message):
    """Where the leader's log differs from the follower's log (KIP-595): the value of
    `PartitionData.diverging_epoch`."""

    epoch: int = int32(
        "The largest leader epoch in the leader's log up to the follower's last epoch.",
        default=-1,
    )
    end_offset: int = int64("The end offset of that leader epoch.", default=-1)


@message
class LeaderIdAndEpoch(Message):
    """The leader of the partition: the value of `PartitionData.current_leader`."""

    leader_id: int = int32("The broker id of the leader; -1 if the leader is unknown.", default=-1)
    leader_epoch: int = int32("The leader epoch; -1 if unknown.", default=-1)


@message
class SnapshotId(Message):
    """The snapshot that a follower of KRaft fetches: the value of `PartitionData.snapshot_id`."""

    end_offset: int = int64("The end offset of the snapshot.", default=-1)
    epoch: int = int32("The epoch of the snapshot.", default=-1)


@message
class AbortedTransaction(Message):
    """A transaction that was aborted: an element of `PartitionData.aborted_transactions`."""

    producer_id: int = int64("The producer id of the aborted transaction.")
    first_offset: int = int64("The first offset of the transaction.")


@message
class PartitionData(Message):
    """The result for one partition, with its record batches: an element of
    `FetchableTopicResponse.partitions`."""

    partition_index: int = int32("The partition number.")
    error_code: int = int16("The error, or 0.")
    high_watermark: int = int64("The high watermark.")
    last_stable_offset: int = int64(
        "The last stable offset: all transactions below it are complete.", default=-1
    )
    log_start_offset: int = int64("The log start offset.", since=5, ignorable=True, default=-1)
    diverging_epoch: DivergingEpoch | None = optional(
        DivergingEpoch,
        "The leader epoch at which the follower's log diverges from the leader's log (KIP-595).",
        since=12,
        tag=0,
    )
    current_leader: LeaderIdAndEpoch | None = optional(
        LeaderIdAndEpoch,
        "The current leader, if another broker leads the partition.",
        since=12,
        tag=1,
    )
    snapshot_id: SnapshotId | None = optional(
        SnapshotId, "The snapshot to fetch; only KRaft uses it.", since=12, tag=2
    )
    aborted_transactions: list[AbortedTransaction] | None = array(
        AbortedTransaction,
        "The aborted transactions, for read_committed consumers; null for read_uncommitted.",
        nullable_since=0,
        default=None,
    )
    preferred_read_replica: int = int32(
        "The preferred read replica in the consumer's rack, or -1 (KIP-392).", since=11, default=-1
    )
    records: Buffer | None = records(
        "Record batches, never null; the first batch may begin below the fetch offset.",
        nullable_since=0,
        default=b"",
    )


@message
class FetchableTopicResponse(Message):
    """A topic with the results for its partitions: an element of `FetchResponse.responses`."""

    topic: str = string("The topic name.")
    partitions: list[PartitionData] = array(PartitionData, "The results, by partition.")


@message
class FetchResponse(Message):
    """The record batches and the high watermark of each partition."""

    throttle_time_ms: int = int32(
        "The time for which the client should pause because of a quota, in ms; 0 for none."
    )
    error_code: int = int16("The error, or 0.", since=7, ignorable=True)
    session_id: int = int32("The fetch session id, or 0.", since=7)
    responses: list[FetchableTopicResponse] = array(
        FetchableTopicResponse, "The results, by topic."
    )
