"""Truncates a follower's log in a thread. No other code may change the log meanwhile. Committed
records are truncated only if a loss receipt in ZooKeeper permits it (see `Losses`)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final, Protocol

from pybroker.coordinator.zookeeper.loss_receipts import LossReceipt
from pybroker.errors import BrokerError, CoordError, ErrorCode, MalformedNode
from pybroker.model import TopicPartition
from pybroker.ports import Blocking
from pybroker.replication.follower import (
    Pause,
    TruncateTo,
    Truncation,
    cut_offsets,
    cuts_committed,
    may_cut_committed,
)
from pybroker.replication.partition import Partition

log = logging.getLogger(__name__)

_RECEIPT_WAIT_S: Final = 5.0
"""The time limit for reading and writing a loss receipt. After this time the truncation is given
up, and the partition pauses. Otherwise the controller's commands would wait too long for the end of
the truncation."""


class Losses(Protocol):
    """The loss receipts in ZooKeeper. A loss receipt notes that a partition has possibly lost
    committed records. The receipt permits followers to truncate committed records. Both methods may
    raise CoordError and MalformedNode."""

    async def newest_receipt(
        self, topic_partition: TopicPartition, *, after: int, up_to: int
    ) -> LossReceipt | None:
        """Return the newest loss receipt (see the class) with a leader epoch above `after` and at
        most `up_to`, or None."""

    async def add_truncation(
        self, topic_partition: TopicPartition, leader_epoch: int, start: int, end: int
    ) -> None:
        """Note in the loss receipt for `leader_epoch` (see the class) that this replica is going to
        truncate the offsets from `start` up to, not including, `end`."""


class NoLosses:
    """Implements `Losses` without ZooKeeper: there are no loss receipts (see `Losses`)."""

    async def newest_receipt(
        self, topic_partition: TopicPartition, *, after: int, up_to: int
    ) -> LossReceipt | None:
        return None

    async def add_truncation(
        self, topic_partition: TopicPartition, leader_epoch: int, start: int, end: int
    ) -> None:
        raise AssertionError(
            f"{topic_partition}: add_truncation was called, although newest_receipt returned None"
        )


Failed = Callable[[TopicPartition, str], None]
"""Called with a replica that must stop following its leader, and with the reason."""


class Truncator:
    """Truncates the logs of this broker's follower replicas. Use it from the event loop only."""

    def __init__(self, blocking: Blocking, losses: Losses) -> None:
        self._blocking = blocking
        self._losses = losses
        self._busy: dict[TopicPartition, asyncio.Task[Pause | None]] = {}
        self.on_failed: Failed = lambda key, reason: None

    def is_busy(self, key: TopicPartition) -> bool:
        return key in self._busy

    @property
    def busy(self) -> frozenset[TopicPartition]:
        return frozenset(self._busy)

    async def settled(self, keys: Iterable[TopicPartition] | None = None) -> None:
        """Wait for the end of the running truncations of these partitions (None: of all
        partitions)."""
        wanted = self._busy if keys is None else [key for key in keys if key in self._busy]
        tasks = [self._busy[key] for key in wanted]
        if tasks:
            await asyncio.wait(tasks)

    def begin(
        self, partition: Partition, step: Truncation, done: Callable[[Pause | None], None]
    ) -> None:
        """Begin the truncation `step`. At the end call `done` with None if the log was truncated,
        else with the pause before the next fetch."""
        key = partition.topic_partition
        assert key not in self._busy
        task = asyncio.create_task(self._truncate(partition, step), name=f"truncate {key}")
        self._busy[key] = task

        def ended(task: asyncio.Task[Pause | None]) -> None:
            del self._busy[key]
            if not task.cancelled():
                done(task.result())

        task.add_done_callback(ended)

    async def _truncate(self, partition: Partition, step: Truncation) -> Pause | None:
        replica, in_sync = partition.log, partition.is_in_isr(partition.broker_id)
        try:
            if may_cut_committed(replica, partition.high_watermark, step, in_sync=in_sync):
                refused = await self._record_loss(partition, step)
                if refused is not None:
                    return refused
            before = replica.log_start_offset, replica.log_end_offset
            change = partition.truncate_to if isinstance(step, TruncateTo) else partition.start_over
            await self._blocking.run(change, step.offset)
        except BrokerError as error:
            return Pause(error.code, error.detail)
        start, end = before
        has_cut = start < end and (replica.log_end_offset < end or start < replica.log_start_offset)
        log.log(
            logging.INFO if has_cut else logging.DEBUG,
            "log truncated partition=%s from=%d to=%d hw=%d",
            partition.topic_partition,
            end,
            replica.log_end_offset,
            partition.high_watermark,
        )
        return None

    async def _record_loss(self, partition: Partition, step: Truncation) -> Pause | None:
        """If there is a loss receipt for this truncation (see `Losses`), add to it the offsets that
        `step` removes. Without a loss receipt, a `step` that would remove committed records must
        not begin. Return None if `step` can begin, else the pause before the next fetch."""
        key, replica = partition.topic_partition, partition.log
        start, end = cut_offsets(replica, step)
        is_committed = cuts_committed(replica, partition.high_watermark, step)
        try:
            async with asyncio.timeout(_RECEIPT_WAIT_S):
                receipt = await self._losses.newest_receipt(
                    key, after=replica.latest_epoch, up_to=partition.leader_epoch
                )
                if receipt is None and is_committed:
                    self.on_failed(key, self._refusal(partition, step))
                    return Pause(
                        ErrorCode.KAFKA_STORAGE_ERROR,
                        f"a truncation to offset {step.offset} would remove committed records, and"
                        " no loss receipt allows it",
                    )
                if receipt is None:
                    return None  # all elections were clean, so the records were never acknowledged
                await self._losses.add_truncation(key, receipt.leader_epoch, start, end)
        except (CoordError, MalformedNode, TimeoutError) as error:
            is_damaged = isinstance(error, MalformedNode)
            code = ErrorCode.COORDINATOR_NOT_AVAILABLE
            return Pause(
                ErrorCode.UNKNOWN_SERVER_ERROR if is_damaged else code,
                f"the loss receipt cannot be read or written: {error!r}",
            )
        log.log(
            logging.ERROR if is_committed else logging.WARNING,
            "loss receipt partition=%s reason=%s leader_epoch=%d from=%d to=%d hw=%d:"
            " this replica truncates records that it may have acknowledged",
            key,
            receipt.reason,
            receipt.leader_epoch,
            start,
            end,
            partition.high_watermark,
        )
        return None

    @staticmethod
    def _refusal(partition: Partition, step: Truncation) -> str:
        state = partition.state
        leader = None if state is None else state.leader
        return (
            f"leader {leader} (epoch {partition.leader_epoch}) requires a truncation to offset"
            f" {step.offset}, below the high watermark {partition.high_watermark}, and no loss"
            " receipt of an unclean election allows it. The replica truncates nothing. If the"
            " leader's log is the right one, stop this broker, move the directory"
            f" {partition.log.directory} away and start the broker again: it then copies the whole"
            " log"
        )
