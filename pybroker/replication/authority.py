"""The requests that a leader may answer: ordered levels, each of which includes those below it.

The controller may have elected another leader without reaching this broker. Committed records stay
valid even then, because ISR changes are conditional. So reads of committed records go on, and so do
appends with acks=all, which wait for the in-sync replicas. An answer that only the leader vouches
for needs a broker that hears from ZooKeeper. The log end needs most. A successor waits for this
broker for replica.lag.time.max.ms before it commits anything without it. It does not wait if the
controller counted this broker as lost, as it does with a leader that asked for another one.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final


class Authority(enum.IntEnum):
    """The level of what a replica may answer. The ZooKeeper lease is NOTHING, COMMITTED or ALL."""

    NOTHING = 0
    READ = 1
    """Consumers may read committed records."""
    COMMITTED = 2
    """Also: the leader may acknowledge a produce with acks=all."""
    ALONE = 3
    """Also: the leader may give answers that no other replica vouches for."""
    CONFIRMED = 4
    """Also: the leader may return the log end, once ZooKeeper has confirmed the leader."""
    ALL = 5
    """Also: the leader may return the log end."""


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
"""Request -> the authority that its answer needs; the only place that says so."""

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
"""Authority of a replica -> the reason why it has no more."""


def authority(
    granted: Authority, lease: Authority, is_replicated: bool, has_heard: bool, has_asked: bool
) -> Authority:
    """Return the authority of a replica. `granted` is `Partition.granted`. `lease` is the broker's
    lease from ZooKeeper; any lease above NOTHING suffices for a partition that no other broker can
    lead (not `is_replicated`). `has_heard`: within replica.lag.time.max.ms each electable replica
    has fetched as a follower, or ZooKeeper has confirmed the leader. `has_asked`: this broker asked
    the controller for another leader, which would not wait for this one."""
    if lease and not is_replicated:
        lease = granted
    reached = min(granted, lease)
    if has_heard and not has_asked:
        return reached
    return min(reached, Authority.CONFIRMED if has_heard else Authority.ALONE)
