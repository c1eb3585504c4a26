"""Partitions that nobody is known to have as a whole: every in-sync and every eligible replica has
stepped aside after a power loss. They wait until all replicas are back and have said what they
have; then the longest log leads, with a loss receipt. An unclean election may come first. What a
broker has said does not hold for what it finds when it begins anew: the election checks that none
of those in sync has.
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
from pybroker.model import TopicPartition, is_orphaned

logger = logging.getLogger(__name__)


def longest(
    partition: Partition, claims: Mapping[int, Claim], hosts: Collection[int]
) -> Sequence[int]:
    """The replicas whose logs end with the latest epoch, and in it at the largest offset, in the
    order in which they were assigned: they have the same records. None while a replica is away or
    has not answered to this state.

    An epoch that has not been yet is damage: no checksum covers the epochs of batches.
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
    """The longest log leads, with all that are equal to it in sync; the others follow it. None if
    it is too early, or too late."""
    if partition.state is None or not is_orphaned(partition.state):
        return None
    isr = tuple(longest(partition, claims, now.candidates))
    if not isr:
        return None
    write = succeeded(partition, Elected(isr[0], isr, unclean=True), now, Reason.POWER_LOSS)
    claimed = tuple((replica, claims[replica].incarnation) for replica in isr)
    return dataclasses.replace(write, incarnations=claimed)


class Suspects:
    """Of one term."""

    def __init__(self, services: ControllerServices) -> None:
        self._services = services

    async def look_at_all(self) -> None:
        """As `look`. For when a broker is there whose claims are stored already."""
        await self.look([each.topic_partition for each in self._services.context.kept_partitions()])

    async def look(self, keys: Iterable[TopicPartition]) -> None:
        """Elect where all is known. Raises ControllerMoved, or CoordError."""
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
        """Those that hold. `incarnations` are those that are known, and gets the others."""
        key, coord = partition.topic_partition, self._services.coord

        async def read(replica: int) -> Claim | None:
            claim = await read_claim(coord, key, replica)
            if claim is None:
                return None
            if replica not in incarnations:
                incarnations[replica] = await read_incarnation(coord, replica)
            return claim if claim.incarnation == incarnations[replica] else None

        return await read_each(read, partition.replicas)
