"""The lookup of a consumer's unknown positions: the group's committed offset, or an offset from
ListOffsets (for auto.offset.reset or a seek)."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from pybroker.background import TaskOwner
from pybroker.client.backoff import Deadline
from pybroker.client.cluster import HOPELESS, Cluster, leaders
from pybroker.client.errors import ClientError, OffsetUnavailable, ResponseError
from pybroker.client.offset_lookup import EARLIEST, LATEST, list_offsets
from pybroker.client.options import ConsumerOptions
from pybroker.client.subscription import PartitionReader
from pybroker.model import TopicPartition

log = logging.getLogger(__name__)

FindCommitted = Callable[
    [list[TopicPartition]], Awaitable[Mapping[TopicPartition, tuple[int, int] | None]]
]
"""A function that returns for each of the given partitions the committed offset and the leader
epoch of the record before that offset. For a partition without a committed offset, it returns
None."""
RESET_MOMENTS: Final = {"earliest": EARLIEST, "latest": LATEST}


class PositionLookup:
    """Finds the positions of a consumer's readers. `pause` starts a partition's retry backoff.
    `on_result` is called when a reader may have a new position or error."""

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
        self.find_committed: FindCommitted | None = None
        self._busy: set[TopicPartition] = set()
        """The partitions whose position a task looks up."""

    def begin(self, reader: PartitionReader) -> None:
        """Let a new reader begin at the group's committed offset. If there is none,
        auto.offset.reset decides."""
        if self.find_committed is not None:
            reader.initial = True
        else:
            self.reset(reader, "the consumer has no group, so no committed offset")

    def look_up(self, readers: Mapping[TopicPartition, PartitionReader], now: float) -> None:
        """Start to look up the unknown positions of these readers."""
        self._look_up_committed(readers, now)
        self._look_up_positions(readers, now)

    def reset(self, reader: PartitionReader, reason: str) -> None:
        """Drop the reader's position, and find a new one by auto.offset.reset. With
        auto.offset.reset=none, set the reader's error to OffsetUnavailable instead."""
        policy = self._options.auto_offset_reset
        moment = RESET_MOMENTS.get(policy)
        if moment is None:
            reader.jump(None)
            reader.problem = OffsetUnavailable([reader.topic_partition], reason)
            self._on_result()
        else:
            reader.jump(None, moment)
            log.info(
                "position reset partition=%s to=%s reason=%s",
                reader.topic_partition, policy, reason,
            )  # fmt: skip

    def _look_up_committed(
        self, readers: Mapping[TopicPartition, PartitionReader], now: float
    ) -> None:
        wanted = {
            key: reader
            for key, reader in readers.items()
            if reader.initial and key not in self._busy and now >= reader.next_try
        }
        if wanted and self.find_committed is not None:
            self._busy |= wanted.keys()
            work = self._begin_at_committed(wanted, self.find_committed)
            self._tasks.start(work, "find committed offsets")

    async def _begin_at_committed(
        self, wanted: dict[TopicPartition, PartitionReader], find: FindCommitted
    ) -> None:
        problem: ClientError | None = None
        found: Mapping[TopicPartition, tuple[int, int] | None] = {}
        try:
            found = await find(list(wanted))
        except ClientError as error:
            problem = error
        finally:
            self._busy -= wanted.keys()
        for key, reader in wanted.items():
            position = found.get(key)
            if not reader.initial:
                continue  # the application has set another position
            if position is not None:
                reader.jump(position[0], leader_epoch=position[1])
            elif problem is None:
                self.reset(reader, "the group has committed nothing")
            elif problem.retriable:
                self._pause(reader)
            else:
                reader.initial = False
                reader.problem = problem
        self._on_result()

    def _look_up_positions(
        self, readers: Mapping[TopicPartition, PartitionReader], now: float
    ) -> None:
        lost = {
            topic_partition: reader
            for topic_partition, reader in readers.items()
            if reader.reset is not None
            and topic_partition not in self._busy
            and now >= reader.next_try
        }
        by_node, without_leader = leaders(self._cluster.view, lost)
        for key in without_leader:
            topic = self._cluster.view.topics.get(key.topic)
            if topic is not None and topic.error in HOPELESS:
                lost[key].reset = None
                lost[key].problem = ResponseError(topic.error, place=f"topic {key.topic}")
                self._on_result()
            else:
                self._cluster.request_refresh()
        wanted = {key: lost[key] for keys in by_node.values() for key in keys}
        if wanted:
            self._busy |= wanted.keys()
            self._tasks.start(self._find_positions(wanted), "find positions")

    async def _find_positions(self, wanted: dict[TopicPartition, PartitionReader]) -> None:
        asked = {
            topic_partition: (reader.era, reader.reset)
            for topic_partition, reader in wanted.items()
        }
        try:
            answers = await list_offsets(
                self._cluster,
                {item: reset for item, (_, reset) in asked.items() if reset is not None},
                isolation_level=self._options.isolation_level,
                deadline=Deadline(self._cluster.clock, self._options.request_timeout_ms),
                once=True,  # the fetcher repeats the lookup itself
            )
        finally:
            self._busy -= wanted.keys()
        for topic_partition, answer in answers.items():
            reader = wanted[topic_partition]
            if asked[topic_partition] != (reader.era, reader.reset):
                continue
            if answer.error is None:
                reader.jump(answer.offset, leader_epoch=answer.leader_epoch)
            elif answer.error.retriable:
                self._pause(reader)
                self._cluster.request_refresh()
            else:
                reader.problem = answer.error
                reader.reset = None
        self._on_result()
