"""Seeing when a replica that was begun anew has all that its leader had: then it may lead again."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from pybroker.errors import BrokerError, StorageError
from pybroker.model import TopicPartition
from pybroker.ports import Blocking, LeaderChannel
from pybroker.replication.followed_partition import FollowedPartition
from pybroker.storage.incomplete import Incomplete

log = logging.getLogger(__name__)


class Completion:
    """Used from the event loop only."""

    def __init__(self, incomplete: Incomplete, blocking: Blocking) -> None:
        self._incomplete = incomplete
        self._blocking = blocking
        self._targets: dict[tuple[TopicPartition, int], int] = {}
        """Where the leader's log ended when it was asked first, by its epoch, too. All that was
        committed before this replica began lies below."""

    async def look(
        self, copies: Mapping[TopicPartition, FollowedPartition], channel: LeaderChannel
    ) -> None:
        """Look at those of `copies` that are incomplete; mostly there are none."""
        for key in self._incomplete.partitions:
            copy = copies.get(key)
            if copy is None or not copy.agrees:
                continue
            term = key, copy.leader_epoch
            try:
                if term not in self._targets:
                    self._targets[term] = await channel.latest_offset(*term)
                log_end = copy.partition.log.durable_end
                if log_end >= self._targets[term]:
                    await self._blocking.run(self._incomplete.clear, key)
                    self._targets.pop(term, None)
                    log.info("copy complete partition=%s log_end=%d", key, log_end)
            except (BrokerError, StorageError) as error:
                log.warning("copy not known to be complete partition=%s error=%s", key, error)
