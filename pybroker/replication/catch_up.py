"""Marks an incomplete replica as complete when the replica has caught up with its leader. A replica
whose log was lost is incomplete, and may not lead, while it copies the leader's log."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from pybroker.errors import BrokerError, StorageError
from pybroker.model import TopicPartition
from pybroker.ports import Blocking, LeaderChannel
from pybroker.replication.followed_partition import FollowedPartition
from pybroker.storage.replica_health import Event, ReplicaHealth

log = logging.getLogger(__name__)


class CatchUp:
    """Marks each incomplete replica of this broker as complete when the replica has caught up with
    its leader. Use it from the event loop only."""

    def __init__(self, health: ReplicaHealth, blocking: Blocking) -> None:
        self._health = health
        self._blocking = blocking
        self._targets: dict[tuple[TopicPartition, int], int] = {}
        """(partition, leader epoch) -> the log end offset that the leader returned when it was
        first asked in that epoch. The catch-up is complete once this replica has all records below
        that offset. They include each record that was committed before this replica began to
        copy."""

    async def look(
        self, copies: Mapping[TopicPartition, FollowedPartition], channel: LeaderChannel
    ) -> bool:
        """Mark each incomplete replica in `copies` as complete if it has caught up. Return whether
        an incomplete replica is left. A failed check is logged, not raised."""
        is_incomplete = False
        for key in self._health.allowing(Event.COMPLETE):
            copy = copies.get(key)
            if copy is None:
                continue
            if not copy.agrees:
                is_incomplete = True
                continue
            term = key, copy.leader_epoch
            try:
                if term not in self._targets:
                    self._targets[term] = await channel.latest_offset(*term)
                log_end = copy.partition.log.durable_end
                if log_end >= self._targets[term]:
                    await self._blocking.run(self._health.complete, copy.partition.log)
                    self._targets.pop(term, None)
                    log.info(
                        "copy complete partition=%s log_end=%d: this replica may lead", key, log_end
                    )
                else:
                    is_incomplete = True
            except (BrokerError, StorageError) as error:
                is_incomplete = True
                log.warning("catch-up not checked, trying again partition=%s error=%s", key, error)
        return is_incomplete
