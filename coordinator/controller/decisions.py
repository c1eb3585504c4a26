"""What should be stored for a partition next: pure decisions from what the controller knows.

A decision is a `StateWrite`; only when it is stored does the partition have that state. Nothing
here waits, writes or logs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from pybroker.coordinator.controller import leaders
from pybroker.coordinator.controller.leaders import Elected
from pybroker.coordinator.controller.partitions import (
    NO_VERSION,
    Partition,
    PartitionStatus,
    Reason,
    StateWrite,
)
from pybroker.model import NO_LEADER, PartitionState, isr_changed


@dataclass(frozen=True, slots=True)
class Circumstances:
    """Under what a decision about one partition is made.

    `hosts`: live brokers that can use their replica; `candidates`: of these, who will stay.
    `stale`: members of the ISR whose broker ended or started anew since it was known to be in sync:
    they have to leave, and may come back when they have caught up. `required`: how small the ISR
    may become before the high watermark stands still (min.insync.replicas, at most the number of
    replicas). `unclean`: whether a replica may lead that may lack committed records. `yielding`:
    who would rather not lead.
    """

    hosts: Collection[int]
    candidates: Collection[int]
    controller_epoch: int
    stale: Collection[int] = ()
    required: int = 1
    unclean: bool = False
    yielding: Collection[int] = ()

    def in_order(self, replicas: Sequence[int]) -> Sequence[int]:
        """The replicas as they are to be asked whether they can lead."""
        return sorted(replicas, key=lambda replica: replica in self.yielding)

    @property
    def in_sync_candidates(self) -> Collection[int]:
        """Who may lead if it is in the ISR."""
        if not self.stale:
            return self.candidates
        return [replica for replica in self.candidates if replica not in self.stale]


def decide_repair(partition: Partition, now: Circumstances) -> StateWrite | None:
    """The best state that the live brokers allow; None if nothing is to be written.

    A partition that nobody has led yet gets the first live assigned replica as its leader, and all
    live ones in sync. A leader that is lost is replaced in the same write in which the ISR shrinks;
    lost followers leave the ISR, and the leader epoch grows so that the leader takes notice. When
    nobody may lead, the partition is left without a leader and the ISR as it was: each of its
    members holds everything committed, and the last of them must never be forgotten (KAFKA-5083).
    """
    state = partition.state
    if state is None:
        return _opened(partition, now)
    if _is_led(partition, now):
        gone = [replica for replica in state.isr if replica not in now.hosts]
        return without(partition, {*gone, *now.stale}, now, Reason.REPLICA_LOST)
    elected = leaders.offline(
        now.in_order(partition.replicas),
        state,
        now.candidates,
        stale=now.stale,
        unclean=now.unclean,
    )
    if elected is not None:
        reason = Reason.UNCLEAN_ELECTION if elected.unclean else Reason.LEADER_LOST
        return succeeded(partition, elected, now, reason)
    if state.leader == NO_LEADER:
        return None
    leaderless = dataclasses.replace(
        state,
        leader=NO_LEADER,
        leader_epoch=state.leader_epoch + 1,
        controller_epoch=now.controller_epoch,
    )
    return StateWrite(
        partition.topic_partition, leaderless, partition.version, Reason.NOBODY_MAY_LEAD
    )


def succeeded(
    partition: Partition, elected: Elected, now: Circumstances, reason: Reason
) -> StateWrite:
    """The state with the new leader. Who leaves an ISR that becomes too small stays eligible; after
    an unclean election nobody is, for the new leader's log is what counts now."""
    state = partition.state
    assert state is not None and elected.leader in elected.isr
    changed = isr_changed(state, elected.isr, 0 if elected.unclean else now.required)
    changed = dataclasses.replace(
        changed,
        leader=elected.leader,
        leader_epoch=state.leader_epoch + 1,
        controller_epoch=now.controller_epoch,
    )
    return StateWrite(
        partition.topic_partition, changed, partition.version, reason, elected.unclean
    )


def without(
    partition: Partition, gone: Collection[int], now: Circumstances, reason: Reason
) -> StateWrite | None:
    """The state without these followers in the ISR; None if none of them is in it. The leader is
    not among them."""
    state = partition.state
    assert state is not None and state.leader not in gone
    isr = tuple(replica for replica in state.isr if replica not in gone)
    if isr == state.isr or not isr:
        return None
    return succeeded(partition, Elected(state.leader, isr), now, reason)


def _is_led(partition: Partition, now: Circumstances) -> bool:
    leader = NO_LEADER if partition.state is None else partition.state.leader
    return (
        partition.status is PartitionStatus.ONLINE
        and leader in now.hosts
        and leader not in now.stale
    )


def _opened(partition: Partition, now: Circumstances) -> StateWrite | None:
    isr = tuple(replica for replica in partition.replicas if replica in now.candidates)
    if not isr:
        return None
    opened = PartitionState(isr[0], 0, isr, now.controller_epoch)
    return StateWrite(partition.topic_partition, opened, NO_VERSION, Reason.NEW_PARTITION)
