"""Arithmetic of the in-sync replica set. Pure functions; see KIP-101, KIP-279, KIP-320, KIP-497 and
KIP-966 for the rules. The model checker of the tests calls them too.

The high watermark is the smallest log end offset over every replica that is in the ISR or may be in
it by a change under way: a record below it is on each replica that can be elected.
"""

from __future__ import annotations

from collections.abc import Iterable

from pybroker.model import PartitionState


def committed_end(current: int, leader_end: int, member_ends: Iterable[int]) -> int:
    """The high watermark that follows from what is known; never below `current`.

    `member_ends` are the log ends of all followers that are in the ISR or may be in it by a change
    under way, as reported in this leader epoch; NO_OFFSET of one that has not reported, which holds
    the high watermark where it is.
    """
    return max(current, min(leader_end, min(member_ends, default=leader_end)))


def required_replicas(min_insync_replicas: int, replica_count: int) -> int:
    """How many replicas have to be in sync for acks=all. More than exist are never asked for (as
    Kafka 3.9)."""
    return min(min_insync_replicas, replica_count)


def has_enough_replicas(isr_size: int, min_insync_replicas: int, replica_count: int) -> bool:
    """Whether acks=all may be given."""
    return isr_size >= required_replicas(min_insync_replicas, replica_count)


def may_commit(stored: PartitionState, required: int) -> bool:
    """Whether the high watermark may move at all (KIP-966): not while the stored ISR is smaller
    than `required`, and not while replicas outside of it are stored as eligible, for these may be
    elected as they are. Lowering min.insync.replicas alone makes nobody unelectable."""
    return len(stored.isr) >= required and not stored.eligible


def may_join(follower_end: int, *, high_watermark: int, epoch_start: int) -> bool:
    """Whether a follower with this log end may come into the ISR (KIP-320): it holds all that this
    leader knows to be committed, and all that was there when its epoch began. The second counts
    because a new leader's high watermark may lag behind that of its predecessor."""
    return follower_end >= high_watermark and follower_end >= epoch_start


def maximal_isr(stored: Iterable[int], pending: Iterable[int] | None) -> frozenset[int]:
    """Everybody who may be in the ISR while the outcome of a change is unknown (KIP-497)."""
    return frozenset(stored) if pending is None else frozenset((*stored, *pending))
