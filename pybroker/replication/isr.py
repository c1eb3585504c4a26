"""Arithmetic of the in-sync replica set. Pure functions; see KIP-101, KIP-279, KIP-320, KIP-497 and
KIP-966 for the rules. The model checker of the tests calls them too.

The high watermark is the smallest log end offset of all replicas that are in the ISR, or may be in
it by a change under way. Each electable replica holds every record below it.
"""

from __future__ import annotations

from collections.abc import Iterable

from pybroker.model import PartitionState


def committed_end(current: int, leader_end: int, member_ends: Iterable[int]) -> int:
    """Return the new high watermark, never below `current`.

    `member_ends` are the log ends of all followers that are in the ISR, or may be in it by a change
    under way, as reported in this leader epoch. A follower that has not reported has NO_OFFSET; it
    keeps the high watermark where it is.
    """
    return max(current, min(leader_end, min(member_ends, default=leader_end)))


def required_replicas(min_insync_replicas: int, replica_count: int) -> int:
    """Return how many replicas have to be in sync for acks=all, at most the number of replicas (as
    Kafka 3.9)."""
    return min(min_insync_replicas, replica_count)


def has_enough_replicas(isr_size: int, min_insync_replicas: int, replica_count: int) -> bool:
    """Return whether the ISR is large enough for acks=all."""
    return isr_size >= required_replicas(min_insync_replicas, replica_count)


def may_commit(stored: PartitionState, required: int) -> bool:
    """Return whether the high watermark may advance (KIP-966): not while the stored ISR is smaller
    than `required`, and not while the node names eligible replicas outside the ISR, since they may
    be elected as they are. Lowering min.insync.replicas does not end their eligibility."""
    return len(stored.isr) >= required and not stored.eligible


def may_join(follower_end: int, *, high_watermark: int, epoch_start: int) -> bool:
    """Return whether a follower with this log end may join the ISR (KIP-320). It must hold all
    records that the leader knows to be committed, and all records from before the leader's epoch: a
    new leader's high watermark may lag behind that of its predecessor."""
    return follower_end >= high_watermark and follower_end >= epoch_start


def maximal_isr(stored: Iterable[int], pending: Iterable[int] | None) -> frozenset[int]:
    """Return all replicas that may be in the ISR while the outcome of a change is unknown
    (KIP-497)."""
    return frozenset(stored) if pending is None else frozenset((*stored, *pending))
