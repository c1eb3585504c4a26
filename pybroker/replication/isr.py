"""The rules of the in-sync replicas and of the high watermark, as pure functions. See KIP-101,
KIP-279, KIP-320, KIP-497 and KIP-966. The model checker of the tests calls these functions too.

The high watermark is the smallest log end offset among the replicas that are in the ISR, or may be
in it by a change under way. Each in-sync or eligible replica stores every record below the high
watermark.
"""

from __future__ import annotations

from collections.abc import Iterable

from pybroker.model import PartitionState


def committed_end(current: int, leader_end: int, member_ends: Iterable[int]) -> int:
    """Return the new high watermark, never below the `current` one. `leader_end` is the leader's
    log end offset.

    `member_ends` are the log end offsets of all followers that are in the ISR, or may be in it by a
    change under way, as the followers reported them in this leader epoch. The log end of a follower
    that has not reported yet is NO_OFFSET, and the high watermark does not advance."""
    return max(current, min(leader_end, min(member_ends, default=leader_end)))


def required_replicas(min_insync_replicas: int, replica_count: int) -> int:
    """Return how many in-sync replicas an append with acks=all needs: min.insync.replicas, but at
    most the number of the partition's replicas (as in Kafka 3.9)."""
    return min(min_insync_replicas, replica_count)


def has_enough_replicas(isr_size: int, min_insync_replicas: int, replica_count: int) -> bool:
    """Return whether the ISR is large enough for appends with acks=all."""
    return isr_size >= required_replicas(min_insync_replicas, replica_count)


def may_commit(stored: PartitionState, required: int) -> bool:
    """Return whether the high watermark may advance beyond its current value (KIP-966). Two
    conditions must hold. The ISR in the `stored` state has at least `required` replicas. The state
    names no eligible replicas, because the controller may elect one, and it may lack records above
    the current high watermark. Eligible replicas may remain although the ISR is large enough, for
    example after an operator has lowered min.insync.replicas."""
    return len(stored.isr) >= required and not stored.eligible


def may_join(follower_end: int, *, high_watermark: int, epoch_start: int) -> bool:
    """Return whether a follower whose log end offset is `follower_end` may join the ISR (KIP-320).
    Its log must contain all records below the leader's high watermark, and all records below
    `epoch_start`, the log end at the start of the leader's epoch. A new leader's high watermark may
    be lower than that of the previous leader."""
    return follower_end >= high_watermark and follower_end >= epoch_start


def maximal_isr(stored: Iterable[int], pending: Iterable[int] | None) -> frozenset[int]:
    """Return all replicas that may be in the ISR while it is not known whether a change is stored:
    the members of the `stored` ISR and of the `pending` one (KIP-497). `pending` is None if no
    change is under way."""
    return frozenset(stored) if pending is None else frozenset((*stored, *pending))
