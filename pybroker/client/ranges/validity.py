"""The check whether a range can still be read as it was when it was created.

- Unread records are lost if the log start offset is above the read position.
- The topic was recreated if its topic id differs from the range's. For a range without topic id,
  the topic was recreated if the leader epoch is lower than the range's.
- An unclean election truncated the range if the range's leader epoch ends before the end of the
  range.
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
    """The present state of a range's partition. `topic_id` is a UUID as text, "" if the topic has
    none. `epoch_end` is the end offset of the range's leader epoch in the leader's log. Unknown
    numbers are -1."""

    known: bool
    topic_id: str = ""
    leader_epoch: int = NO_EPOCH
    log_start: int = NO_OFFSET
    epoch_end: int = NO_OFFSET


def topic_id_text(topic: TopicInfo) -> str:
    return "" if topic.topic_id == NO_TOPIC_ID else str(topic.topic_id)


def from_metadata(view: ClusterView, topic_partition: TopicPartition) -> CurrentPartition | None:
    """Return the partition's state in the metadata; None if the metadata does not show whether it
    exists."""
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
    """Return the present state of each range's partition, or the error. With `once`, errors of a
    leader are not retried. Raises ClientError if no broker returns metadata."""
    wanted = {item.topic_partition: item for item in ranges}
    topics = sorted({key.topic for key in wanted})
    view = await cluster.metadata(topics, timeout_s=request_limit_s(cluster, deadline))
    reported = {key: from_metadata(view, key) for key in wanted}
    present = [key for key, current in reported.items() if current is None or current.known]
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
        for key, current in reported.items()
    }


def _put_together(
    current: CurrentPartition, start: OffsetAnswer, end: EpochEnd | None
) -> CurrentPartition | ClientError:
    if start.error is not None:
        return start.error
    if end is not None and end.error and not isinstance(end.error, UnsupportedByBroker):
        return end.error
    epoch_end = end.end_offset if end else NO_OFFSET
    return replace(current, log_start=start.offset, epoch_end=epoch_end)


def faults(
    wanted: PartitionRange, position: int, current: CurrentPartition
) -> Iterator[RangeFailed]:
    """Yield each reason why the records of `wanted` from `position` on may have changed, the most
    serious first."""
    if not current.known:
        yield gone(wanted, position)
    elif wanted.topic_id and current.topic_id and wanted.topic_id != current.topic_id:
        yield _failed(
            wanted, position, RangeFault.RECREATED,
            f"the topic was deleted and recreated (its topic id is {current.topic_id}, "
            f"and was {wanted.topic_id}): take a new snapshot that does not continue "
            "an earlier one",
        )  # fmt: skip
    elif not wanted.topic_id and NO_EPOCH < current.leader_epoch < wanted.leader_epoch:
        yield _failed(
            wanted, position, RangeFault.RECREATED,
            "the topic was deleted and recreated (its leader epoch is "
            f"{current.leader_epoch}, and was {wanted.leader_epoch}): take a new "
            "snapshot that does not continue an earlier one",
        )  # fmt: skip
    else:
        if current.log_start > position and position < wanted.end:
            yield aged_out(wanted, position, current.log_start)
        if NO_OFFSET < current.epoch_end < wanted.end:
            yield _failed(
                wanted, max(current.epoch_end, wanted.start), RangeFault.TRUNCATED,
                f"leader epoch {wanted.leader_epoch} now ends at offset "
                f"{current.epoch_end}, but the range ends at offset {wanted.end}: an "
                "unclean election has removed acknowledged records. Take a new snapshot, "
                "and see the option unclean.leader.election.enable",
            )  # fmt: skip


def gone(wanted: PartitionRange, position: int) -> RangeFailed:
    """Return the exception for a range whose partition does not exist any more."""
    return _failed(
        wanted, position, RangeFault.GONE,
        "the partition does not exist any more: take a new snapshot",
    )  # fmt: skip


def aged_out(wanted: PartitionRange, position: int, log_start: int) -> RangeFailed:
    """Return the exception for a range whose record at `position` is below the log start offset."""
    return _failed(
        wanted, position, RangeFault.AGED_OUT,
        f"the partition now begins at offset {log_start}, because retention or "
        "DeleteRecords has removed earlier records: take a new snapshot, keep "
        "records longer (retention.ms, retention.bytes), or continue without "
        "them (failOnDataLoss=false)",
    )  # fmt: skip


def _failed(wanted: PartitionRange, offset: int, reason: RangeFault, text: str) -> RangeFailed:
    return RangeFailed(wanted.topic_partition, offset, reason, text)
