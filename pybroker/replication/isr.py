"""Arithmetic of the in-sync replica set. Pure functions; see KIP-101, KIP-279, KIP-320 for the
rules.

The high watermark is the smallest log end offset over every replica that is in the ISR or may be in
it by a change under way: a record below it is on each replica that can be elected.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping


def committed_end(
    current: int,
    *,
    leader: int,
    leader_end: int,
    maximal_isr: Iterable[int],
    follower_ends: Mapping[int, int],
) -> int:
    """The high watermark that follows from what is known; never below `current`.

    `maximal_isr` is the ISR together with every change to it that may have been applied.
    `follower_ends` holds log end offsets reported in this leader epoch; a member without one holds
    the high watermark where it is.
    """
    end = leader_end
    for replica in maximal_isr:
        if replica == leader:
            continue
        reported = follower_ends.get(replica)
        if reported is None:
            return current
        end = min(end, reported)
    return max(current, end)


def has_enough_replicas(isr_size: int, min_insync_replicas: int, replica_count: int) -> bool:
    """Whether acks=all may be given. More replicas than exist are never asked for (as Kafka
    3.9)."""
    return isr_size >= min(min_insync_replicas, replica_count)
