"""Waits until appended batches may be acknowledged.

With acks=all, a batch is acknowledged when the high watermark has reached the end of the batch.
With acks=1, it is acknowledged when it is as durable on the leader as flush.messages requires.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

from pybroker.errors import BrokerError, ErrorCode
from pybroker.handlers.context import Services
from pybroker.model import TopicPartition
from pybroker.replication.authority import NEEDED
from pybroker.replication.partition import Partition

R = TypeVar("R")

Fail = Callable[[TopicPartition, R, BrokerError], None]
"""Sets the error of a batch in its result."""


class Waiting(NamedTuple, Generic[R]):
    """A batch that is appended but not acknowledged yet."""

    partition: Partition
    leading_since: int
    """`Partition.leading_since` at the time of the append: the leader epoch in which this broker
    became the leader. If the value has changed, another broker has led since then, and the batch
    may have been truncated."""
    end_offset: int
    acks: int
    result: R
    """The part of the response for the batch."""


async def when_acknowledged(
    services: Services, waiting: list[Waiting[R]], timeout_ms: int, fail: Fail[R]
) -> None:
    """Wait until each batch is acknowledged, or has failed and has its error in its result. After
    `timeout_ms` the remaining batches fail with REQUEST_TIMED_OUT."""
    clock = services.clock
    deadline = clock.monotonic() + max(timeout_ms, 0) / 1000
    pending = waiting
    while pending := [item for item in pending if not is_decided(services, item, fail)]:
        remaining_s = deadline - clock.monotonic()
        if remaining_s <= 0:
            for item in pending:
                error = BrokerError(ErrorCode.REQUEST_TIMED_OUT)
                fail(item.partition.topic_partition, item.result, error)
            break
        first = pending[0]
        # The purgatory of produces counts offsets, not bytes.
        is_lone = len(pending) == 1 and first.acks == -1
        offsets = first.end_offset - first.partition.high_watermark if is_lone else 1
        keys = [item.partition.topic_partition for item in pending]
        await services.replicas.produces.wait(keys, missing_bytes=offsets, timeout_s=remaining_s)


def is_decided(services: Services, item: Waiting[R], fail: Fail[R]) -> bool:
    """Return whether the batch is acknowledged or has failed. If it has failed, call `fail` with
    its error."""
    partition = item.partition
    key = partition.topic_partition
    try:
        if (
            services.replicas.leader(key) is not partition
            or partition.leading_since != item.leading_since
        ):
            raise BrokerError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                f"this broker has lost the leadership of {key} since it appended the batch, "
                "even if it has been elected again",
            )
        if item.acks == 1:
            return partition.log.durable_end >= item.end_offset
        if not partition.may_have_enough_replicas():
            raise BrokerError(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
        if partition.high_watermark >= item.end_offset:
            return True
        services.replicas.require(partition, NEEDED["Produce with acks=all"])
    except BrokerError as error:
        fail(key, item.result, error)
        return True
    return False
