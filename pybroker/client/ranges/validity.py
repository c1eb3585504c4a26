"""Checks whether ranges that were made earlier can still be read as they were, by the current state
of their partitions.

A log that begins behind a range's start has lost records of it. Other missing offsets between the
log's start and its end were compacted, or are markers: no loss. A topic is another one if its id
differs, or its leader epoch is lower than before. An unclean election cut a range off if the leader
epoch in which it was made ends before the range does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

from pybroker.client.backoff import Deadline
from pybroker.client.cluster import Cluster
from pybroker.client.epoch_lookup import EpochEnd, epoch_ends
from pybroker.client.errors import ClientError, UnsupportedByBroker
from pybroker.client.leader_calls import request_limit_s
from pybroker.client.metadata import ClusterView, TopicInfo
from pybroker.client.offset_lookup import EARLIEST, OffsetAnswer, list_offsets
from pybroker.client.ranges.model import PartitionRange, RangeFailed, RangeFault
from pybroker.errors import ErrorCode
from pybroker.model import NO_EPOCH, NO_OFFSET, NO_TOPIC_ID, TopicPartition

UNKNOWN_CODES = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)


@dataclass(frozen=True, slots=True)
class CurrentPartition:
    """A partition at one moment. `topic_id` as UUID text, "" if topics have none. `epoch_end` is
    the end, in the leader's log, of the leader epoch in the range. -1: unknown."""

    known: bool
    topic_id: str = ""
    leader_epoch: int = NO_EPOCH
    log_start: int = NO_OFFSET
    epoch_end: int = NO_OFFSET


def topic_id_text(topic: TopicInfo) -> str:
    return "" if topic.topic_id == NO_TOPIC_ID else str(topic.topic_id)


def from_metadata(view: ClusterView, topic_partition: TopicPartition) -> CurrentPartition | None:
    """Return the partition as metadata shows it; None if it shows nothing at the moment. Raises
    ClientError if the topic may not be seen."""
    topic = view.topics.get(topic_partition.topic)
    if topic is None:
        return None
    if topic.error in UNKNOWN_CODES:
        return CurrentPartition(known=False)
    if topic.error != ErrorCode.NONE:
        return None
    info = topic.partitions.get(topic_partition.partition)
    if info is None:
        return CurrentPartition(known=False)
    return CurrentPartition(True, topic_id_text(topic), info.leader_epoch)


async def current_partitions(
    cluster: Cluster, ranges: Collection[PartitionRange], deadline: Deadline, *, once: bool = False
) -> dict[TopicPartition, CurrentPartition | ClientError]:
    """Return one answer for each partition, from fresh metadata and from its leader. With `once`
    errors are not retried. Raises ClientError."""
    wanted = {item.topic_partition: item for item in ranges}
    topics = sorted({key.topic for key in wanted})
    view = await cluster.metadata(topics, timeout_s=request_limit_s(cluster, deadline))
    told = {key: from_metadata(view, key) for key in wanted}
    present = [key for key, current in told.items() if current is None or current.known]
    epochs = {key: wanted[key].leader_epoch for key in present if wanted[key].leader_epoch >= 0}
    starts, ends = await asyncio.gather(
        list_offsets(
            cluster,
            dict.fromkeys(present, EARLIEST),
            isolation_level="read_uncommitted",
            deadline=deadline,
            once=once,
        ),
        epoch_ends(cluster, epochs, deadline=deadline, once=once),
    )
    return {
        key: current
        if current is not None and not current.known
        else _put_together(current or CurrentPartition(True), starts[key], ends.get(key))
        for key, current in told.items()
    }


def _put_together(
    told: CurrentPartition, start: OffsetAnswer, end: EpochEnd | None
) -> CurrentPartition | ClientError:
    if start.error is not None:
        return start.error
    if end is not None and end.error and not isinstance(end.error, UnsupportedByBroker):
        return end.error
    return replace(told, log_start=start.offset, epoch_end=end.end_offset if end else NO_OFFSET)


def faults(
    wanted: PartitionRange, position: int, current: CurrentPartition
) -> Iterator[RangeFailed]:
    """Yield the reasons, most serious first, why reading from `position` to the end of the range
    may not give the records that were there when the range was made."""
    if not current.known:
        yield gone(wanted, position)
    elif wanted.topic_id and current.topic_id and wanted.topic_id != current.topic_id:
        yield _failed(
            wanted, position, RangeFault.RECREATED,
            f"the topic was deleted and created anew (its id is {current.topic_id}, was"
            f" {wanted.topic_id}): take a new snapshot, without an earlier one to go on from",
        )  # fmt: skip
    elif not wanted.topic_id and NO_EPOCH < current.leader_epoch < wanted.leader_epoch:
        yield _failed(
            wanted, position, RangeFault.RECREATED,
            f"the topic was deleted and created anew (its leader epoch is {current.leader_epoch},"
            f" was {wanted.leader_epoch}): take a new snapshot, without an earlier one to go on"
            " from",
        )  # fmt: skip
    else:
        if current.log_start > position and position < wanted.end:
            yield aged_out(wanted, position, current.log_start)
        if NO_OFFSET < current.epoch_end < wanted.end:
            yield _failed(
                wanted, max(current.epoch_end, wanted.start), RangeFault.TRUNCATED,
                f"leader epoch {wanted.leader_epoch} ends at {current.epoch_end} now, the range at"
                f" {wanted.end}: an unclean election took acknowledged records; take a new snapshot"
                " (and see unclean.leader.election.enable)",
            )  # fmt: skip


def gone(wanted: PartitionRange, position: int) -> RangeFailed:
    """Return the error for a partition that does not exist."""
    return _failed(
        wanted, position, RangeFault.GONE,
        "the cluster has no such partition any more: take a new snapshot",
    )  # fmt: skip


def aged_out(wanted: PartitionRange, position: int, log_start: int) -> RangeFailed:
    """Return the error for the records between `position` and the current log start."""
    return _failed(
        wanted, position, RangeFault.AGED_OUT,
        f"the partition begins at {log_start} now, retention or DeleteRecords removed earlier"
        " records: take a new snapshot, keep records longer (retention.ms, retention.bytes), or"
        " continue without them (failOnDataLoss=false)",
    )  # fmt: skip


def _failed(wanted: PartitionRange, offset: int, reason: RangeFault, text: str) -> RangeFailed:
    return RangeFailed(wanted.topic_partition, offset, reason, text)
