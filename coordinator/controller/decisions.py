"""Pure decisions about the next state of a partition. A decision is a `StateWrite`; the partition
gets the new state when the write is stored, not earlier."""

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
    """The inputs of a decision about one partition.

    - `hosts`: the live brokers that can use their replica
    - `candidates`: the hosts that are not in controlled shutdown
    - `stale`: see `ClusterContext.stale`
    - `required`: min.insync.replicas, at most the number of replicas
    - `unclean`: whether the topic allows unclean elections
    - `yielding`: the brokers that refused to lead the partition
    """

    hosts: Collection[int]
    candidates: Collection[int]
    controller_epoch: int
    stale: Collection[int] = ()
    required: int = 1
    unclean: bool = False
    yielding: Collection[int] = ()

    def in_order(self, replicas: Sequence[int]) -> Sequence[int]:
        """Return the replicas in order of preference as leader. Replicas on brokers that refused to
        lead come last."""
        return sorted(replicas, key=lambda replica: replica in self.yielding)

    @property
    def candidates_not_stale(self) -> Collection[int]:
        """The `candidates` without the ISR members that must leave the ISR after a restart
        (`stale`). Candidates outside the ISR are included."""
        if not self.stale:
            return self.candidates
        return [replica for replica in self.candidates if replica not in self.stale]


def decide_repair(partition: Partition, now: Circumstances) -> StateWrite | None:
    """Return the best state that the live brokers allow; None if the state needs no change. If no
    replica may lead, the partition gets no leader and keeps its ISR, because every ISR member has
    all committed records (KAFKA-5083)."""
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
    """Return the state with the leader and ISR of `elected`, in the next leader epoch. If the new
    ISR is smaller than `now.required`, the replicas that leave the ISR become eligible leader
    replicas (KIP-966), except in an unclean election."""
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
    """Return the state after the followers `gone` have left the ISR; None if the ISR contains none
    of these followers. The leader must not be one of `gone`."""
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
