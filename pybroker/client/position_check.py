"""The check for log truncation after a change of leader (KIP-320).

An unclean election may truncate records that the consumer has read. The consumer would then skip
the new records at these offsets. So in a new leader epoch, the consumer first compares its position
with the end offset of its last record's leader epoch.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from pybroker.background import TaskOwner
from pybroker.client.backoff import Deadline
from pybroker.client.cluster import Cluster
from pybroker.client.epoch_lookup import EpochEnd, epoch_ends
from pybroker.client.errors import LogTruncated
from pybroker.client.options import ConsumerOptions
from pybroker.client.subscription import PartitionReader
from pybroker.model import NO_EPOCH, TopicPartition

log = logging.getLogger(__name__)

OLD_VIEW_TRIES_MAX: Final = 10
"""The maximum number of metadata refreshes for which the check waits while the leader epoch in the
metadata is below that of the position. The epochs of a recreated topic begin again at 0, so they
may stay below it."""
NO_POLICY: Final = "none"


class _Question(NamedTuple):
    """An OffsetForLeaderEpoch request. `era` (number of seeks and resets), `offset` (fetch offset)
    and `leader_epoch` are from the time of the request."""

    reader: PartitionReader
    era: int
    offset: int
    leader_epoch: int

    @property
    def is_open(self) -> bool:
        """Whether the answer is still needed: the reader's position is unchanged since the
        request."""
        return (self.reader.era, self.reader.fetch_offset) == (self.era, self.offset)


def divergence(reader: PartitionReader, end: EpochEnd) -> int | None:
    """Return the offset at which the leader's log differs from the records that `reader` has read;
    None if no difference is known. `end` is the leader's answer for the leader epoch of the last
    record that was read."""
    if end.leader_epoch == NO_EPOCH or end.end_offset < 0:
        return None
    gone = [start for epoch, start in reader.epochs if epoch > end.leader_epoch]
    cut = min([end.end_offset, *gone])
    return cut if cut < reader.fetch_offset else None


class PositionCheck:
    """Checks a consumer's positions against the leaders' logs. `pause` starts a partition's retry
    backoff. `on_result` announces a new error or position."""

    def __init__(
        self,
        options: ConsumerOptions,
        cluster: Cluster,
        tasks: TaskOwner,
        *,
        pause: Callable[[PartitionReader], None],
        on_result: Callable[[], None],
    ) -> None:
        self._options = options
        self._cluster = cluster
        self._tasks = tasks
        self._pause = pause
        self._on_result = on_result
        self._asking: set[TopicPartition] = set()

    def is_done(self, reader: PartitionReader) -> bool:
        """Return whether the position has been checked against the present leader."""
        info = self._cluster.view.partition(reader.topic_partition)
        if info is None or reader.fetch_epoch == NO_EPOCH:
            return True
        if info.leader_epoch == reader.fetch_epoch:
            reader.checked_epoch = info.leader_epoch  # this leader appended the last record
        return info.leader_epoch <= reader.checked_epoch

    def begin(self, readers: Sequence[PartitionReader]) -> None:
        """Start to check the positions of these readers. A reader whose check is already running is
        skipped."""
        questions = {}
        for reader in readers:
            key = reader.topic_partition
            info = self._cluster.view.partition(key)
            if key in self._asking or info is None:
                continue
            if info.leader_epoch >= reader.fetch_epoch:
                questions[key] = _Question(
                    reader, reader.era, reader.fetch_offset, info.leader_epoch
                )
            elif reader.failures < OLD_VIEW_TRIES_MAX:
                self._cluster.request_refresh()
                self._pause(reader)
            else:
                reader.checked_epoch = info.leader_epoch
        if questions:
            self._asking |= questions.keys()
            self._tasks.start(self._ask(questions), "check positions")

    async def _ask(self, questions: dict[TopicPartition, _Question]) -> None:
        try:
            ends = await epoch_ends(
                self._cluster,
                {key: question.reader.fetch_epoch for key, question in questions.items()},
                deadline=Deadline(self._cluster.clock, self._options.request_timeout_ms),
                once=True,
            )
        finally:
            self._asking -= questions.keys()
        for key, question in questions.items():
            if question.is_open:
                self._answered(question, ends[key])
        self._on_result()

    def _answered(self, question: _Question, end: EpochEnd) -> None:
        reader = question.reader
        if end.error is not None and end.error.retriable:
            self._pause(reader)
            self._cluster.request_refresh()
            return
        if end.error is not None:  # for example, an older broker lacks this API
            log.debug(
                "position not checked, the leader cannot answer partition=%s reason=%s",
                reader.topic_partition, end.error,
            )  # fmt: skip
        cut = None if end.error is not None else divergence(reader, end)
        if cut is not None:
            self._go_back(reader, cut, end.leader_epoch)
        reader.checked_epoch = question.leader_epoch

    def _go_back(self, reader: PartitionReader, cut: int, leader_epoch: int) -> None:
        position = reader.position
        assert position is not None
        if position <= cut:  # no record that the application has read is truncated
            reader.jump(position, leader_epoch=reader.position_epoch)
        elif self._options.auto_offset_reset == NO_POLICY:
            reader.problem = LogTruncated(reader.topic_partition, position, cut)
        else:
            log.warning(
                "log truncated, the position moves back partition=%s position=%d to=%d"
                " reason=an unclean election",
                reader.topic_partition, position, cut,
            )  # fmt: skip
            reader.jump(cut, leader_epoch=leader_epoch)
