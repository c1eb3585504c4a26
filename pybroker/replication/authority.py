"""The authority of a leader: ordered levels that say which requests the leader may answer.

A deposed leader cannot commit a record that the new leader lacks. The deposed leader would first
have to remove the new leader from the ISR. The removal is a conditional write in ZooKeeper, which
would fail. So a deposed leader may still serve committed records and accept appends with acks=all.
Other answers need a recent reply of ZooKeeper.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final


class Authority(enum.IntEnum):
    """The levels of a leader's authority, in ascending order. A level says which requests a replica
    may answer as the leader. Each level allows all that the lower levels allow."""

    NOTHING = 0
    READ = 1
    """Consumers may read committed records."""
    COMMITTED = 2
    """Also: the leader may acknowledge a Produce request with acks=all."""
    ALONE = 3
    """Also: the leader may send answers that no other replica confirms."""
    CONFIRMED = 4
    """Also: the leader may return its log end, if ZooKeeper confirms for this request that it still
    leads."""
    ALL = 5
    """Also: the leader may return its log end at once."""


NEEDED: Final[Mapping[str, Authority]] = MappingProxyType(
    {
        "Fetch by a follower": Authority.READ,
        "Fetch by a consumer, until the broker's metadata names the new leader": Authority.READ,
        "ListOffsets of the log start or of a timestamp in the log": Authority.READ,
        "OffsetForLeaderEpoch": Authority.READ,
        "Produce with acks=all": Authority.COMMITTED,
        "WriteTxnMarkers": Authority.COMMITTED,
        "Fetch by a consumer, whatever leader the broker's metadata names": Authority.COMMITTED,
        "Produce with acks 0 or 1": Authority.ALONE,
        "DeleteRecords": Authority.ALONE,
        "OffsetCommit": Authority.ALONE,
        "requests of group members": Authority.ALONE,
        "ListOffsets of the log end after a check in ZooKeeper": Authority.CONFIRMED,
        "ListOffsets of the log end without a check in ZooKeeper": Authority.ALL,
        "Fetch by a consumer from an offset above the log end": Authority.ALL,
        "OffsetFetch": Authority.ALL,
    }
)
"""Kind of request -> the authority that a replica needs to answer it."""

SHORT_OF: Final[Mapping[Authority, str]] = MappingProxyType(
    {
        Authority.NOTHING: "this broker does not lead {}, or does not know whether it still leads",
        Authority.READ: "this broker has learned that it does not lead {} any more, but has not"
        " carried out the controller's command about the new leader yet",
        Authority.COMMITTED: "ZooKeeper has not confirmed this broker's session lately, so {} may"
        " have another leader",
        Authority.ALONE: "an in-sync replica of {} has sent no fetch for replica.lag.time.max.ms,"
        " and in this time ZooKeeper has not confirmed that this broker leads",
        Authority.CONFIRMED: "this broker has asked the controller to elect another leader of {},"
        " and the controller may have done so",
    }
)
"""Authority that a replica has -> the reason why its authority is not higher. `{}` stands for the
partition."""


def authority(
    granted: Authority, lease: Authority, is_replicated: bool, has_heard: bool, has_asked: bool
) -> Authority:
    """Return the authority of a replica: the lower of `granted` (by the controller's last command)
    and `lease` (by the broker's ZooKeeper session), with these exceptions:

    - If no other broker can lead the partition (`is_replicated` is False), only a lease of NOTHING
      lowers the authority.
    - `has_heard`: within the last replica.lag.time.max.ms, ZooKeeper has confirmed the leadership,
      or every in-sync and every eligible replica has fetched. If `has_heard` is False, the
      authority is at most ALONE.
    - `has_asked`: this broker has asked the controller to elect another leader. The authority is
      then at most CONFIRMED.
    """
    if lease and not is_replicated:
        lease = granted
    reached = min(granted, lease)
    if has_heard and not has_asked:
        return reached
    return min(reached, Authority.CONFIRMED if has_heard else Authority.ALONE)
