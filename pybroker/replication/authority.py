"""The authority of a leader: ordered levels that say which requests it may answer.

The controller may have elected another leader without reaching this broker. Committed records stay
valid even then, because ISR changes are conditional. So the old leader may serve committed records
and accept appends with acks=all, which wait for the in-sync replicas. An answer that no other
replica confirms needs a broker that hears from ZooKeeper. The log end needs the highest level: a
new leader waits replica.lag.time.max.ms for this broker before it commits records without it. The
new leader does not wait if the controller counted this broker as failed, as after its request for
another leader.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final


class Authority(enum.IntEnum):
    """The level of a replica's authority; each level includes those below it. A ZooKeeper lease
    has one of the levels NOTHING, COMMITTED and ALL."""

    NOTHING = 0
    READ = 1
    """Consumers may read committed records."""
    COMMITTED = 2
    """Also: the leader may acknowledge a produce with acks=all."""
    ALONE = 3
    """Also: the leader may give answers that no other replica confirms."""
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
"""Request -> the authority that its answer needs."""

SHORT_OF: Final[Mapping[Authority, str]] = MappingProxyType(
    {
        Authority.NOTHING: "this broker does not lead {}, or its ZooKeeper session may have ended",
        Authority.READ: "another broker leads {} now",
        Authority.COMMITTED: "this broker does not hear from ZooKeeper, and {} may have another"
        " leader",
        Authority.ALONE: "an in-sync replica of {} has not fetched within replica.lag.time.max.ms,"
        " and ZooKeeper has not confirmed the leader since",
        Authority.CONFIRMED: "this broker has asked the controller for another leader of {}, and"
        " the controller may have elected it",
    }
)
"""Authority of a replica -> the reason why its authority is not higher."""


def authority(
    granted: Authority, lease: Authority, is_replicated: bool, has_heard: bool, has_asked: bool
) -> Authority:
    """Return the authority of a replica. `granted` is `Partition.granted`; `lease` is the broker's
    lease from ZooKeeper. If no other broker can lead the partition (not `is_replicated`), any lease
    above NOTHING suffices. `has_heard`: within replica.lag.time.max.ms each electable replica has
    fetched as a follower, or ZooKeeper has confirmed the leader. `has_asked`: this broker has asked
    the controller for another leader, and that leader does not wait for this broker."""
    if lease and not is_replicated:
        lease = granted
    reached = min(granted, lease)
    if has_heard and not has_asked:
        return reached
    return min(reached, Authority.CONFIRMED if has_heard else Authority.ALONE)
