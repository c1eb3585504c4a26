"""Requests of group members and the answers to them, as plain values. Timeouts are in ms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from pybroker.coordinator.groups.states import GroupState
from pybroker.errors import ErrorCode

NO_GENERATION: Final = -1
NO_MEMBER_ID: Final = ""
Ticket = int
"""The number of a request that waits for its answer."""
Protocols = tuple[tuple[str, bytes], ...]
"""(name, metadata) of each assignor that a member supports, in the member's order of preference."""


@dataclass(frozen=True, slots=True)
class Join:
    """A JoinGroup request. `requires_known_id`: a new dynamic member must join again with the id in
    the answer (KIP-394). `may_skip`: the client supports `skip_assignment` (KIP-814)."""

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
        """Return the approximate memory of the request, in bytes. A character counts as a byte."""
        metadata_size = sum(len(name) + len(metadata) for name, metadata in self.protocols)
        names = (self.instance_id or "", self.client_id, self.protocol_type)
        return metadata_size + sum(map(len, names))


@dataclass(frozen=True, slots=True)
class JoinedMember:
    """A member, as listed in the JoinGroup answer to the group's leader."""

    member_id: str
    instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True)
class Joined:
    """The answer to a JoinGroup request. Only an answer to the group's leader has `members`.
    `skips`: the leader must not compute an assignment (KIP-814)."""

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
    """A SyncGroup request. `assignments` maps member ids to assignments; only the group's leader
    sends any. `protocol_type` and `protocol` are None before KIP-559."""

    member_id: str
    generation: int
    instance_id: str | None = None
    protocol_type: str | None = None
    protocol: str | None = None
    assignments: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Synced:
    """The answer to a SyncGroup request."""

    error: ErrorCode
    assignment: bytes = b""
    protocol_type: str | None = None
    protocol: str | None = None


@dataclass(frozen=True, slots=True)
class Identity:
    """The ids of the member in a heartbeat, commit or leave request. The member id is empty if an
    operator removes a static member."""

    member_id: str
    instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class MemberView:
    """A member, as DescribeGroups shows it. Metadata and assignment are empty unless the group is
    Stable."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes = b""
    assignment: bytes = b""


@dataclass(frozen=True, slots=True)
class GroupView:
    """A group, as DescribeGroups shows it. `protocol` is empty unless the group is Stable."""

    group_id: str
    state: GroupState
    protocol_type: str = ""
    protocol: str = ""
    generation: int = NO_GENERATION
    members: tuple[MemberView, ...] = ()


@dataclass(frozen=True, slots=True)
class GroupOverview:
    """One group in the answer to ListGroups."""

    group_id: str
    state: GroupState
    protocol_type: str = ""
