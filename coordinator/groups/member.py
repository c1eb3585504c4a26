"""A member of a group: what it said of itself, what it was given, and what it waits for."""

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
"""What a member takes that says hardly anything."""


@dataclass(slots=True)
class Member:
    """`deadline`: when it counts as dead unless it is heard of, in seconds of the monotonic clock.

    `join` and `sync` are its requests that wait. `is_new` until its first join is answered: it
    cannot heartbeat before. Whoever waits is alive unless it is new, for then nobody knows whether
    it will understand the answer.
    """

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
    """The assignors that it knows; all members know the same, most often."""

    def __post_init__(self) -> None:
        self.known = frozenset(self.names)

    def tell(self, protocols: Protocols) -> None:
        """It has other metadata."""
        self.protocols = protocols
        self.known = frozenset(self.names)

    @property
    def names(self) -> list[str]:
        """The assignors that it knows, best first."""
        return [name for name, _ in self.protocols]

    @property
    def is_static(self) -> bool:
        return self.instance_id is not None

    def size(self) -> int:
        """About how many bytes of memory it takes."""
        told = sum(len(name) + len(data) for name, data in self.protocols)
        names = len(self.instance_id or "") + len(self.client_id)
        return MEMBER_BYTES + told + names + len(self.assignment)

    def is_excused(self) -> bool:
        """Whether it may be silent beyond its deadline."""
        return not self.is_new and (self.join is not None or self.sync is not None)

    def heard(self, now: float) -> None:
        """It lives."""
        self.deadline = now + self.session_timeout_ms / 1000

    def metadata(self, protocol: str) -> bytes:
        """What it told that assignor; nothing if it does not know it."""
        return next((data for name, data in self.protocols if name == protocol), b"")

    def vote(self, candidates: set[str]) -> str:
        """Which of these it likes best. At least one of them is known to it."""
        return next(name for name in self.names if name in candidates)

    def as_joined(self, protocol: str) -> JoinedMember:
        return JoinedMember(self.member_id, self.instance_id, self.metadata(protocol))

    def view(self, protocol: str | None) -> MemberView:
        """With metadata and assignment if the protocol is named."""
        return MemberView(
            self.member_id,
            self.instance_id,
            self.client_id,
            self.client_host,
            b"" if protocol is None else self.metadata(protocol),
            b"" if protocol is None else self.assignment,
        )
