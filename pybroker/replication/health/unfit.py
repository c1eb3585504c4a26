"""Copies that are not complete, and count nevertheless: elected uncleanly because nobody else was
there, or in sync again a moment before they were complete. They may not lead. Where others count
they leave it to them: if those cannot lead either, leadership would go round among them for ever.
Where one is all that counts it leaves when another replica is there: then nobody counts, and each
says what it has (`claims.py`), or an unclean election takes another.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection

from pybroker.coordinator.zookeeper import paths, topic_nodes
from pybroker.coordinator.zookeeper.schemas import decode_state, decode_topic, encode_state
from pybroker.errors import CoordError, MalformedNode, NoNode
from pybroker.model import NO_LEADER, TopicPartition
from pybroker.ports import Coord, SetOp
from pybroker.replication.health.power_loss import without
from pybroker.storage.manager import LogManager

log = logging.getLogger(__name__)
state_change = logging.getLogger("pybroker.state_change")


class UnfitCopies:
    """Used from the event loop only."""

    def __init__(
        self,
        coord: Coord,
        broker_id: int,
        logs: LogManager,
        live: Callable[[], Collection[int]],
    ) -> None:
        """`live` are the brokers that run."""
        self._coord = coord
        self._broker_id = broker_id
        self._logs = logs
        self._live = live
        self._refused: set[TopicPartition] = set()
        self._left: set[TopicPartition] = set()

    @property
    def waits(self) -> bool:
        """Whether any of them may have to leave yet."""
        return bool(self._refused)

    def refused(self, key: TopicPartition) -> bool:
        """This replica could not be opened; whether that is for being such a copy."""
        is_unfit = key in self._logs.incomplete
        if is_unfit:
            self._refused.add(key)
        return is_unfit

    async def look(self) -> bool:
        """Let those leave that should; whether any did."""
        left = False
        for key in sorted(self._refused):
            try:
                is_over, has_left = await self._look_at(key)
            except NoNode:
                is_over, has_left = True, False
            except (CoordError, MalformedNode) as error:
                log.warning("incomplete replica not withdrawn partition=%s error=%r", key, error)
                continue
            if is_over:
                self._refused.discard(key)
            left |= has_left
        return left

    async def _look_at(self, key: TopicPartition) -> tuple[bool, bool]:
        """Whether nothing is left to be done, and whether the replica has left."""
        if key not in self._logs.incomplete:
            return True, False
        topic = key.topic, await topic_nodes.stored_id(self._coord, key.topic)
        path = paths.partition_state(key)
        data, stat = await self._coord.get(path)
        state = decode_state(path, data)
        changed = without(state, self._broker_id)
        if changed is None:
            return True, False
        # Whoever else counts has all; whether another leads by now does not matter to them.
        others = {*changed.isr, *changed.eligible}
        is_alone = not others
        if is_alone:
            # A lost disk may come back: its operator decides.
            if self._logs.lost_directories or state.leader not in (NO_LEADER, self._broker_id):
                return True, False
            others = await self._others(key)
        if others.isdisjoint(self._live()):
            return False, False
        write = SetOp(path, encode_state(changed, data), stat.version)
        await topic_nodes.apply(self._coord, topic, write)
        state_change.warning(
            "replica steps aside partition=%s reason=incomplete leader=%d leader_epoch=%d isr=%s"
            " eligible=%s",
            key,
            changed.leader,
            changed.leader_epoch,
            ",".join(map(str, changed.isr)),
            ",".join(map(str, changed.eligible)),
        )
        if is_alone:
            if key in self._left:
                # It was chosen again, so nobody else can lead either: next time it is to.
                self._logs.incomplete.released.add(key)
            self._left.add(key)
        return True, True

    async def _others(self, key: TopicPartition) -> set[int]:
        """All that have a replica, besides this broker."""
        path = paths.topic(key.topic)
        topic = decode_topic(path, (await self._coord.get(path))[0])
        return {*topic.replicas.get(key.partition, ())} - {self._broker_id}
