"""Orphaned partitions: after a power loss every in-sync and every eligible replica has left the
ISR, so no replica is known to hold all committed records.

The controller waits until all assigned replicas are live and have reported their log ends. Then it
elects the longest log and writes a loss receipt. An unclean election may come first. A log end
report holds only for the broker's incarnation: the election's multi checks that no member of the
new ISR has begun a new incarnation.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence

from pybroker.coordinator.controller.decisions import Circumstances, succeeded
from pybroker.coordinator.controller.leaders import Elected
from pybroker.coordinator.controller.partition_state_machine import Decide
from pybroker.coordinator.controller.partitions import Partition, Reason, StateWrite
from pybroker.coordinator.controller.reading import read_each
from pybroker.coordinator.controller.services import ControllerServices
from pybroker.coordinator.zookeeper.claims import Claim, read_claim
from pybroker.coordinator.zookeeper.registry import read_incarnation
from pybroker.model import NO_TOPIC_ID, TopicPartition, is_orphaned

log = logging.getLogger(__name__)


def longest(
    partition: Partition, claims: Mapping[int, Claim], hosts: Collection[int]
) -> Sequence[int]:
    """Return the replicas with the longest log, in the order of the assignment: the log ends with
    the latest leader epoch and, in that epoch, at the largest offset. They have the same records.
    Return none while a replica is not usable or has not reported its log end for this state.

    A log whose last epoch is later than the partition's leader epoch is damaged and does not count:
    no checksum covers the epochs of batches.
    """
    state = partition.state
    assert state is not None
    ends = {}
    for replica in partition.replicas:
        claim = claims.get(replica)
        if replica not in hosts or claim is None or claim.leader_epoch != state.leader_epoch:
            return ()
        if claim.epoch <= state.leader_epoch:
            ends[replica] = claim.epoch, claim.end
    return [replica for replica, end in ends.items() if end == max(ends.values())]


def decide_longest(
    partition: Partition, claims: Mapping[int, Claim], now: Circumstances
) -> StateWrite | None:
    """Return the state in which the longest log leads, with all equally long logs as the ISR. None
    if the partition is not orphaned (any more), or if a report is missing."""
    if partition.state is None or not is_orphaned(partition.state):
        return None
    isr = tuple(longest(partition, claims, now.candidates))
    if not isr:
        return None
    write = succeeded(partition, Elected(isr[0], isr, unclean=True), now, Reason.POWER_LOSS)
    claimed = tuple((replica, claims[replica].incarnation) for replica in isr)
    return dataclasses.replace(write, incarnations=claimed)


class Suspects:
    """The elections of orphaned partitions in one controller's term."""

    def __init__(self, services: ControllerServices) -> None:
        self._services = services

    async def look_at_all(self) -> None:
        """`look` at all partitions: a broker that starts may have stored its reports before."""
        await self.look([each.topic_partition for each in self._services.context.kept_partitions()])

    async def look(self, keys: Iterable[TopicPartition]) -> None:
        """Elect leaders for those of the partitions that are orphaned and have all reports. Raises
        ControllerMoved, or CoordError."""
        services = self._services
        incarnations: dict[int, int] = {}
        for key in keys:
            partition = services.context.partitions.get(key)
            if partition is None or partition.state is None or not is_orphaned(partition.state):
                continue
            claims = await self._read(partition, incarnations)
            await services.machine.move([key], self._decision(claims))

    def _decision(self, claims: Mapping[int, Claim]) -> Decide:
        return lambda each: decide_longest(each, claims, self._services.circumstances(each))

    async def _read(self, partition: Partition, incarnations: dict[int, int]) -> dict[int, Claim]:
        """Return the valid reports by replica. A report is valid if its broker has not begun a new
        incarnation, and if it is for this topic, not for a deleted topic of the same name.
        `incarnations` holds the incarnations that were read already; the others are added."""
        key, coord = partition.topic_partition, self._services.coord
        topic_id = self._services.context.topics[key.topic].topic_id

        async def read(replica: int) -> Claim | None:
            claim = await read_claim(coord, key, replica)
            if claim is None or claim.topic_id not in (NO_TOPIC_ID, topic_id):
                return None
            if replica not in incarnations:
                incarnations[replica] = await read_incarnation(coord, replica)
            return claim if claim.incarnation == incarnations[replica] else None

        return await read_each(read, partition.replicas)
