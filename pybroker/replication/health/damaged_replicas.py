"""Damaged replicas, whose log has a hole: they leave the ISR and the eligible replicas by
themselves, before one is elected for what it had, and are copied anew from the next leader.

Other replicas have what the hole held, or nothing is done: the only replica that counts is used as
far as it is whole, and no replica truncates it. A hole is found at the start
(`storage/recovery.py`) or, while the log is in use, by `scrubber.py`.
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
"""How soon a replica that the partition could not do without is looked at again."""


def stepped_aside(
    state: PartitionState, broker_id: int, live: Container[int] | None
) -> PartitionState | None:
    """The state in which that broker's replica counts for nothing; None if no other in-sync or
    eligible replica is on a `live` broker (before those are known, on any). Also where it counts
    for nothing already the state is written again: a leader that is about to take it back must not,
    for what it had."""
    others = {*state.isr, *state.eligible} - {broker_id}
    if not any(live is None or other in live for other in others):
        return None
    return without(state, broker_id) or state


class DamagedReplicas:
    """`settle` before the broker registers; then `loop` runs from its start to its stop."""

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
        """`live` are the brokers that run, none before they are known; `changed` lets the
        controller look at what is stored of the replicas here, and tell this broker its roles
        again; `raised` is told the broker's new incarnation."""
        self._leave = StepAside(coord, broker_id)
        self._logs = logs
        self._replicas = replicas
        self._live = live
        self._changed = changed
        self._raised = raised
        self._damaged: dict[TopicPartition, Damage] = {}
        """Replicas that have not stepped aside yet."""
        self._told: set[TopicPartition] = set()
        self._incomplete = IncompleteReplicas(self._leave, logs, live)
        replicas.on_refusal = self._refused
        self.loop = RetryLoop("damaged-replicas", self._look, _LOOK_AGAIN_S)

    async def settle(self) -> None:
        """Let no replica with a hole be elected. Raises CoordError: then the broker may not
        register."""
        damaged = sorted(self._logs.damaged().items())
        if damaged:
            await end_earlier_lives(self._leave.coord, self._leave.broker_id)
        for key, damage in damaged:
            if not await self._step_aside(key, damage, None):
                self._damaged[key] = damage
                self.loop.wake()

    @property
    def waiting(self) -> dict[TopicPartition, Damage]:
        """The holes in replicas that no other can stand in for now; a snapshot."""
        return dict(self._damaged)

    def found(self, key: TopicPartition, damage: Damage) -> None:
        """An open log is not what was written."""
        opened = self._logs.log(key)
        if key in self._damaged or opened is None or opened.damage is not None:
            return
        log.error(
            "log damaged partition=%s path=%s position=%d offset=%d reason=%r",
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
        """Whether any replica may have to leave yet."""
        done = [key for key in self.waiting if await self._look_at(key)]
        for key in done:
            del self._damaged[key]
            self._told.discard(key)
        if await self._incomplete.look() or done:
            self._changed()
        return bool(self._damaged) or self._incomplete.waits

    async def _look_at(self, key: TopicPartition) -> bool:
        """Whether nothing is left to be done for that replica."""
        damage = self._damaged[key]
        try:
            # The reply to an earlier write may have been lost.
            self._raised(await read_incarnation(self._leave.coord, self._leave.broker_id))
            opened, live = self._logs.log(key), self._live()
            if opened is None or opened.failure is not None:
                return True  # nothing is copied into it
            if damage.is_whole and opened.damage is None:
                return True  # it is the only replica, and believed
            if not live or not await self._step_aside(key, damage, live):
                return False
            await self._replicas.withdraw(key, damage)
        except (CoordError, StorageError) as error:
            log.warning("damaged replica not withdrawn partition=%s error=%r", key, error)
            return False
        # Not before: what is still copied into the old log must not bring the replica back.
        self._raised(self._leave.incarnation)
        return True

    async def _step_aside(
        self, key: TopicPartition, damage: Damage, live: Container[int] | None
    ) -> bool:
        """Whether the replica counts for nothing now. Raises CoordError."""

        async def decide(state: PartitionState, _: Topic) -> PartitionState | None:
            changed = stepped_aside(state, self._leave.broker_id, live)
            if changed is None and key not in self._told:
                self._told.add(key)
                log.error(
                    "damaged replica kept partition=%s offset=%d: no other replica that runs has"
                    " its records; what is whole is served",
                    key,
                    damage.offset,
                )
            return changed

        reason, has_registered = f"damaged offset={damage.offset}", live is not None
        changed = await self._leave(key, reason, decide, raises=has_registered)
        if changed is not None:
            self._logs.incomplete.replaceable.add(key)
        return changed is not None
