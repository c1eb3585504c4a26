"""Partitions that nobody is known to have as a whole: every in-sync and every eligible replica has
stepped aside after a power loss. They wait until all replicas are back and have said what they
have; then the longest log leads, with a loss receipt. An unclean election may come first.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping

from pybroker.coordinator.controller.decisions import Circumstances, succeeded
from pybroker.coordinator.controller.leaders import Elected
from pybroker.coordinator.controller.office import Office
from pybroker.coordinator.controller.partitions import Partition, Reason, StateWrite
from pybroker.coordinator.controller.reading import read_each
from pybroker.coordinator.controller.transitions import Decide
from pybroker.coordinator.zookeeper.claims import Claim, read_claim
from pybroker.model import NO_TOPIC_ID, TopicPartition, is_orphaned

logger = logging.getLogger(__name__)


def longest(
    partition: Partition, claims: Mapping[int, Claim], hosts: Collection[int]
) -> int | None:
    """The replica whose log ends with the latest epoch, and in it at the largest offset; of equal
    ones the first assigned. None while a replica is away or has not answered to this state.

    An epoch that has not been yet is damage: no checksum covers the epochs of batches.
    """
    state = partition.state
    assert state is not None
    found = []
    for place, replica in enumerate(partition.replicas):
        claim = claims.get(replica)
        if replica not in hosts or claim is None or claim.leader_epoch != state.leader_epoch:
            return None
        if claim.epoch <= state.leader_epoch:
            found.append((claim.epoch, claim.end, -place, replica))
    return max(found)[-1] if found else None


def decide_longest(
    partition: Partition, claims: Mapping[int, Claim], now: Circumstances
) -> StateWrite | None:
    """The longest log leads, alone; the others follow it. None if it is too early, or too late."""
    if partition.state is None or not is_orphaned(partition.state):
        return None
    leader = longest(partition, claims, now.candidates)
    if leader is None:
        return None
    elected = Elected(leader, (leader,), unclean=True)
    return succeeded(partition, elected, now, Reason.POWER_LOSS)


class Suspects:
    """Of one reign."""

    def __init__(self, office: Office) -> None:
        self._office = office

    async def look_at_all(self) -> None:
        """As `look`. For when a replica is back that has claimed before: it does so but once."""
        await self.look([each.topic_partition for each in self._office.context.kept_partitions()])

    async def look(self, keys: Iterable[TopicPartition]) -> None:
        """Elect where all is known. Raises ControllerMoved, or CoordError."""
        office = self._office
        for key in keys:
            partition = office.context.partitions.get(key)
            if partition is None or partition.state is None or not is_orphaned(partition.state):
                continue
            claims = await self._read(partition)
            await office.machine.move([key], self._decision(claims))

    def _decision(self, claims: Mapping[int, Claim]) -> Decide:
        return lambda each: decide_longest(each, claims, self._office.circumstances(each))

    async def _read(self, partition: Partition) -> dict[int, Claim]:
        """A claim for an earlier topic of the name may have been on its way when that was
        removed."""
        key, coord = partition.topic_partition, self._office.coord
        topic_id = self._office.context.topics[key.topic].topic_id

        async def read(replica: int) -> Claim | None:
            claim = await read_claim(coord, key, replica)
            is_of_another = claim is not None and claim.topic_id not in (NO_TOPIC_ID, topic_id)
            return None if is_of_another else claim

        return await read_each(read, partition.replicas)
