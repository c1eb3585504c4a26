"""Automatic preferred leader elections (auto.leader.rebalance.enable).

The elections are held in rounds, so that the controller handles other events between two rounds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Final

from pybroker.coordinator.controller.events import RebalanceDue
from pybroker.coordinator.controller.partitions import Partition, StateWrite
from pybroker.coordinator.controller.preferred import decide_preferred
from pybroker.coordinator.controller.services import ControllerServices
from pybroker.model import TopicPartition

log = logging.getLogger(__name__)

ELECTIONS_PER_ROUND_MAX: Final = 1_000
BETWEEN_ROUNDS_S: Final = 1.0


def imbalanced(partitions: Iterable[Partition], percentage: int) -> dict[int, list[TopicPartition]]:
    """Return broker -> the partitions that the broker should lead (it has the preferred replica),
    but does not lead. Leave out a broker if these partitions are at most `percentage` percent of
    all partitions that the broker should lead."""
    totals: dict[int, int] = {}
    led_by_others: dict[int, list[TopicPartition]] = {}
    for partition in partitions:
        preferred = partition.replicas[0]
        totals[preferred] = totals.get(preferred, 0) + 1
        if partition.state is not None and partition.state.leader != preferred:
            led_by_others.setdefault(preferred, []).append(partition.topic_partition)
    return {
        broker: keys
        for broker, keys in sorted(led_by_others.items())
        if len(keys) * 100 > totals[broker] * percentage
    }


class Rebalance:
    """Runs the automatic preferred leader elections during one controller's term. Owns a timer,
    from `begin` to `close`."""

    def __init__(self, services: ControllerServices) -> None:
        self._services = services
        self._settings = services.settings.rebalance
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Schedule the first check, unless auto.leader.rebalance.enable is off."""
        if self._settings is not None:
            self._schedule(self._settings.first_check_s)

    async def check(self) -> None:
        """Hold one round of preferred leader elections, and schedule the next call: after
        BETWEEN_ROUNDS_S if another round should follow, otherwise after the configured interval.
        Raises ControllerMoved, CoordError."""
        if self._settings is None:
            return
        self._schedule(self._settings.interval_s)
        if await self._round(self._settings.imbalance_percentage):
            self._schedule(BETWEEN_ROUNDS_S)

    def close(self) -> None:
        """Cancel the timer. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def _round(self, percentage: int) -> bool:
        """Hold at most ELECTIONS_PER_ROUND_MAX preferred leader elections for the brokers that
        `imbalanced` returns. Return whether another round should follow: some leaders were elected,
        and more elections are possible."""
        context = self._services.context
        due = imbalanced(context.kept_partitions(), percentage)
        keys = [key for keys in due.values() for key in keys]
        # A leader may have added replicas to the ISR since the state was last read.
        await self._services.machine.refresh(
            [key for key in keys if self._decide(context.partitions[key]) is None]
        )
        known = [context.partitions[key] for key in keys]
        electable = [partition for partition in known if self._decide(partition) is not None]
        chosen = electable[:ELECTIONS_PER_ROUND_MAX]
        if not chosen:
            return False
        versions = {partition.topic_partition: partition.version for partition in chosen}

        def decide(partition: Partition) -> StateWrite | None:
            changed = partition.version != versions[partition.topic_partition]
            return None if changed else self._decide(partition)

        await self._services.machine.move(list(versions), decide)
        moved = sum(
            partition.state is not None and partition.state.leader == partition.replicas[0]
            for partition in map(context.partitions.__getitem__, versions)
        )
        log.info(
            "leaders rebalanced brokers=%s partitions=%d moved=%d", list(due), len(electable), moved
        )
        return moved > 0 and len(electable) > len(chosen)

    def _decide(self, partition: Partition) -> StateWrite | None:
        return decide_preferred(partition, self._services.circumstances(partition))

    def _schedule(self, pause_s: float) -> None:
        self.close()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(pause_s, self._services.enqueue, RebalanceDue())
