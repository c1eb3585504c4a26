"""The rules for the ISR and the high watermark, as pure functions (KIP-101, KIP-279, KIP-320,
KIP-497, KIP-966). The high watermark is the smallest log end offset of all replicas that are in the
stored ISR or in the new ISR of a pending change."""

from __future__ import annotations

from collections.abc import Iterable

from pybroker.model import PartitionState


def committed_end(current: int, leader_end: int, member_ends: Iterable[int]) -> int:
    """Return the new high watermark; never below `current`. `member_ends` are the log end offsets
    of all followers in the stored ISR or in the new ISR of a pending change. A follower that has
    not fetched in this leader epoch has NO_OFFSET; the result is then `current`."""
    return max(current, min(leader_end, min(member_ends, default=leader_end)))


def required_replicas(min_insync_replicas: int, replica_count: int) -> int:
    """Return how many in-sync replicas an append with acks=all needs: min.insync.replicas, but at
    most `replica_count` (as in Kafka 3.9)."""
    return min(min_insync_replicas, replica_count)


def has_enough_replicas(isr_size: int, min_insync_replicas: int, replica_count: int) -> bool:
    """Return whether the ISR is large enough for appends with acks=all."""
    return isr_size >= required_replicas(min_insync_replicas, replica_count)


def may_commit(stored: PartitionState, required: int) -> bool:
    """Return whether the high watermark may advance. The `stored` ISR must have at least `required`
    replicas, and the partition's list of eligible leader replicas must be empty (KIP-966)."""
    return len(stored.isr) >= required and not stored.eligible


def may_join(follower_end: int, *, high_watermark: int, epoch_start: int) -> bool:
    """Return whether a follower with the log end offset `follower_end` may join the ISR (KIP-320).
    `epoch_start` is the leader's log end offset at the start of its leader epoch."""
    return follower_end >= high_watermark and follower_end >= epoch_start


def maximal_isr(stored: Iterable[int], pending: Iterable[int] | None) -> frozenset[int]:
    """Return all members of the `stored` ISR and of the `pending` one (KIP-497). `pending` is None
    if no ISR change is pending."""
    return frozenset(stored) if pending is None else frozenset((*stored, *pending))
