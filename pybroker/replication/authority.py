"""How much a leader may answer: in steps, each with everything below it.

The controller may have elected another leader while it could not reach this broker. Changes of the
ISR are conditional, so what is committed stays right: reading it, and appending with acks=all,
which waits for the in-sync replicas, may go on. What a leader vouches for alone needs more: the
broker hears from ZooKeeper. The log end needs most. A successor that is in sync in the stored state
gives this broker replica.lag.time.max.ms to be heard of before it commits anything without it;
unless the controller counted this broker among the lost, as it does with a leader that asked for
another one.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final


class Authority(enum.IntEnum):
    """How much may be answered. The lease from ZooKeeper is NOTHING, COMMITTED or ALL."""

    NOTHING = 0
    READ = 1
    """What is committed may be read."""
    COMMITTED = 2
    """And acks=all may be answered."""
    ALONE = 3
    """And what no other replica vouches for."""
    CONFIRMED = 4
    """And the log end, once ZooKeeper has confirmed the leader."""
    ALL = 5
    """And the log end."""


NEEDED: Final[Mapping[str, Authority]] = MappingProxyType(
    {
        "Fetch": Authority.READ,
        "ListOffsets of an offset that is found": Authority.READ,
        "OffsetForLeaderEpoch": Authority.READ,
        "Produce with acks=all": Authority.COMMITTED,
        "Fetch by a consumer, when a later leader is known": Authority.COMMITTED,
        "Produce with acks 0 or 1": Authority.ALONE,
        "DeleteRecords": Authority.ALONE,
        "OffsetCommit": Authority.ALONE,
        "requests of group members": Authority.ALONE,
        "ListOffsets of the end, when ZooKeeper has confirmed the leader": Authority.CONFIRMED,
        "ListOffsets of the end": Authority.ALL,
        "Fetch by a consumer beyond the log end": Authority.ALL,
        "OffsetFetch": Authority.ALL,
    }
)
"""Request -> what its answer needs; everything that asks, asks here."""

SHORT_OF: Final[Mapping[Authority, str]] = MappingProxyType(
    {
        Authority.NOTHING: "this broker does not lead {}, or does not know whether it still does",
        Authority.READ: "another broker leads {} by now",
        Authority.COMMITTED: "this broker does not hear from ZooKeeper, and may not lead {} any"
        " more",
        Authority.ALONE: "not every in-sync replica of {} was heard of within"
        " replica.lag.time.max.ms, and ZooKeeper has not confirmed the leader since",
        Authority.CONFIRMED: "the controller was asked for another leader of {}, and may have found"
        " one",
    }
)
"""Why a replica has no more than that."""


def authority(
    granted: Authority, lease: Authority, is_replicated: bool, has_heard: bool, has_asked: bool
) -> Authority:
    """`granted` is what the controller made of the replica, or what was read of that since; `lease`
    is how far ZooKeeper is heard of, which does not matter to a partition that no other broker can
    lead (not `is_replicated`). `has_heard`: within replica.lag.time.max.ms each replica that may be
    elected was heard of as a follower, or ZooKeeper has confirmed the leader. `has_asked`: this
    broker asked the controller for another leader, which would wait for nothing."""
    if lease and not is_replicated:
        lease = granted
    reached = min(granted, lease)
    if has_heard and not has_asked:
        return reached
    return min(reached, Authority.CONFIRMED if has_heard else Authority.ALONE)
