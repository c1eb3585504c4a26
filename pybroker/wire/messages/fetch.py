"""Fetch (1), versions 4-12. Older ones would need conversion to old message formats.

4 isolation level, last stable offset, aborted transactions. 5 log start offsets. 6 error 56
possible. 7 sessions (KIP-227). 8 the client throttles itself. 9 leader epochs (KIP-320). 10 zstd.
11 racks and preferred replicas (KIP-392). 12 flexible, the last fetched epoch (KIP-595).
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

# Apache numbers its tags from 0; a receiver that does not know this one skips it (KIP-482).
REPLICA_INCARNATION_TAG: Final = 10_000


@message
class FetchPartition(Message):
    """One element of `FetchTopic.partitions`."""

    partition: int = int32("The partition's number.")
    current_leader_epoch: int = int32(
        "The leader epoch that the client knows; -1 skips the check (KIP-320).",
        since=9,
        ignorable=True,
        default=-1,
    )
    fetch_offset: int = int64("The offset to start from.")
    last_fetched_epoch: int = int32(
        "The epoch of the follower's last record, or -1 (KIP-595).", since=12, default=-1
    )
    log_start_offset: int = int64(
        "The follower's first offset; -1 for a consumer.", since=5, ignorable=True, default=-1
    )
    partition_max_bytes: int = int32("How many bytes to answer for this partition.")


@message
class FetchTopic(Message):
    """One element of `FetchRequest.topics`."""

    topic: str = string("The topic's name.")
    partitions: list[FetchPartition] = array(FetchPartition, "The partitions to read.")


@message
class ForgottenTopic(Message):
    """One element of `FetchRequest.forgotten_topics_data`."""

    topic: str = string("The topic's name.")
    partitions: list[int] = int32_array("The partitions to remove.")


@message
class FetchRequest(Message):
    """Reads record batches, as a consumer or as a follower."""

    cluster_id: str | None = string(
        "The cluster's id if the sender knows it.",
        since=12,
        nullable_since=12,
        tag=0,
        ignorable=True,
        default=None,
    )
    replica_id: int = int32("The follower's broker id; -1 for a consumer.", default=-1)
    max_wait_ms: int = int32("How long to wait for min_bytes, in ms.")
    min_bytes: int = int32("How many bytes are worth an answer.")
    max_bytes: int = int32(
        "How many bytes the answer may have; the first batch may exceed it (KIP-74).",
        default=0x7FFFFFFF,
    )
    isolation_level: int = int8("0 read_uncommitted, 1 read_committed (KIP-98).")
    session_id: int = int32("The fetch session, or 0 (KIP-227).", since=7, ignorable=True)
    session_epoch: int = int32(
        "The request's number in the session; 0 asks for one, -1 goes without.",
        since=7,
        ignorable=True,
        default=-1,
    )
    topics: list[FetchTopic] = array(FetchTopic, "The partitions to read, by topic.")
    forgotten_topics_data: list[ForgottenTopic] = array(
        ForgottenTopic, "Partitions to remove from the session.", since=7
    )
    rack_id: str = string("Where the consumer is (KIP-392).", since=11, ignorable=True)
    replica_incarnation: int = int64(
        "Of a pybroker follower: how often its id has registered, or -1.",
        since=12,
        tag=REPLICA_INCARNATION_TAG,
        ignorable=True,
        default=-1,
    )


@message
class DivergingEpoch(Message):
    """The content of `PartitionData.diverging_epoch`."""

    epoch: int = int32(
        "The largest epoch, at or below the follower's, that the leader has.", default=-1
    )
    end_offset: int = int64("Where that epoch ends.", default=-1)


@message
class LeaderIdAndEpoch(Message):
    """The content of `PartitionData.current_leader`."""

    leader_id: int = int32("The leader's broker id, or -1.", default=-1)
    leader_epoch: int = int32("The leader's epoch, or -1.", default=-1)


@message
class SnapshotId(Message):
    """The content of `PartitionData.snapshot_id`."""

    end_offset: int = int64("Where the snapshot ends.", default=-1)
    epoch: int = int32("Its epoch.", default=-1)


@message
class AbortedTransaction(Message):
    """One element of `PartitionData.aborted_transactions`."""

    producer_id: int = int64("The producer whose transaction was aborted.")
    first_offset: int = int64("Where the transaction began.")


@message
class PartitionData(Message):
    """One element of `FetchableTopicResponse.partitions`."""

    partition_index: int = int32("The partition's number.")
    error_code: int = int16("The error, or 0.")
    high_watermark: int = int64("The offset below which everything is committed.")
    last_stable_offset: int = int64(
        "The offset below which every transaction is decided.", default=-1
    )
    log_start_offset: int = int64(
        "The first offset that the partition holds.", since=5, ignorable=True, default=-1
    )
    diverging_epoch: DivergingEpoch | None = optional(
        DivergingEpoch,
        "Where the follower's log differs from the leader's (KIP-595).",
        since=12,
        tag=0,
    )
    current_leader: LeaderIdAndEpoch | None = optional(
        LeaderIdAndEpoch, "The leader, if it is another broker.", since=12, tag=1
    )
    snapshot_id: SnapshotId | None = optional(SnapshotId, "Used by KRaft only.", since=12, tag=2)
    aborted_transactions: list[AbortedTransaction] | None = array(
        AbortedTransaction,
        "Transactions that read_committed skips; null for read_uncommitted.",
        nullable_since=0,
        default=None,
    )
    preferred_read_replica: int = int32(
        "A replica nearer to the consumer, or -1 (KIP-392).", since=11, default=-1
    )
    records: Buffer | None = records(
        "Whole batches, the first of which may begin before the offset asked for; never send null.",
        nullable_since=0,
        default=b"",
    )


@message
class FetchableTopicResponse(Message):
    """One element of `FetchResponse.responses`."""

    topic: str = string("The topic's name.")
    partitions: list[PartitionData] = array(PartitionData, "The results, by partition.")


@message
class FetchResponse(Message):
    """The batches of each partition, and how far it is committed."""

    throttle_time_ms: int = int32(
        "How long the client should pause because of a quota, in ms; 0 if not at all."
    )
    error_code: int = int16("The error, or 0.", since=7, ignorable=True)
    session_id: int = int32("The session that holds now, or 0.", since=7)
    responses: list[FetchableTopicResponse] = array(
        FetchableTopicResponse, "The results, by topic."
    )
