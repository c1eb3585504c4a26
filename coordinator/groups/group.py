"""A group as its coordinator has it in memory: a value with the questions and small changes that
all decisions share.

What is decided stands in one file an idea (`join.py`, `sync.py`, ...). Of all this the log knows
only what `recorded` gives; the rest is the rebalance that is under way, which a fail-over forgets.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from pybroker.coordinator.groups.calls import Identity, Protocols
from pybroker.coordinator.groups.member import Member
from pybroker.coordinator.groups.records import RecordedGroup, RecordedMember
from pybroker.coordinator.groups.states import LEGAL_MOVES, GroupState, IllegalMove
from pybroker.errors import ErrorCode
from pybroker.model import NO_TIMESTAMP

GROUP_BYTES: Final = 2048


@dataclass(slots=True)
class Group:
    """Deadlines in seconds of the monotonic clock, `state_ms` in ms since 1970.

    `static` is instance id -> member id, of the members that have one. `pending`: ids that were
    given out (KIP-394), with their deadlines, oldest first. `owes_sync`: members of the generation
    that have not sent their SyncGroup. `initial_rest_s`: None unless the group was empty; else how
    much longer the initial delay may become.
    """

    group_id: str
    state: GroupState = GroupState.EMPTY
    generation: int = 0
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str | None = None
    state_ms: int = NO_TIMESTAMP
    members: dict[str, Member] = field(default_factory=dict)
    static: dict[str, str] = field(default_factory=dict)
    pending: dict[str, float] = field(default_factory=dict)
    owes_sync: set[str] = field(default_factory=set)
    join_deadline: float | None = None
    sync_deadline: float | None = None
    initial_rest_s: float | None = None
    was_extended: bool = False
    """Somebody came while the initial delay ran."""
    is_storing: bool = False
    """The assignment of this generation is on its way into the log."""

    def move_to(self, state: GroupState, wall_ms: int) -> None:
        """Raises IllegalMove."""
        if self.state not in LEGAL_MOVES[state]:
            raise IllegalMove(
                f"group {self.group_id}: from {self.state.value} to {state.value} is no legal move"
            )
        self.state = state
        self.state_ms = wall_ms

    # questions

    @property
    def rebalance_timeout_s(self) -> float:
        """How long the slowest member may take to join again."""
        return max((m.rebalance_timeout_ms for m in self.members.values()), default=0) / 1000

    @property
    def joining(self) -> int:
        """How many members wait for the new generation."""
        return sum(member.join is not None for member in self.members.values())

    @property
    def everybody_joined(self) -> bool:
        """Whether there is nobody left to wait for."""
        return self.joining == len(self.members) and not self.pending

    @property
    def is_forgettable(self) -> bool:
        """Whether nothing of it is worth memory: nobody came, and no generation ever was."""
        return (
            self.state is GroupState.EMPTY
            and not self.members
            and not self.pending
            and self.generation == 0
        )

    def fault_of(self, who: Identity) -> ErrorCode:
        """Why this is no member, or NONE."""
        if who.instance_id is not None:
            known = self.static.get(who.instance_id)
            if known is not None and known != who.member_id:
                return ErrorCode.FENCED_INSTANCE_ID
            if known is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
        return ErrorCode.NONE if who.member_id in self.members else ErrorCode.UNKNOWN_MEMBER_ID

    def common_protocols(self) -> set[str]:
        """The assignors that all members know."""
        known = {member.known for member in self.members.values()}
        return set(frozenset.intersection(*known)) if known else set()

    def supports(self, protocol_type: str, protocols: Protocols) -> bool:
        """Whether somebody of that kind, with these assignors, may be in it."""
        if self.state is GroupState.EMPTY:
            return bool(protocol_type) and bool(protocols)
        if self.protocol_type != protocol_type or not protocols:
            return False
        common = {name for name, _ in protocols}
        for known in {member.known for member in self.members.values()}:
            common &= known
        return bool(common)

    def elected_protocol(self) -> str:
        """The assignor with the most votes; of equals the one that was voted for first. There is
        at least one member, and one assignor that all know."""
        common = self.common_protocols()
        votes = Counter(member.vote(common) for member in self.members.values())
        return votes.most_common(1)[0][0]

    def next_deadline(self) -> float | None:
        """When something is due next, if nothing else happens."""
        deadlines: list[float] = [*self.pending.values()]
        deadlines += (m.deadline for m in self.members.values() if not m.is_excused())
        deadlines += (d for d in (self.join_deadline, self.sync_deadline) if d is not None)
        return min(deadlines, default=None)

    def size(self) -> int:
        """About how many bytes of memory it takes; without ids that were given out, which have a
        limit of their own."""
        if not (self.members or self.generation):
            return 0
        members = sum(member.size() for member in self.members.values())
        return GROUP_BYTES + len(self.protocol_type or "") + members

    # changes

    def add(self, member: Member, protocol_type: str) -> None:
        if not self.members:
            self.protocol_type = protocol_type
        self.pending.pop(member.member_id, None)
        self.members[member.member_id] = member
        if member.instance_id is not None:
            self.static[member.instance_id] = member.member_id
        if self.leader is None:
            self.leader = member.member_id

    def remove(self, member_id: str) -> Member | None:
        """Gives the member that was; another leads if it did."""
        self.pending.pop(member_id, None)
        self.owes_sync.discard(member_id)
        member = self.members.pop(member_id, None)
        if member is None:
            return None
        if member.instance_id is not None and self.static.get(member.instance_id) == member_id:
            del self.static[member.instance_id]
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)
        return member

    def replace(self, member: Member, new_id: str) -> Member:
        """The same static member under another id, in the same place."""
        renamed = dataclasses.replace(member, member_id=new_id, join=None, sync=None)
        self.members = {
            (new_id if key == member.member_id else key): (
                renamed if key == member.member_id else other
            )
            for key, other in self.members.items()
        }
        assert member.instance_id is not None
        self.static[member.instance_id] = new_id
        if self.leader == member.member_id:
            self.leader = new_id
        if member.member_id in self.owes_sync:
            self.owes_sync.discard(member.member_id)
            self.owes_sync.add(new_id)
        return renamed

    # the log

    def recorded(self, assignments: Mapping[str, bytes], wall_ms: int) -> RecordedGroup:
        """What the log is to know, with these assignments by member id."""
        protocol = self.protocol or ""
        return RecordedGroup(
            protocol_type=self.protocol_type or "",
            generation=self.generation,
            protocol=self.protocol,
            leader=self.leader,
            state_ms=wall_ms,
            members=tuple(
                RecordedMember(
                    member_id=member.member_id,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    rebalance_timeout_ms=member.rebalance_timeout_ms,
                    session_timeout_ms=member.session_timeout_ms,
                    subscription=member.metadata(protocol),
                    assignment=assignments.get(member.member_id, b""),
                    group_instance_id=member.instance_id,
                )
                for member in self.members.values()
            ),
        )


def assignments_of(members: Iterable[Member]) -> dict[str, bytes]:
    """Who has what."""
    return {member.member_id: member.assignment for member in members}


def from_record(group_id: str, recorded: RecordedGroup, now: float) -> Group:
    """The group as a new coordinator takes it over: nobody has to rebalance, and every session
    begins anew."""
    group = Group(
        group_id,
        state=GroupState.STABLE if recorded.members else GroupState.EMPTY,
        generation=recorded.generation,
        protocol_type=recorded.protocol_type,
        protocol=recorded.protocol,
        leader=recorded.leader,
        state_ms=recorded.state_ms,
    )
    for stored in recorded.members:
        group.members[stored.member_id] = Member(
            member_id=stored.member_id,
            instance_id=stored.group_instance_id,
            client_id=stored.client_id,
            client_host=stored.client_host,
            rebalance_timeout_ms=stored.rebalance_timeout_ms,
            session_timeout_ms=stored.session_timeout_ms,
            protocols=((recorded.protocol or "", stored.subscription),),
            deadline=now + stored.session_timeout_ms / 1000,
            assignment=stored.assignment,
        )
        if stored.group_instance_id is not None:
            group.static[stored.group_instance_id] = stored.member_id
    return group
