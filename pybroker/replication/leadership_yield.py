"""The replicas of this broker that yield leadership: this broker asks the controller to elect
another in-sync replica.

The broker asks as if a log directory had failed: by a notification in ZooKeeper, and by
KAFKA_STORAGE_ERROR in LeaderAndIsr responses. The broker leads until another replica is elected.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping

from pybroker.errors import ErrorCode
from pybroker.model import PartitionFacts, PartitionState, TopicPartition
from pybroker.ports import Clock
from pybroker.replication.partition import Partition

log = logging.getLogger(__name__)


class LeadershipYield:
    """The replicas for which this broker asks the controller to elect another leader, each with the
    reason. Use it from the event loop only."""

    def __init__(self, broker_id: int, clock: Clock) -> None:
        self._broker_id = broker_id
        self._clock = clock
        self._reasons: dict[TopicPartition, str] = {}
        self._over_s: dict[TopicPartition, float] = {}
        """Replica -> the time (monotonic seconds) from which on it may lead again."""
        self.on_change: Callable[[], None] = lambda: None
        """Called when the controller should send LeaderAndIsr to this broker again."""
        self.leaves = False
        """Whether this broker is about to stop, and yields the leadership of every partition."""

    def has_asked(self, partition: Partition, lag_max_s: float) -> bool:
        """Return whether this broker has asked the controller to elect another leader of the
        partition. After a call of `remove` for the partition, the result stays True for 2 *
        `lag_max_s` seconds."""
        if partition.led_version is None:
            return False
        key = partition.topic_partition
        over_s = self._over_s.get(key, -math.inf)
        is_recent = self._clock.monotonic() - over_s <= 2 * lag_max_s
        return is_recent or self.leaves or key in self._reasons

    @property
    def reasons(self) -> Mapping[TopicPartition, str]:
        """Replica -> the reason why the replica yields leadership. The mapping shows later
        changes."""
        return self._reasons

    def add(self, key: TopicPartition, reason: str) -> None:
        """Let the replica yield leadership until `remove`. `reason` appears in the log."""
        if key not in self._reasons:
            log.warning("replica yields leadership partition=%s reason=%s", key, reason)
            self._reasons[key] = reason
            self.on_change()

    def remove(self, key: TopicPartition) -> None:
        """Let the replica lead again. Idempotent."""
        if self._reasons.pop(key, None) is not None:
            log.info("replica may lead again partition=%s", key)
            self._over_s[key] = self._clock.monotonic()
            self.on_change()

    def may_copy(self, state: PartitionState | None) -> bool:
        """Return whether this broker may fetch the partition as a follower. The partition must have
        a leader. If this broker is about to stop, it must also be in the ISR."""
        if state is None or state.leader < 0:
            return False
        return not self.leaves or self._broker_id in state.isr

    def answer(self, facts: PartitionFacts) -> ErrorCode:
        """Return the partition's error code in the LeaderAndIsr response: KAFKA_STORAGE_ERROR if
        this broker leads the partition and `add` has marked the partition to be yielded, else
        NONE."""
        leads = facts.state.leader == self._broker_id
        if leads and facts.topic_partition in self._reasons:
            return ErrorCode.KAFKA_STORAGE_ERROR
        return ErrorCode.NONE
