"""What members ask of a group, and what it answers: plain values. Timeouts in ms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from pybroker.coordinator.groups.states import GroupState
from pybroker.errors import ErrorCode

NO_GENERATION: Final = -1
NO_MEMBER_ID: Final = ""
Ticket = int
"""Stands for a request that waits for its answer."""
Protocols = tuple[tuple[str, bytes], ...]
"""Name and metadata of the assignors that a member knows, best first."""


@dataclass(frozen=True, slots=True)
class Join:
    """`requires_known_id`: a dynamic member without an id is given one and has to come back with it
    (KIP-394). `may_skip`: it understands that it leads, but has nothing to assign (KIP-814).
    `reason`: why it joins, in its own words."""

    member_id: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: Protocols
    instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    requires_known_id: bool = True
    may_skip: bool = False
    reason: str = ""

    def size(self) -> int:
        """Characters and bytes that are kept of it."""
        told = sum(len(name) + len(metadata) for name, metadata in self.protocols)
        names = (self.instance_id or "", self.client_id, self.protocol_type)
        return told + sum(map(len, names))


@dataclass(frozen=True, slots=True)
class JoinedMember:
    """A member, as its leader is told of it."""

    member_id: str
    instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True)
class Joined:
    """The answer to a join. Without an error, `members` is empty for all but the leader, who has
    nothing to assign if `skips`."""

    error: ErrorCode
    member_id: str
    generation: int = NO_GENERATION
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = NO_MEMBER_ID
    members: tuple[JoinedMember, ...] = ()
    skips: bool = False


@dataclass(frozen=True, slots=True)
class Sync:
    """`assignments` by member id, from the leader only. `protocol_type` and `protocol` are None
    where the member says nothing of them (before KIP-559)."""

    member_id: str
    generation: int
    instance_id: str | None = None
    protocol_type: str | None = None
    protocol: str | None = None
    assignments: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Synced:
    """The answer to a sync."""

    error: ErrorCode
    assignment: bytes = b""
    protocol_type: str | None = None
    protocol: str | None = None


@dataclass(frozen=True, slots=True)
class Identity:
    """Who speaks, in heartbeats, commits and leaves. An operator who takes out a static member
    names it without a member id."""

    member_id: str
    instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class MemberView:
    """A member for operators and mirrors. Without metadata and assignment unless the group is
    Stable."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes = b""
    assignment: bytes = b""


@dataclass(frozen=True, slots=True)
class GroupView:
    """A group for operators and mirrors. `protocol` is empty unless it is Stable."""

    group_id: str
    state: GroupState
    protocol_type: str = ""
    protocol: str = ""
    generation: int = NO_GENERATION
    members: tuple[MemberView, ...] = ()


@dataclass(frozen=True, slots=True)
class GroupOverview:
    """A line of the list of groups."""

    group_id: str
    state: GroupState
    protocol_type: str = ""
