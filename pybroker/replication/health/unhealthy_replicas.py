"""Removes damaged and incomplete replicas from the ISR and from the eligible replicas of their
partitions, if a live broker has another in-sync or eligible replica. A damaged replica has a log
with a corrupt range. An incomplete replica is still copying the leader's log, and may not lead.

If no other replica is in sync or eligible, an incomplete replica is removed only if a live broker
has another assigned replica and this broker has lost no log directory. A lost directory may return
with the records.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Container
from contextlib import suppress
from functools import partial
from typing import Final

from pybroker.background import RetryLoop
from pybroker.coordinator.zookeeper.registry import raise_incarnation, read_incarnation
from pybroker.coordinator.zookeeper.topic_nodes import Topic
from pybroker.errors import CoordError, StorageError
from pybroker.model import NO_LEADER, PartitionState, TopicPartition, is_orphaned
from pybroker.ports import Coord
from pybroker.replication.health.step_aside import StepAside, without
from pybroker.replication.manager import ReplicaManager
from pybroker.storage.log_parts import Damage
from pybroker.storage.manager import LogManager
from pybroker.storage.replica_health import Event

log = logging.getLogger(__name__)

_LOOK_AGAIN_S: Final = 2.0
"""The interval between two attempts to remove a replica from the ISR. An attempt has no effect
while no other replica of the partition can replace it."""


def stepped_aside(
    state: PartitionState, broker_id: int, live: Container[int] | None
) -> PartitionState | None:
    """Return None if no other broker in `live` (None: all brokers) is an in-sync or eligible
    replica (KIP-966). Otherwise return `state` without this broker as leader, in-sync or eligible
    replica. The state is unchanged if the broker has none of these roles."""
    others = {*state.isr, *state.eligible} - {broker_id}
    if not any(live is None or other in live for other in others):
        return None
    # The write of an unchanged state raises the version of the state node, so that a leader's
    # concurrent write cannot add the broker to the ISR.
    return without(state, broker_id) or state


class UnhealthyReplicas:
    """Removes the damaged and the incomplete replicas of one broker from the ISR. The broker calls
    `settle` before it registers, and runs `loop` afterwards."""

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
        """`live` returns the ids of the registered brokers, empty if unknown. `changed` is called
        after a replica has left its ISR. `raised` is called with the broker's new incarnation
        (KIP-903) after `loop` has increased it."""
        self._leave = StepAside(coord, broker_id)
        self._logs = logs
        self._replicas = replicas
        self._live = live
        self._changed = changed
        self._raised = raised
        self._may_be_raised = False
        """Whether an attempt to step aside may have raised the broker's incarnation."""
        self._told: set[TopicPartition] = set()
        self._refused: set[TopicPartition] = set()
        """The incomplete replicas that LeaderAndIsr named as leader, but that may not lead."""
        replicas.on_refusal = self._on_refusal
        self.loop = RetryLoop("unhealthy-replicas", self._look, _LOOK_AGAIN_S)

    async def settle(self) -> None:
        """Remove the damaged replicas of this broker from the ISR and from the eligible replicas.
        Raises CoordError. After an error the broker must not register."""
        damaged = sorted(self.waiting.items())
        if damaged:
            await raise_incarnation(self._leave.coord, self._leave.broker_id)
            self.loop.wake()  # for those that cannot step aside yet
        for key, damage in damaged:
            if await self._step_aside(key, damage, None):
                self._logs.health.move(key, Event.STEPPED_ASIDE)

    @property
    def waiting(self) -> dict[TopicPartition, Damage]:
        """Partition -> the damage of this broker's replica, for each damaged replica that is still
        in the ISR or an eligible leader replica."""
        damage = self._logs.health.damage
        return {key: damage[key] for key in self._logs.health.allowing(Event.STEPPED_ASIDE)}

    def found(self, key: TopicPartition, damage: Damage) -> None:
        """Record that the open log of partition `key` has the corrupt range `damage`."""
        if self._logs.log(key) is None or not self._logs.health.allows(key, Event.CORRUPT):
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
        self._logs.health.move(key, Event.CORRUPT, damage=damage)
        self.loop.wake()

    def _on_refusal(self, key: TopicPartition) -> None:
        if self._logs.health.allows(key, Event.ORPHANED):
            self._refused.add(key)
            self.loop.wake()

    async def _look(self) -> bool:
        """Try to remove each damaged or incomplete replica from the ISR of its partition. Return
        whether another attempt is needed."""
        if self._may_be_raised:  # the reply to an earlier write may have been lost
            with suppress(CoordError):
                self._raised(await read_incarnation(self._leave.coord, self._leave.broker_id))
                self._may_be_raised = False
        waiting = self.waiting
        self._told.intersection_update(waiting)
        left = [await self._try(key, self._withdraw(key)) for key in waiting]
        left += [await self._try(key, self._resign(key)) for key in sorted(self._refused)]
        if any(left):
            self._changed()
        return bool(self.waiting or self._refused or self._may_be_raised)

    async def _try(self, key: TopicPartition, leaving: Awaitable[bool]) -> bool:
        try:
            return await leaving
        except (CoordError, StorageError) as error:
            text = "replica cannot leave the isr, trying again partition=%s error=%r"
            log.warning(text, key, error)
            if key not in self.waiting:
                self._refused.add(key)
            return False

    async def _withdraw(self, key: TopicPartition) -> bool:
        """Try to remove the damaged replica of `key` from the ISR and from the eligible replicas.
        Return True if the replica was removed, or if it counts as intact again."""
        health = self._logs.health[key]
        opened, live, damage = self._logs.log(key), self._live(), self.waiting.get(key)
        if damage is not None and damage.is_whole and opened is not None and opened.damage is None:
            # `LogOpener` has accepted the leader epochs, as the partition has no other replica.
            return self._logs.health.move(key, Event.DISMISSED, health)
        if not live or damage is None:
            return False
        self._may_be_raised = True
        if not await self._step_aside(key, damage, live):
            return False
        await self._replicas.withdraw(key, damage)
        # After the copying into the old log has stopped: with the new incarnation, a fetch for that
        # log could add the replica to the ISR again.
        self._raised(self._leave.incarnation)
        self._may_be_raised = False
        return True

    async def _step_aside(
        self, key: TopicPartition, damage: Damage, live: Container[int] | None
    ) -> bool:
        """Remove this broker's damaged replica from the ISR: write the result of `stepped_aside` to
        ZooKeeper, unless the result is None. Return whether the result was written. Raises
        CoordError."""

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
        return await self._leave(key, reason, decide, raises_incarnation=has_registered) is not None

    async def _resign(self, key: TopicPartition) -> bool:
        """Try to remove the incomplete replica of `key` from the ISR and from the eligible
        replicas. Return whether it was removed."""
        self._refused.discard(key)
        health = self._logs.health[key]
        if not self._logs.health.allows(key, Event.ORPHANED):
            return False
        changed = await self._leave(key, "incomplete", partial(self._resigned, key))
        if changed is not None and is_orphaned(changed):
            self._logs.health.move(key, Event.ORPHANED, health)
        return changed is not None

    async def _resigned(
        self, key: TopicPartition, state: PartitionState, _: Topic
    ) -> PartitionState | None:
        me = self._leave.broker_id
        changed = without(state, me)
        if changed is None:
            return None
        # In-sync and eligible replicas have all committed records, so any of them can lead.
        others = {*changed.isr, *changed.eligible}
        if not others:
            # The lost log directory may return with the records: the operator decides.
            if self._logs.lost_directories or state.leader not in (NO_LEADER, me):
                return None
            others = {*await self._leave.assigned(key)} - {me}
        if others.isdisjoint(self._live()):
            self._refused.add(key)
            return None
        return changed
