"""Replicas of this broker that should not lead, though they can: their disk is full, for one. They
lead on until the controller has found another one that is in sync, if there is any.

The controller hears of it as of a failed log directory: by a notification, and then by the answer
KAFKA_STORAGE_ERROR to the command to lead, which is carried out all the same. It asks again and
again; so a replica that comes into the ISR later takes over then.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from pybroker.errors import ErrorCode
from pybroker.model import PartitionFacts, PartitionState, TopicPartition
from pybroker.ports import Clock

log = logging.getLogger(__name__)


class LeadershipYield:
    """Used from the event loop only."""

    def __init__(self, broker_id: int, clock: Clock) -> None:
        self._broker_id = broker_id
        self._clock = clock
        self._reasons: dict[TopicPartition, str] = {}
        self._over_s: dict[TopicPartition, float] = {}
        """When the reasons that are gone went (monotonic)."""
        self.on_change: Callable[[], None] = lambda: None
        """Told when the controller should ask again who leads and follows what here."""
        self.leaves = False
        """Whether this broker is about to stop, and asks for others to lead whatever it leads."""

    def has_asked(self, key: TopicPartition, last_s: float) -> bool:
        """Whether the controller was asked for another leader within the last so many seconds, and
        may have found one: we need not have heard of it, nor it that we can lead again."""
        if self.leaves or key in self._reasons:
            return True
        over_s = self._over_s.get(key)
        if over_s is None:
            return False
        is_recent = self._clock.monotonic() - over_s <= last_s
        if not is_recent:
            del self._over_s[key]
        return is_recent

    @property
    def reasons(self) -> Mapping[TopicPartition, str]:
        """Why each of these replicas should not lead. Not a snapshot."""
        return self._reasons

    def add(self, key: TopicPartition, reason: str) -> None:
        """Let another replica lead, if there is one. Once said it holds until `remove`."""
        if key not in self._reasons:
            log.warning("replica would rather not lead partition=%s reason=%s", key, reason)
            self._reasons[key] = reason
            self.on_change()

    def remove(self, key: TopicPartition) -> None:
        """The replica may lead again: others may want to hand over to it. No error if it always
        could."""
        if self._reasons.pop(key, None) is not None:
            log.info("replica may lead again partition=%s", key)
            self._over_s[key] = self._clock.monotonic()
            self.on_change()

    def may_copy(self, state: PartitionState | None) -> bool:
        """Whether there is a leader to copy from. A broker that is about to stop does not catch up
        where it has left the ISR: the leader would let it in again just before it is gone."""
        if state is None or state.leader < 0:
            return False
        return not self.leaves or self._broker_id in state.isr

    def answer(self, facts: PartitionFacts) -> ErrorCode:
        """To a command that was carried out."""
        leads = facts.state.leader == self._broker_id
        if leads and facts.topic_partition in self._reasons:
            return ErrorCode.KAFKA_STORAGE_ERROR
        return ErrorCode.NONE
