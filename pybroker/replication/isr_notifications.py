"""The times at which the leader notifies the controller of changed ISRs: in batches.

Plain code: a clock's reading in, a decision out. The times are Kafka's, with one difference: the
first change after a quiet time is sent at once, so that clients and the admin tools see a lone
change without a delay of five seconds. Further changes follow in Kafka's batches.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

from pybroker.model import TopicPartition

CHECK_S: Final = 2.5
"""How often to look whether a batch is due."""
QUIET_S: Final = 5.0
"""A batch is due this long after the last change,"""
DELAY_MAX_S: Final = 60.0
"""or this long after the last batch."""
PARTITIONS_MAX: Final = 1_000
"""In one notification node: about 300 KB with the longest topic names."""


class ChangedPartitions:
    """The changed partitions that the controller does not know yet. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._changed: dict[TopicPartition, None] = {}
        self._last_change_s = -math.inf
        self._last_sent_s = -math.inf

    def add(self, topic_partition: TopicPartition, now: float) -> bool:
        """Note a change. Return whether it is the first after a quiet time, to be sent at once."""
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
