"""Removes damaged replicas (replicas whose log has a corrupt range) from the ISR and the eligible
replicas of their partitions.

Otherwise the controller could elect a damaged replica, which lacks committed records. After the
removal the broker discards the damaged log and copies all records from the new leader. A damaged
replica stays in the ISR if it is the only electable one: the broker serves its intact records, and
no replica truncates its log. At the start of the broker, recovery finds corrupt ranges
(`storage/recovery.py`). While the log is in use, the scrubber finds them (`scrubber.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Container
from typing import Final

from pybroker.background import RetryLoop
from pybroker.coordinator.zookeeper.registry import end_earlier_lives, read_incarnation
from pybroker.coordinator.zookeeper.topic_nodes import Topic
from pybroker.errors import CoordError, StorageError
from pybroker.model import PartitionState, TopicPartition
from pybroker.ports import Coord
from pybroker.replication.health.incomplete_replicas import IncompleteReplicas
from pybroker.replication.health.step_aside import StepAside, without
from pybroker.replication.manager import ReplicaManager
from pybroker.storage.log_parts import Damage
from pybroker.storage.manager import LogManager

log = logging.getLogger(__name__)

_LOOK_AGAIN_S: Final = 2.0
"""The interval between two attempts to remove a replica that was the only electable one of its
partition."""


def stepped_aside(
    state: PartitionState, broker_id: int, live: Container[int] | None
) -> PartitionState | None:
    """Return the partition state `state` without this broker as leader, in-sync or eligible
    replica. Return None if no in-sync or eligible replica is on another broker in `live`. If
    `live` is None, the live brokers are not known yet, and a replica on any other broker suffices.

    If the broker is neither in sync nor eligible, return `state` itself. The caller writes it
    nevertheless: the write raises the version of the state node, so that a leader's concurrent
    write cannot add the broker to the ISR."""
    others = {*state.isr, *state.eligible} - {broker_id}
    if not any(live is None or other in live for other in others):
        return None
    return without(state, broker_id) or state


class DamagedReplicas:
    """Removes the damaged replicas of one broker. The broker calls `settle` before it registers,
    and runs `loop` afterwards."""

    def __init__(
        self,
        *,
        coord: Coord,
        broker_id: int,
        logs: LogManager,
        replicas: ReplicaManager,
        live: Callable[[], Collection[int]],
        changed: Callable[[], None],
        raised: Callable[[int], None],
    ) -> None:
        """`live` returns the registered brokers, or none before they are known. `changed` makes the
        controller read the state nodes of this broker's replicas, and send LeaderAndIsr again.
        `raised` is called with the broker's new incarnation after each write that raised it."""
        self._leave = StepAside(coord, broker_id)
        self._logs = logs
        self._replicas = replicas
        self._live = live
        self._changed = changed
        self._raised = raised
        self._damaged: dict[TopicPartition, Damage] = {}
        """The damaged replicas that have not stepped aside yet, each with its damage."""
        self._told: set[TopicPartition] = set()
        self._incomplete = IncompleteReplicas(self._leave, logs, live)
        replicas.on_refusal = self._refused
        self.loop = RetryLoop("damaged-replicas", self._look, _LOOK_AGAIN_S)

    async def settle(self) -> None:
        """Remove the damaged replicas of this broker from the ISR and the eligible replicas, before
        the broker registers. Raises CoordError; the broker must not register then."""
        damaged = sorted(self._logs.damaged().items())
        if damaged:
            await end_earlier_lives(self._leave.coord, self._leave.broker_id)
        for key, damage in damaged:
            if not await self._step_aside(key, damage, None):
                self._damaged[key] = damage
                self.loop.wake()

    @property
    def waiting(self) -> dict[TopicPartition, Damage]:
        """Partition -> the damage of this broker's replica, for each replica that has not stepped
        aside, because no other replica can replace it now. The dictionary is a copy."""
        return dict(self._damaged)

    def found(self, key: TopicPartition, damage: Damage) -> None:
        """Note that the log of partition `key`, which is in use, has the corrupt range `damage`.
        The replica steps aside soon."""
        opened = self._logs.log(key)
        if key in self._damaged or opened is None or opened.damage is not None:
            return
        log.error(
            "log damaged partition=%s path=%s position=%d offset=%d reason=%r: the replica leaves"
            " the ISR if another one can replace it",
            key,
            damage.path,
            damage.position,
            damage.offset,
            damage.reason,
        )
        self._damaged[key] = damage
        self.loop.wake()

    def _refused(self, key: TopicPartition) -> None:
        if self._incomplete.refused(key):
            self.loop.wake()

    async def _look(self) -> bool:
        """Try to remove each damaged or incomplete replica from its ISR. Return whether some must
        be tried again."""
        done = [key for key in self.waiting if await self._look_at(key)]
        for key in done:
            del self._damaged[key]
            self._told.discard(key)
        if await self._incomplete.look() or done:
            self._changed()
        return bool(self._damaged) or self._incomplete.waits

    async def _look_at(self, key: TopicPartition) -> bool:
        """Try to remove the damaged replica of partition `key` from its ISR. Return whether no
        further attempt is needed."""
        damage = self._damaged[key]
        try:
            # The reply to an earlier write may have been lost.
            self._raised(await read_incarnation(self._leave.coord, self._leave.broker_id))
            opened, live = self._logs.log(key), self._live()
            if opened is None or opened.failure is not None:
                return True  # the log is closed, or its log directory has failed
            if damage.is_whole and opened.damage is None:
                return True  # the only replica of its partition; `LogOpener` accepted its epochs
            if not live or not await self._step_aside(key, damage, live):
                return False
            await self._replicas.withdraw(key, damage)
        except (CoordError, StorageError) as error:
            log.warning(
                "damaged replica cannot leave the isr, trying again partition=%s error=%r",
                key,
                error,
            )
            return False
        # After the copying into the old log has stopped: with the new incarnation, a fetch for that
        # log could add the replica to the ISR again.
        self._raised(self._leave.incarnation)
        return True

    async def _step_aside(
        self, key: TopicPartition, damage: Damage, live: Container[int] | None
    ) -> bool:
        """Remove this broker's replica of `key` from the ISR and the eligible replicas, if a
        replica on another broker in `live` can replace it (None: on any other broker). Return
        whether the new state is stored in ZooKeeper. Raises CoordError."""

        async def decide(state: PartitionState, _: Topic) -> PartitionState | None:
            changed = stepped_aside(state, self._leave.broker_id, live)
            if changed is None and key not in self._told:
                self._told.add(key)
                log.error(
                    "damaged replica kept in the isr partition=%s offset=%d: no other live broker"
                    " has an in-sync or eligible replica; this broker serves the intact records",
                    key,
                    damage.offset,
                )
            return changed

        reason, has_registered = f"damaged offset={damage.offset}", live is not None
        changed = await self._leave(key, reason, decide, raises=has_registered)
        if changed is not None:
            self._logs.incomplete.replaceable.add(key)
        return changed is not None
