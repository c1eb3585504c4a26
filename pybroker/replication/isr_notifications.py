"""Decides when the leader notifies the controller of changed ISRs. The first change after `QUIET_S`
without changes is notified at once, other changes at Kafka's intervals."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

from pybroker.model import TopicPartition

CHECK_S: Final = 2.5
"""The interval at which the broker checks whether a batch is due."""
QUIET_S: Final = 5.0
"""A batch is due when no ISR has changed for this long."""
DELAY_MAX_S: Final = 60.0
"""A batch is due at the latest this long after the last batch was sent."""
PARTITIONS_MAX: Final = 1_000
"""The largest number of partitions in one notification: about 300 KB with the longest topic
names."""


class ChangedPartitions:
    """The partitions whose ISR has changed since the controller was last notified. Times are
    monotonic seconds."""

    def __init__(self) -> None:
        self._changed: dict[TopicPartition, None] = {}
        self._last_change_s = -math.inf
        self._last_sent_s = -math.inf

    def add(self, topic_partition: TopicPartition, now: float) -> bool:
        """Record a partition whose ISR has changed. Return whether the leader must notify the
        controller at once."""
        is_first = not self._changed and now - self._last_change_s >= QUIET_S
        self._changed[topic_partition] = None
        self._last_change_s = now
        return is_first

    def is_due(self, now: float) -> bool:
        return bool(self._changed) and (
            now - self._last_change_s >= QUIET_S or now - self._last_sent_s >= DELAY_MAX_S
        )

    def take(self, now: float) -> list[TopicPartition]:
        """Remove and return the partitions of the next notification."""
        batch = list(self._changed)[:PARTITIONS_MAX]
        for key in batch:
            del self._changed[key]
        self._last_sent_s = now
        return batch

    def put_back(self, batch: Iterable[TopicPartition]) -> None:
        """Add the partitions again after their notification failed."""
        self._changed = {**dict.fromkeys(batch), **self._changed}
        self._last_sent_s = -math.inf

    def __len__(self) -> int:
        return len(self._changed)
