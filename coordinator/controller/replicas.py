"""What the loss of brokers does to a partition's state. Pure, like `partitions.py`."""

from __future__ import annotations

from collections.abc import Collection

from pybroker.coordinator.controller.partitions import Partition, StateWrite, decide_online
from pybroker.model import NO_LEADER, PartitionState


def decide_loss(
    partition: Partition, lost: Collection[int], live: Collection[int], controller_epoch: int
) -> StateWrite | None:
    """The state after the brokers `lost` went away (`live` are those that remain); None if nothing
    is to be written.

    A lost leader is replaced in the same write. When nobody may follow it, the partition is left
    without a leader and the ISR as it was: each of its members holds everything committed, and
    the last of them must never be forgotten (KAFKA-5083); for the same reason a partition that has
    no leader keeps its ISR. A lost follower leaves the ISR, and the
    leader epoch grows so that the leader takes notice.
    """
    state = partition.state
    if state is None or state.leader == NO_LEADER:
        return None
    if state.leader in lost:
        replacement = decide_online(partition, live, controller_epoch)
        if replacement is not None:
            return replacement
        leader, isr = NO_LEADER, state.isr
    else:
        leader = state.leader
        isr = tuple(broker for broker in state.isr if broker not in lost)
        if isr == state.isr or not isr:
            return None
    changed = PartitionState(
        leader=leader,
        leader_epoch=state.leader_epoch + 1,
        isr=isr,
        controller_epoch=controller_epoch,
        eligible=state.eligible,
    )
    return StateWrite(partition.topic_partition, changed, partition.version)
