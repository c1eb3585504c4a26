"""The rules of the in-sync replicas and the high watermark, as pure functions. See KIP-101,
KIP-279, KIP-320, KIP-497 and KIP-966. The model checker of the tests calls these functions too.

The high watermark is the smallest log end offset of all replicas that are in the ISR, or may be in
the ISR by a change under way. Each electable replica stores every record below the high watermark.
"""

from __future__ import annotations

from collections.abc import Iterable

from pybroker.model import PartitionState


def committed_end(current: int, leader_end: int, member_ends: Iterable[int]) -> int:
    """Return the new high watermark, never below `current`.

    `member_ends` are the log ends of all followers that are in the ISR, or may be in the ISR by a
    change under way, as reported in this leader epoch. While a follower has not reported, its log
    end is NO_OFFSET, and the high watermark does not advance.
    """
    return max(current, min(leader_end, min(member_ends, default=leader_end)))


def required_replicas(min_insync_replicas: int, replica_count: int) -> int:
    """Return how many replicas have to be in sync for acks=all: min.insync.replicas, at most the
    number of replicas (as in Kafka 3.9)."""
    return min(min_insync_replicas, replica_count)


def has_enough_replicas(isr_size: int, min_insync_replicas: int, replica_count: int) -> bool:
    """Return whether the ISR is large enough for acks=all."""
    return isr_size >= required_replicas(min_insync_replicas, replica_count)


def may_commit(stored: PartitionState, required: int) -> bool:
    """Return whether the high watermark may advance (KIP-966). The stored ISR must have at least
    `required` replicas, and the node must name no eligible replicas outside the ISR: the controller
    may elect one without new records. Lowering min.insync.replicas does not end their
    eligibility."""
    return len(stored.isr) >= required and not stored.eligible


def may_join(follower_end: int, *, high_watermark: int, epoch_start: int) -> bool:
    """Return whether a follower with this log end may join the ISR (KIP-320). Its log must contain
    all records below the leader's high watermark, and all records from before the leader's epoch:
    the high watermark of a new leader may be lower than that of the previous leader."""
    return follower_end >= high_watermark and follower_end >= epoch_start


def maximal_isr(stored: Iterable[int], pending: Iterable[int] | None) -> frozenset[int]:
    """Return all replicas that may be in the ISR while the outcome of a change is unknown: those of
    the stored ISR and of the pending one (KIP-497)."""
    return frozenset(stored) if pending is None else frozenset((*stored, *pending))
