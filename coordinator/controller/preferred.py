"""Elections that operators request: preferred elections by the node
/admin/preferred_replica_election, preferred or unclean elections by ElectLeaders (KIP-460).

The controller always removes the node: Kafka's tools refuse to start while the node exists.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from typing import Final

from pybroker.coordinator.controller import leaders
from pybroker.coordinator.controller.decisions import (
    Circumstances,
    decide_repair,
    succeeded,
)
from pybroker.coordinator.controller.events import (
    Election,
    ElectionAsked,
    ElectionType,
    PreferredElectionRequested,
)
from pybroker.coordinator.controller.partitions import Partition, Reason, StateWrite
from pybroker.coordinator.controller.request_nodes import read_request, remove_request
from pybroker.coordinator.controller.services import ControllerServices
from pybroker.coordinator.zookeeper import paths, schemas
from pybroker.errors import ErrorCode, MalformedNode
from pybroker.model import NO_LEADER, TopicPartition
from pybroker.ports import Watch

log = logging.getLogger(__name__)

Elections = dict[TopicPartition, Election]

_NOT_AVAILABLE: Final = {
    ElectionType.PREFERRED: ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
    ElectionType.UNCLEAN: ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
}
_FAILURES_LOGGED_MAX: Final = 20
"""The maximum number of partitions that are named in the log: the node may request tens of
thousands of elections."""
_DELETED: Final = Election(ErrorCode.INVALID_TOPIC_EXCEPTION, "The topic is being deleted")
_UNKNOWN: Final = Election(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "The partition does not exist.")


# ---- decisions


def decide_preferred(partition: Partition, now: Circumstances) -> StateWrite | None:
    """Return the state with the preferred replica as the leader. Return None if that replica leads
    already or must not lead."""
    state = partition.state
    first = partition.replicas[0]
    if state is None or state.leader == first or first in now.yielding:
        return None
    elected = leaders.preferred(partition.replicas, state, now.candidates_not_stale)
    if elected is None:
        return None
    return succeeded(partition, elected, now, Reason.PREFERRED_ELECTION)


def is_needed(partition: Partition, election_type: ElectionType, hosts: Collection[int]) -> bool:
    """Whether the partition needs this election. `hosts`: the live brokers, except those that
    cannot open their replica of the partition."""
    leader = NO_LEADER if partition.state is None else partition.state.leader
    if election_type is ElectionType.PREFERRED:
        return leader != partition.replicas[0]
    return leader not in hosts


# ---- carrying them out


class RequestedElections:
    """Handles requested elections in one controller's term."""

    def __init__(self, services: ControllerServices, watch: Watch) -> None:
        self._services = services
        self._watch = watch

    async def look(self) -> None:
        """Read the node /admin/preferred_replica_election. If it exists, hold the elections and
        remove the node."""
        found = await read_request(self._services, paths.PREFERRED_ELECTION, self._watch)
        if found is None:
            return
        data, stat = found
        try:
            asked = schemas.decode_partitions(paths.PREFERRED_ELECTION, data)
        except MalformedNode as error:
            log.error("preferred election ignored reason=%s", error)
            self._services.journal.election_ignored(str(error))
        else:
            self._note(await self.hold(ElectionType.PREFERRED, asked))
        await remove_request(
            self._services, paths.PREFERRED_ELECTION, stat, PreferredElectionRequested()
        )

    async def answer(self, event: ElectionAsked) -> None:
        """Run the elections of an ElectLeaders request and set the reply."""
        held = await self.hold(event.election_type, event.topic_partitions)
        if not event.reply.done():
            event.reply.set_result(held)

    async def hold(
        self, election_type: ElectionType, topic_partitions: Iterable[TopicPartition]
    ) -> Elections:
        """Hold an election for each of the partitions. Return partition -> result, in the given
        order. Raises ControllerMoved, CoordError."""
        context, machine = self._services.context, self._services.machine
        held: Elections = {}
        needed: list[Partition] = []
        for key in dict.fromkeys(topic_partitions):
            partition = context.partitions.get(key)
            if key.topic in context.deletions:
                held[key] = _DELETED
            elif partition is None:
                held[key] = _UNKNOWN
            elif is_needed(partition, election_type, context.hosts_of(partition)):
                held[key] = Election(_NOT_AVAILABLE[election_type])
                needed.append(partition)
            else:
                held[key] = Election(ErrorCode.ELECTION_NOT_NEEDED)
        decide = self._decision(election_type)
        # A leader may have added replicas to the ISR since the state was last read.
        await machine.refresh(
            partition.topic_partition for partition in needed if decide(partition) is None
        )
        await machine.move([partition.topic_partition for partition in needed], decide)
        for before in needed:
            key = before.topic_partition
            held[key] = self._outcome(election_type, context.partitions.get(key))
        return held

    def _decision(self, election_type: ElectionType) -> Callable[[Partition], StateWrite | None]:
        services = self._services

        def preferred(partition: Partition) -> StateWrite | None:
            return decide_preferred(partition, services.circumstances(partition))

        def unclean(partition: Partition) -> StateWrite | None:
            hosts = services.context.hosts_of(partition)
            if not is_needed(partition, ElectionType.UNCLEAN, hosts):
                return None
            now = replace(services.circumstances(partition), unclean=True)
            return decide_repair(partition, now)

        return preferred if election_type is ElectionType.PREFERRED else unclean

    def _outcome(self, election_type: ElectionType, partition: Partition | None) -> Election:
        if partition is None:
            return _UNKNOWN
        if is_needed(partition, election_type, self._services.context.hosts_of(partition)):
            code = _NOT_AVAILABLE[election_type]
            name = f"{election_type.name.lower()} election"
            message = f"Failed to elect leader for partition {partition.topic_partition} by {name}"
            return Election(code, message)
        leader = NO_LEADER if partition.state is None else partition.state.leader
        return Election(ErrorCode.NONE, leader=leader)

    def _note(self, held: Elections) -> None:
        """Log the results of the elections. Also record each failed election of a known partition
        in the decision journal."""
        elected = sum(election.code is ErrorCode.NONE for election in held.values())
        log.info("preferred election partitions=%d elected=%d", len(held), elected)
        failed = [
            (key, election.code.name)
            for key, election in held.items()
            if election.code not in (ErrorCode.NONE, ErrorCode.ELECTION_NOT_NEEDED)
        ]
        for key, name in failed[:_FAILURES_LOGGED_MAX]:
            log.warning("preferred election failed partition=%s reason=%s", key, name)
        if len(failed) > _FAILURES_LOGGED_MAX:
            log.warning("preferred elections failed partitions=%d", len(failed))
        for key, name in failed:
            if key in self._services.context.partitions:  # the node may name unknown partitions
                self._services.journal.election_failed(key, name)
