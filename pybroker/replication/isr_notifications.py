"""When the controller is told which partitions have another ISR: in batches, not one by one.

Plain code: a clock's reading in, a decision out. Kafka's times, with one difference: the first
change after a quiet time is told at once, so that clients and the admin tools see a lone change
without a delay of five seconds; a storm of changes is one early batch and then Kafka's.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

from pybroker.model import TopicPartition

CHECK_S: Final = 2.5
"""How often to look whether a batch is due."""
QUIET_S: Final = 5.0
"""A batch is due when no change has come for so long,"""
DELAY_MAX_S: Final = 60.0
"""or when the last batch is so long ago."""
PARTITIONS_MAX: Final = 1_000
"""In one node: with the longest topic names about 300 KB."""


class ChangedPartitions:
    """The partitions that the controller has not been told of. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._changed: dict[TopicPartition, None] = {}
        self._last_change_s = -math.inf
        self._last_sent_s = -math.inf

    def add(self, topic_partition: TopicPartition, now: float) -> bool:
        """Take note of a change; whether it is the first after a quiet time, to be told at once."""
        is_first = not self._changed and now - self._last_change_s >= QUIET_S
        self._changed[topic_partition] = None
        self._last_change_s = now
        return is_first

    def is_due(self, now: float) -> bool:
        return bool(self._changed) and (
            now - self._last_change_s >= QUIET_S or now - self._last_sent_s >= DELAY_MAX_S
        )

    def take(self, now: float) -> list[TopicPartition]:
        """Return the partitions of the next batch. They count as sent until `put_back`."""
        batch = list(self._changed)[:PARTITIONS_MAX]
        for key in batch:
            del self._changed[key]
        self._last_sent_s = now
        return batch

    def put_back(self, batch: Iterable[TopicPartition]) -> None:
        """Add the batch again: the controller may not have received it."""
        self._changed = {**dict.fromkeys(batch), **self._changed}
        self._last_sent_s = -math.inf

    def __len__(self) -> int:
        return len(self._changed)
