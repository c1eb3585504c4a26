"""A member of a group: its metadata, its assignment, and its waiting requests."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from pybroker.coordinator.groups.calls import (
    JoinedMember,
    MemberView,
    Protocols,
    Ticket,
)

MEMBER_BYTES: Final = 2048
"""The memory of a member without metadata, in bytes."""


@dataclass(slots=True)
class Member:
    """A member of a group. Its session times out at `deadline`, in seconds of the monotonic
    clock. `join` and `sync` are its waiting requests. `is_new`: its first JoinGroup is not
    answered yet."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: Protocols
    deadline: float
    assignment: bytes = b""
    is_new: bool = False
    join: Ticket | None = None
    sync: Ticket | None = None
    known: frozenset[str] = field(init=False)
    """The names of the assignors that the member supports."""

    def __post_init__(self) -> None:
        self.known = frozenset(self.names)

    def set_protocols(self, protocols: Protocols) -> None:
        """Replace the member's assignors and their metadata."""
        self.protocols = protocols
        self.known = frozenset(self.names)

    @property
    def names(self) -> list[str]:
        """The assignors that the member supports, in order of its preference."""
        return [name for name, _ in self.protocols]

    @property
    def is_static(self) -> bool:
        return self.instance_id is not None

    def size(self) -> int:
        """Return the approximate memory of the member, in bytes."""
        metadata_size = sum(len(name) + len(data) for name, data in self.protocols)
        names = len(self.instance_id or "") + len(self.client_id)
        return MEMBER_BYTES + metadata_size + names + len(self.assignment)

    def is_excused(self) -> bool:
        """Whether the session cannot time out now, because a JoinGroup or SyncGroup request of the
        member waits for its response. The session of a new member can always time out."""
        return not self.is_new and (self.join is not None or self.sync is not None)

    def renew_session(self, now: float) -> None:
        """Restart the member's session timeout at `now`, in seconds of the monotonic clock."""
        self.deadline = now + self.session_timeout_ms / 1000

    def metadata(self, protocol: str) -> bytes:
        """Return the member's metadata for the assignor `protocol`; empty if the member does not
        support this assignor."""
        return next((data for name, data in self.protocols if name == protocol), b"")

    def vote(self, candidates: set[str]) -> str:
        """Return the candidate that the member prefers. The member must support one of the
        candidates."""
        return next(name for name in self.names if name in candidates)

    def as_joined(self, protocol: str) -> JoinedMember:
        return JoinedMember(self.member_id, self.instance_id, self.metadata(protocol))

    def view(self, protocol: str | None) -> MemberView:
        """Return the member for DescribeGroups, with its assignment and its metadata for the
        assignor `protocol`. If `protocol` is None, the metadata and the assignment are empty."""
        return MemberView(
            self.member_id,
            self.instance_id,
            self.client_id,
            self.client_host,
            b"" if protocol is None else self.metadata(protocol),
            b"" if protocol is None else self.assignment,
        )
